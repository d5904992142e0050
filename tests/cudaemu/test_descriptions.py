"""What the machine says of its instructions: complete, in itself right, and read by those who count and lower."""

from __future__ import annotations

import pytest

from cudaemu import engine
from cudaemu.compiler import toolchain
from cudaemu.errors import ToolFailed
from cudaemu.kernel import CATEGORIES
from cudaemu.lower.description import ATOMIC, PURE, Description, Effect
from cudaemu.units import TENSOR_UNITS

ALL = engine.instructions()
OUTSIDE = {Effect.STEERS, Effect.ORDERS}  # effects of what the scheduler may execute


def words(about: Description) -> list[str]:
    return about.operands.split()


def kinds(about: Description) -> set[str]:
    """Of its operands: d for destinations, s for sources, n for plain numbers."""
    return {word[0] for word in words(about)}


def each(*effects: Effect) -> dict[str, Description]:
    found = {name: about for name, about in ALL.items() if about.effect in effects}
    assert {about.effect for about in found.values()} == set(effects)
    return found


def test_what_it_reads_and_writes_has_an_address():
    for name, about in ALL.items():
        if about.effect == Effect.SAVES:  # in the thread's stack, at offsets that are numbers
            assert about.reads | about.writes == {"local"}, name
            continue
        sides = [(about.reads, about.source), (about.writes, about.target)]
        for spaces, place in sides:
            assert bool(spaces) == (place >= 0), name
            assert place < 0 or words(about)[place][0] == "s", name
            assert not place >= 0 or not any("+" in word for word in words(about)[:place]), name


def test_what_it_does_is_what_its_operands_say():
    for name, about in each(*PURE).items():
        assert not about.reads | about.writes and "d" in kinds(about), name
    for name, about in each(Effect.LOADS).items():
        assert about.reads and not about.writes and "d" in kinds(about), name
    for name, about in each(Effect.STORES).items():
        assert about.writes and not about.reads and "d" not in kinds(about), name
    for name, about in each(*ATOMIC).items():
        assert about.reads == about.writes == {"global", "shared"} and "d" in kinds(about), name
    for name, about in each(Effect.TRANSFERS, Effect.NOTHING, *OUTSIDE).items():
        assert "d" not in kinds(about) or name in ("mbarrier", "mbarrier.test", "barrier", "call"), name
    for name, about in ALL.items():
        goes_to_memory = about.effect in {Effect.STORES, *ATOMIC}
        assert (about.values > about.target >= 0) == goes_to_memory, name
        assert (
            not about.elements
            or words(about)[:3] == ["s*", "n", "n"]
            and about.effect
            in (
                Effect.LOADS,
                Effect.STORES,
            )
        ), name


def test_each_rule_has_what_it_looks_at():
    used = {}
    for name, about in ALL.items():
        used.setdefault(about.rule, []).append(name)
        if about.rule in ("ADDRESS", "ATOMIC"):
            assert about.reads | about.writes and about.reports, name
        if about.rule.startswith("MOVED_BY_"):
            by = [words(about)[int(place)] for place in about.rule.removeprefix("MOVED_BY_").split("_")]
            assert {word[0] for word in by} == {"s"}, name
        if about.rule in ("AND", "OR", "XOR"):
            assert words(about)[0][1] == words(about)[1][1] == words(about)[2][1], name
        if about.rule == "ITS_OWN":
            assert about.effect == Effect.SAVES, name
        if about.effect in ATOMIC:
            assert about.rule == "ATOMIC", name
        if about.effect in (Effect.MULTIPLIES, Effect.MULTIPLIES_LATER):
            assert about.rule in ("PRODUCT", "EXTENDED", "FRAGMENTS", "WARPGROUP") and about.reports, name
    assert len(used) == 29, sorted(used)


def test_every_category_is_counted_and_none_is_for_nothing():
    named_by_lowering = {"bulk.store"}
    assert {about.category for about in ALL.values()} | named_by_lowering == CATEGORIES.keys()
    for name, about in each(Effect.LOADS, Effect.STORES).items():
        category = CATEGORIES[about.category]
        uncounted = {"surface", "texture", "move"}  # ... but as instructions; "move": parameters
        elsewhere = about.reads | about.writes == {"cluster"}
        assert category.memory or category.spaces or elsewhere or about.category in uncounted, name
        assert not category.stores or about.effect == Effect.STORES, name


def test_tensor_units_are_those_of_the_machine():
    multiply = each(Effect.MULTIPLIES, Effect.MULTIPLIES_LATER)
    assert {about.category for about in multiply.values()} == {unit.category for unit in TENSOR_UNITS}
    for name, about in multiply.items():
        (unit,) = (unit for unit in TENSOR_UNITS if unit.category == about.category)
        assert unit.background == (about.effect == Effect.MULTIPLIES_LATER), name


def test_every_effect_is_that_of_an_instruction():
    assert {about.effect for about in ALL.values()} == set(Effect)


ROW = """
#include "{vm}"
namespace vm {{
const Entry ROWS[] = {{{{"mov.b32", nullptr, "d4 s4"{about}}}}};
const About ABOUT = About::computes({parts});
}}
"""


@pytest.mark.parametrize(
    "about, parts, complaint",
    [
        (', About::computes("move", Undefined::NOTHING)', '"move", Undefined::NOTHING', None),
        ("", '"move", Undefined::NOTHING', "About"),
        (", {}", '"move", Undefined::NOTHING', "About"),
        (', {"move", Effect::COPIES}', '"move", Undefined::NOTHING', "About"),
        (', About::computes("move", Undefined::NOTHING)', '"move"', "too few arguments|no matching function"),
    ],
)
def test_an_instruction_without_a_description_does_not_compile(tmp_path, about, parts, complaint):
    source = tmp_path / "row.cpp"
    vm = engine.SOURCES[0].with_name("vm.h")
    source.write_text(ROW.format(vm=vm, about=about, parts=parts))
    command = [toolchain.find_cxx(), "-std=c++17", "-fsyntax-only", source]
    if complaint is None:
        toolchain.run(command)
        return
    with pytest.raises(ToolFailed, match=complaint):
        toolchain.run(command)


def test_a_program_with_an_unknown_instruction_does_not_load():
    assert engine.library().vm_program(b"frobnicate\n", *[None] * 6, 0) is None
