"""Broken PTX: `python -m tests.cudaemu.fuzz [--seed N] [--count N] [--stage parse|lower|run] [--grammatical]`.

Mutants of real PTX are parsed, lowered, and run. Whatever comes, the answer is a result or a UserError; every other
exception, and whatever takes more than its time, is printed as a line of JSON. A crash ends the process by a signal.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import traceback
from pathlib import Path

import numpy as np

from cudaemu import engine, ptx
from cudaemu.errors import UserError
from cudaemu.kernel import Region
from tests.cudaemu.machine import launch_kernel

SECONDS = 20  # of work, for one mutant
PATIENCE = 120  # seconds until it is given up, whatever it does
SEEDS = Path(__file__).with_name("seeds")  # PTX as nvcc writes it, of kernels that use much of the language

NUMBERS = [
    "0",
    "1",
    "-1",
    "7",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "-9223372036854775808",
    "99999999999999999999",
    "0x",
    "0xFFFFFFFFFFFFFFFFF",
    "0b",
    "08",
    "1.5e400",
    "0f7FC",
    "0dFFF0000000000000",
    "1U",
    "",
]
PIECES = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ":",
    "|",
    "!",
    "@",
    "%",
    "<",
    ">",
    "=",
    "+",
    "-",
    ".",
    "_",
    "//",
    "/*",
    "*/",
    '"',
    "\n",
    "\0",
    "é",
    "%r1",
    "%rd1",
    "%p1",
    "%f1",
    "%tid.x",
    ".reg",
    ".b32",
    ".pred",
    ".align",
    ".v4",
    ".param",
    ".shared",
    ".loc 1 1 1",
    ".file 1",
    "bra",
    "call",
    "ret",
    "bar.sync",
    "ld.global.u32",
    "mma.sync.aligned.m16n8k16",
    "cvt.rn.f16.f32",
    "shfl.sync.bfly.b32",
    "wmma.load.a",
    "atom.add.u64",
    "generic(x)",
    "0xFF(x)",
]

# Cases that once hung, crashed or raised something else.
FIXED = [
    "",
    "\0",
    "{",
    "}",
    ".version",
    ".target",
    ".version 9.0\n.target",
    ".file",
    ".loc",
    ".entry",
    ".visible .entry",
    ".func",
    ".visible .entry k(",
    ".visible .entry k()",
    ".visible .entry k() {",
    ".visible .entry k() }",
    ".global .b8 x[",
    ".global .b8 x[99999999999999999999];",
    ".global .b8 x[4][4][4] = {1, 2",
    ".global .align 0 .b8 x;",
    ".global .u32 x = y(;",
    ".visible .entry k() { .reg .pred %p<4294967295>; ret; }",
    ".visible .entry k() { .reg .b32 %r<>; ret; }",
    ".visible .entry k() { .shared .align 4294967295 .b8 x[4]; ret; }",
    ".global .align 4294967295 .b8 x[4];",
    ".visible .entry k() { .shared .align 3 .b8 x[4]; ret; }",
    ".visible .entry k() { .reg .b77 %r1; ret; }",
    ".visible .entry k() { .local .b8 x[4294967295]; ret; }",
    ".visible .entry k(.param .align 65536 .b8 p[4294967295]) { ret; }",
    ".visible .entry k() { @%p1 ret; }",
    ".visible .entry k() { @!ret; }",
    ".visible .entry k() { } }",
    ".visible .entry k() { { ret; }",
    ".visible .entry k() { mov.u32 %r1, 0x; ret; }",
    ".visible .entry k() { mov.u32 _, 1; ret; }",
    ".visible .entry k() { L: L: bra L; }",
    ".visible .entry k() { bra nowhere; }",
    ".visible .entry k() { ld.u32; }",
    ".visible .entry k() { call; }",
    ".visible .entry k() { brx.idx 1, 2; }",
    ".visible .entry k() { .reg .b32 %r<2>; add.u32 %r1, %r0, " + "(" * 5000 + "1" + ")" * 5000 + "; ret; }",
    ".visible .entry k() { .reg .b32 %r<2>; add.u32 %r1, %r0, " + "!" * 5000 + "1; ret; }",
    ".visible .entry k() { .reg .b32 %r<2>; add.u32 %r1, %r0, " + "%r0|" * 5000 + "1; ret; }",
    ".visible .entry k() { " + "{" * 5000 + "}" * 5000 + " ret; }",
    ".global .u32 x = " + "{" * 5000 + "1" + "}" * 5000 + ";",
    ".global " + ".ptr " * 40 + "x y;",
    ".global " + ".align 4 " * 40 + "x y;",
    ".visible .entry k() { .reg " + ".b32 " * 60 + "; ret; }",
    ".visible .entry k() .maxntid 99999999999, 99999999, 1 { ret; }",
    ".visible .entry k() .maxntid { ret; }",
    ".func (.reg .b32 r) f(.reg .b32 a) { ret; }\n"
    ".visible .entry k() { .reg .b32 %r<2>; call (%r1), f, (%r0, %r0, %r0); ret; }",
    ".visible .entry k() { .reg .b32 %r<2>; L: .branchtargets; ret; }",
    ".visible .entry k() { L: .branchtargets A, B; brx.idx 0, L; ret; }",
    ".global .b8 table[4294967295];\n.visible .entry k() { ret; }",
    ".section\t.debug_str\n{\ninfo: .b8 300, 999, 0\n}\n.visible .entry k() { ret; }",
]


# Pointers that are none: null, before it, and at the ends of the windows of generic addresses.
WILD = (0, 2**64 - 4, 2**64 - 16, 2**56 - 4, 2**57 - 4, 2**58 - 4)

NUMBER, WORD, DOTTED = map(re.compile, (r"(?<![\w.])-?\d+\b", r"\.?[\w%$]+", r"\.[a-z]\w*"))


def _some(pattern: re.Pattern[str], text: str, rng: random.Random) -> re.Match[str] | None:
    """One of the places that match: the first behind a place at random."""
    return pattern.search(text, rng.randrange(len(text) + 1)) or pattern.search(text)


def mutant(text: str, rng: random.Random) -> str:
    """The text with one to four things wrong with it."""
    for _ in range(rng.randint(1, 4)):
        how = rng.randrange(9)
        at = rng.randrange(len(text) + 1)
        if how == 0:
            text = text[:at] + rng.choice(PIECES) + text[at:]
        elif how == 1:
            text = text[:at] + text[at + rng.randint(1, 12) :]
        elif how == 2:
            if match := _some(NUMBER, text, rng):
                text = text[: match.start()] + rng.choice(NUMBERS) + text[match.end() :]
        elif how == 3:
            lines = text.split("\n")
            n = rng.randrange(len(lines))
            lines[n : n + 1] = [lines[n]] * 2 if rng.random() < 0.5 else []
            text = "\n".join(lines)
        elif how == 4:
            if (one := _some(WORD, text, rng)) and (other := _some(WORD, text, rng)):
                text = text[: one.start()] + other[0] + text[one.end() :]
        elif how == 5:
            text = text[: rng.randrange(len(text) + 1)] if rng.random() < 0.2 else text
        elif how == 6:
            if (one := _some(DOTTED, text, rng)) and (other := _some(DOTTED, text, rng)):
                text = text[: one.start()] + (other[0] if rng.random() < 0.7 else "") + text[one.end() :]
        elif how == 7:
            lines = text.split("\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            text = "\n".join(lines)
        else:
            text = text[:at] + chr(rng.randrange(1, 256)) + text[at + 1 :]
    return text


REGISTER = re.compile(r"%(?:rd|rs|r|p|f|fd|h|hh)\d+\b")
WHOLE = re.compile(r"(?<![\w.%])\d+(?=[;,\]\s])")
STATEMENT = re.compile(r"(?m)^\s+(?:@!?%p\d+ )?[a-z][\w.:]+ [^{}]*;$")


def grammatical(text: str, rng: random.Random) -> str:
    """The text with one to four things changed, each to another of its kind, so that the grammar still holds: a
    register of the same class, a number, a statement that goes, comes twice or changes places."""
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.5:
            one = _some(REGISTER, text, rng)
            same = one and re.compile(re.escape(one[0].rstrip("0123456789")) + r"\d+\b")
            other = same and _some(same, text, rng)
        elif rng.random() < 0.5:
            one, other = _some(WHOLE, text, rng), None
            if one:
                number = rng.choice(("0", "1", "3", "4", "8", "32", "64", "4096", str(2**31 - 1), str(2**32 - 1)))
                text = text[: one.start()] + number + text[one.end() :]
        else:
            one, other = _some(STATEMENT, text, rng), _some(STATEMENT, text, rng)
            if one and rng.random() < 0.3:  # it goes, or comes twice
                text, other = text[: one.start()] + one[0] * rng.choice((0, 2)) + text[one.end() :], None
        if one and other:
            text = text[: one.start()] + other[0] + text[one.end() :]
    return text


class TooLong(BaseException):
    """Not an Exception: nothing on the way may catch it."""


def _alarm(*_: object) -> None:
    raise TooLong


def attempt(text: str, stage: str) -> str:
    """What becomes of one text: "ran", "refused", or a traceback."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of this process's work: the machine may be busy with others
    signal.alarm(PATIENCE)  # and if it waits, and works no more
    try:
        if stage == "parse":
            ptx.parse(text)
            return "ran"
        module = engine.Module(text)
        for name in module.kernel_names:
            info = module.kernel(name)
            if stage == "run" and info.static_shared <= 48 << 10:
                data = np.zeros(1 << 16, np.uint8)
                marks = np.ones(1 << 16, np.uint8)
                memory = [Region(data.ctypes.data, data.size, "data", marks)]
                for base in (data.ctypes.data, *WILD):
                    params = bytearray(info.param_bytes)
                    for _, size, _, offset in info.params:
                        number = base if size == 8 else 64
                        params[offset : offset + size] = number.to_bytes(8, "little")[:size].ljust(size, b"\0")
                    launch_kernel(module, name, (2,), (64,), 1024, bytes(params), memory, instructions=20_000)
        return "ran"
    except UserError:
        return "refused"
    except TooLong:
        return f"more than {SECONDS} s of work, or {PATIENCE} s:\n{traceback.format_exc()}"
    except Exception:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--stage", choices=("parse", "lower", "run"), default="parse")
    parser.add_argument("--grammatical", action="store_true", help="only changes that leave the grammar whole")
    parser.add_argument("--from", dest="first", type=int, default=0, help="skip the mutants before this one")
    args = parser.parse_args()
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _alarm)
    engine.instructions()  # compiles the machine, if nobody has yet: that is none of the texts' time
    sources = [path.read_text() for path in sorted(SEEDS.glob("*.ptx"))]
    outcomes = {"ran": 0, "refused": 0}
    cases = [(f"fixed {n}", text) for n, text in enumerate(FIXED)] if not args.first else []
    for n in range(args.first, args.count):
        rng = random.Random(f"{args.seed} {n}")
        make = grammatical if args.grammatical else mutant
        cases.append((f"--seed {args.seed} --from {n}", make(rng.choice(sources), rng)))
    for name, text in cases:
        print(json.dumps({"trying": name}), file=sys.stderr, flush=True)  # what was tried when the process crashed
        outcome = attempt(text, args.stage)
        if outcome in outcomes:
            outcomes[outcome] += 1
        else:
            print(json.dumps({"case": name, "outcome": outcome, "text": text[:400]}), flush=True)
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
