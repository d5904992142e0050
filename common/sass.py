"""Verb `sass`: the machine code that a stage's kernel becomes: what it is made of, and the listing."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from common import cli, resources, terminal, toolchain
from common.errors import UserError
from common.stage import Stage

EXAMPLES = ("--full", "--grep 'LDS|STS' --arch 9.0")

# What readers of this course look for first; an opcode belongs to the first group whose pattern matches its beginning.
GROUPS = (
    ("tensor cores", r"HMMA|IMMA|DMMA|BMMA|QMMA|HGMMA|IGMMA|QGMMA|WARPGROUP"),
    ("ldmatrix", r"LDSM|MOVM"),
    ("global -> shared", r"LDGSTS|UTMA|UBLKCP|LDGDEPBAR"),
    ("shared load", r"LDS"),
    ("shared store", r"STS"),
    ("global load", r"LDG|LD\b"),
    ("global store", r"STG|ST\b"),
    ("local (spills, arrays)", r"LDL|STL"),
    ("constant load", r"LDC|ULDC|LDCU"),
    ("atomic", r"ATOM|RED(?!UX)|UATOM"),
    ("fp32", r"FFMA|FADD|FMUL|FMNMX|FSET|FSEL|FCHK|FSWZ|MUFU"),
    ("conversion", r"HADD2\.F32|F2F|F2I|I2F|F2FP|I2I|FRND|I2FP|F2IP"),
    ("fp16, bf16", r"HFMA2|HADD2|HMUL2|HMNMX2|HSET2|HSETP2"),
    ("barrier, wait", r"BAR|DEPBAR|WARPSYNC|SYNCS|MEMBAR|FENCE|ERRBAR|UCGABAR|BSYNC|BSSY|NANOSLEEP"),
    ("shuffle, vote", r"SHFL|VOTE|REDUX|MATCH"),
    ("integer, address", r"IMAD|IADD|LEA|SHF|LOP|ISET|IMNMX|VIMNMX|ISETP|SEL|PRMT|IABS|POPC|FLO|SGXT|BMSK|VIADD|"
                         r"UIADD|UIMAD|ULEA|USHF|ULOP|UISET|USEL|UPRMT|UMOV|R2UR|S2R|CS2R|S2UR|P2R|R2P|PLOP|UPLOP|"
                         r"MOV|UFLO|UPOPC|USGXT|UBMSK|ISCADD"),
    ("control", r"BRA|EXIT|RET|CALL|BRX|JMP|KILL|BREAK|YIELD|NOP|BPT|WARPSYNC|BMOV"),
)


@dataclass(frozen=True)
class Instruction:
    address: int
    text: str  # "@P0 LDG.E.128 R4, [R2.64]"

    @property
    def opcode(self) -> str:
        """With its modifiers, without the predicate: "LDG.E.128"."""
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0].rstrip(";")

    @property
    def group(self) -> str:
        return next((name for name, pattern in GROUPS if re.match(pattern, self.opcode)), "other")


def parse(listing: str) -> dict[str, list[Instruction]]:
    """`cuobjdump -sass` output -> function (mangled name) -> instructions; padding after the end left out."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in listing.splitlines():
        if match := re.match(r"\s*Function\s*:\s*(\S+)", line):
            current = functions.setdefault(match[1], [])
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.+?)\s*;?\s*/\*", line):
            current.append(Instruction(int(match[1], 16), match[2].strip()))
    for instructions in functions.values():
        while instructions and instructions[-1].opcode == "NOP":  # fills up the line
            instructions.pop()
        if instructions and instructions[-1].opcode == "BRA":  # branches to itself: nothing runs on past the end
            instructions.pop()
    return {name: instructions for name, instructions in functions.items() if instructions}


def histogram(instructions: Sequence[Instruction]) -> dict[str, Counter]:
    """group -> opcode -> how often it stands in the code (not: is executed), groups in the order of GROUPS."""
    counts: dict[str, Counter] = {name: Counter() for name, _ in GROUPS} | {"other": Counter()}
    for instruction in instructions:
        counts[instruction.group][instruction.opcode] += 1
    return {name: counter for name, counter in counts.items() if counter}


def select(instructions: Sequence[Instruction], pattern: str | None) -> list[Instruction]:
    """The instructions whose text matches; UserError for a pattern that is no regular expression."""
    try:
        return [i for i in instructions if re.search(pattern or "", i.text)]
    except re.error as error:
        raise UserError(f"--grep: '{pattern}' is not a regular expression: {error}") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cli.add_kernel_arguments(parser)
    resources.add_arch(parser)
    parser.add_argument("--full", action="store_true", help="print the whole listing")
    parser.add_argument("--grep", metavar="REGEX", help="print only the instructions that match")


def run(stage: Stage, args: argparse.Namespace) -> int:
    from common.emulator.report import readable

    gpus = resources.select_gpus(args.arch or [resources.GPUS[0].capability])
    for kernel in cli.kernels(stage, args):
        for gpu in gpus:
            with terminal.progress(f"compiling {kernel.label} for {gpu.capability}"):
                cubin = toolchain.cubin(kernel.source, kernel.defines, gpu.arch)
                functions = parse(toolchain.disassemble(cubin.path))
            for name, instructions in functions.items():
                title = f"{kernel.label}, {readable(name)} for {gpu.capability}"
                if args.full or args.grep:
                    _print_listing(title, select(instructions, args.grep))
                else:
                    terminal.out.print(_table(title, instructions))
    return 0


def _print_listing(title: str, instructions: Sequence[Instruction]) -> None:
    terminal.out.print(f"{title}: {len(instructions)} instructions", style="bold", markup=False)
    for instruction in instructions:
        terminal.out.print(f"{instruction.address:05x}  {instruction.text}", markup=False, soft_wrap=True)


def _table(title: str, instructions: Sequence[Instruction]) -> Table:
    made = Table(title=f"\n{title}: {len(instructions)} instructions", caption_justify="left", **terminal.PLAIN,
                 caption="how often each stands in the code, not how often it runs; --full prints the listing")
    made.add_column("kind", no_wrap=True)
    made.add_column("number", justify="right")
    made.add_column("instructions")
    for group, opcodes in histogram(instructions).items():
        made.add_row(group, str(opcodes.total()), ", ".join(f"{n} {opcode}" for opcode, n in opcodes.most_common()))
    return made
