"""A question with a computed answer, and the kinds that there are."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from common.figures.draw import Picture, plural
from cudaemu.errors import UserError, pick

COUNT = 10
LEVELS = ("junior", "mid", "senior")
DIGITS = 3  # of a fraction that is given as a rounded number
NEAR = Fraction(1, 100)  # how far from a large number an answer may be, by itself

Value = int | Fraction | str


@dataclass(frozen=True)
class Question:
    """What is asked: `parts` names each number or word of the answer, with its value.

    `code` is shown below the text as CUDA C++ (the tests compile it), `why` says how the answer comes about, `drawing`
    shows it in plain text of at most 80 columns, `figure` as a picture. `near`: 1 % off is right.
    A fraction may be given rounded to DIGITS or more."""

    text: str
    parts: dict[str, Value]
    why: str
    code: str = ""
    drawing: str = ""
    figure: Callable[[], Picture] | None = None
    near: bool = False

    @property
    def answer(self) -> str:
        """The answer as a person writes it: "8 wavefronts", "lane 5, register 2"."""
        if len(self.parts) == 1:
            ((name, value),) = self.parts.items()
            return f"{name} {shown(value)}" if name in ("bank", "key", "offset") else f"{shown(value)} {name}".strip()
        return ", ".join(f"{name} {shown(value)}" for name, value in self.parts.items())

    def judge(self, text: str) -> bool:
        """Whether an answer is right. UserError, in words for the reader, if it cannot be read as one."""
        given = _split(_without(text, self.parts), len(self.parts))
        if len(given) != len(self.parts):
            wanted = ", ".join(self.parts)
            raise UserError(f"the answer must be {plural(len(self.parts), 'value')} ({wanted}), got '{text.strip()}'")
        return all(_same(word, name, value, self.near) for word, (name, value) in zip(given, self.parts.items()))


def shown(value: Value) -> str:
    """A number with separators; a fraction of a small power of two as a decimal number."""
    if isinstance(value, str):
        return value
    if isinstance(value, Fraction) and value.denominator > 1:
        return f"{float(value):.10g}"
    return f"{int(value):,}"


def _without(text: str, names: Iterable[str]) -> str:
    """An answer without the names of its values: "lane 5, register 2" is "5, 2"."""
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}\s*=?(?=\s*[-\d.])", " ", text, flags=re.I) if name else text
    return text


def _split(text: str, count: int) -> list[str]:
    """The words of an answer. Commas part them only if blanks do not: 65,536 is one number."""
    words = [word.strip(",") for word in re.split(r"[\s;]+", text.strip()) if word.strip(",")]
    if len(words) != count:
        words = [word for word in re.split(r"[\s;,]+", text.strip()) if word]
    return words


def _same(word: str, name: str, value: Value, near: bool) -> bool:
    if isinstance(value, str):
        return word.lower() == value.lower()
    try:
        number = Fraction(word.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{name} must be a number such as 12, 0.75 or 3/4, got '{word}'") from None
    if isinstance(value, Fraction) and _rounds(word, number, value):
        return True
    return abs(number - value) <= abs(Fraction(value)) * NEAR if near else number == value


def _rounds(word: str, number: Fraction, value: Fraction) -> bool:
    """Whether a decimal number is a value that has more digits, rounded to three significant digits or more."""
    decimals = re.fullmatch(r"-?(\d*)\.(\d+)", word.replace(",", ""))
    if decimals is None or len((decimals[1] + decimals[2]).lstrip("0")) < DIGITS:
        return False
    return abs(number - value) <= Fraction(1, 2 * 10 ** len(decimals[2]))


Maker = Callable[[random.Random], Question]


@dataclass(frozen=True)
class Kind:
    """A kind of question."""

    name: str
    title: str
    level: str  # one of LEVELS
    make: Maker


KINDS: dict[str, Kind] = {}


def drill(name: str, title: str, level: str) -> Callable[[Maker], Maker]:
    """Register what makes a question of that kind."""

    def register(make: Maker) -> Maker:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, title, level, make)
        return make

    return register


def questions(kind: str, seed: int, count: int = COUNT) -> list[Question]:
    """So many different questions of a kind, or of "all" kinds in turn; the same ones for the same seed.

    UserError for a kind that there is not, and where a kind has no more different ones."""
    names = list(KINDS) if kind == "all" else [pick(kind, tuple(KINDS), "drill", "practice")]
    generator = random.Random(f"{kind} {seed}")
    found: dict[str, Question] = {}
    for number in range(count):
        make = KINDS[names[number % len(names)]].make
        for _ in range(1000):
            made = make(generator)
            if made.text + made.code not in found:
                break
        else:
            raise UserError(f"drill '{kind}' has no {count} different questions; --count {len(found)} is possible")
        found[made.text + made.code] = made
    return list(found.values())
