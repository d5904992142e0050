"""What the machine says of its instructions (vm.h): whoever must know what one does reads it here, not in its name."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple


class Effect(Enum):
    """What an instruction does, as EFFECTS of vm.h."""

    NOTHING = auto()
    COMPUTES = auto()
    COPIES = auto()
    OBSERVES = auto()
    EXCHANGES = auto()
    MULTIPLIES = auto()
    MULTIPLIES_LATER = auto()
    LOADS = auto()
    STORES = auto()
    UPDATES = auto()
    OVERWRITES = auto()
    UPDATES_MANY = auto()
    TRANSFERS = auto()
    SAVES = auto()
    ORDERS = auto()
    STEERS = auto()
    SERVES = auto()

    __hash__ = object.__hash__  # there is one of each; Enum's own is slow


PURE = frozenset({Effect.COMPUTES, Effect.COPIES})  # the result matters only if it is used
ATOMIC = frozenset({Effect.UPDATES, Effect.OVERWRITES, Effect.UPDATES_MANY})


class Description(NamedTuple):
    """An instruction of the machine, as About of vm.h has it. `operands`: those that it takes. `rule`: how what is
    undefined passes through it; `reports`: that says so, and the result counts as defined. `reads`, `writes`: spaces of
    memory ("global", "shared", ...). `source`, `target`, `values`: operands, the address that it reads, that it writes,
    and the first of those that go to memory; -1: none. `elements`: its operands are an address, an offset, a shape, and
    a register for each element."""

    operands: str
    category: str
    effect: Effect
    rule: str
    reports: bool
    reads: frozenset[str]
    writes: frozenset[str]
    source: int
    target: int
    values: int
    elements: bool


@lru_cache
def _spaces(words: str) -> frozenset[str]:
    return frozenset(words.split())


def read(text: str) -> dict[str, Description]:
    """The instructions by their names, from what the machine exports, one per line. KeyError for an unknown effect."""
    found = {}
    for line in text.splitlines():
        name, operands, category, effect, rule, reports, reads, writes, *places, elements = line.split("|")
        source, target, values = map(int, places)
        found[name] = Description(
            operands,
            category,
            Effect[effect],
            rule,
            reports == "1",
            _spaces(reads),
            _spaces(writes),
            source,
            target,
            values,
            elements == "1",
        )
    return found
