"""Machine code (SASS): a kernel's listing, its instructions sorted by kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cudaemu.compiler import ptxas, toolchain
from cudaemu.hardware import Arch
from cudaemu.units import TENSOR_UNITS

# The groups of opcodes; an opcode belongs to the first group whose pattern matches its beginning.
GROUPS = (
    ("tensor cores", "|".join(opcode for unit in TENSOR_UNITS for opcode in unit.opcodes)),
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
    (
        "integer, address",
        r"IMAD|IADD|LEA|SHF|LOP|ISET|IMNMX|VIMNMX|ISETP|SEL|PRMT|IABS|POPC|FLO|SGXT|BMSK|VIADD|"
        r"UIADD|UIMAD|ULEA|USHF|ULOP|UISET|USEL|UPRMT|UMOV|R2UR|S2R|CS2R|S2UR|P2R|R2P|PLOP|UPLOP|"
        r"MOV|UFLO|UPOPC|USGXT|UBMSK|ISCADD",
    ),
    ("control", r"BRA|EXIT|RET|CALL|BRX|JMP|KILL|BREAK|YIELD|NOP|BPT|WARPSYNC|BMOV"),
)


# A function's name, or an instruction, in the output of `cuobjdump -sass`.
_LISTED = re.compile(r"^\s*(?:Function\s*:\s*(\S+)|/\*([0-9a-f]{4,})\*/\s+(.+?)\s*;?\s*/\*)", re.MULTILINE)


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
        return _group(self.opcode)


@lru_cache(maxsize=1024)
def _group(opcode: str) -> str:
    return next((name for name, pattern in GROUPS if re.match(pattern, opcode)), "other")


def parse(listing: str) -> dict[str, list[Instruction]]:
    """`cuobjdump -sass` output -> function (mangled name) -> instructions; padding after the end left out."""
    functions: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for match in _LISTED.finditer(listing):
        if match[1]:
            current = functions.setdefault(match[1], [])
        else:
            current.append(Instruction(int(match[2], 16), match[3].strip()))
    for instructions in functions.values():
        while instructions and instructions[-1].opcode == "NOP":  # fills up the line
            instructions.pop()
        if instructions and instructions[-1].opcode == "BRA":  # branches to itself: nothing runs on past the end
            instructions.pop()
    return {name: instructions for name, instructions in functions.items() if instructions}


def parse_lines(listing: str, source: Path) -> dict[str, list[tuple[int, Instruction]]]:
    """`nvdisasm -gi` output -> function (mangled name) -> (line of `source`, instruction).

    The line is the outermost one of the source, where headers or other functions were inlined; 0 if there is none."""
    functions: dict[str, list[tuple[int, Instruction]]] = {}
    current: list[tuple[int, Instruction]] = []
    line = 0
    for text in listing.splitlines():
        if match := re.match(r"\.text\.(\S+):$", text):
            current, line = functions.setdefault(match[1], []), 0
        elif match := re.match(r'\s*//## File "([^"]+)", line (\d+)( inlined at)?', text):
            if match[3] is None:  # the end of a chain of inlined calls
                line = int(match[2]) if Path(match[1]) == source else 0
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.+?)\s*;", text):
            current.append((line, Instruction(int(match[1], 16), match[2])))
    return functions


def histogram(instructions: Sequence[Instruction]) -> dict[str, Counter[str]]:
    """group -> opcode -> how often it occurs in the code (not: is executed), groups in the order of GROUPS."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in (*(name for name, _ in GROUPS), "other")}
    for instruction in instructions:
        counts[instruction.group][instruction.opcode] += 1
    return {name: counter for name, counter in counts.items() if counter}


def main_loop(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The loop with the most tensor instructions, of several such the shortest: from the target of its backward branch
    to the branch; [] if there is none."""
    number = {i.address: at for at, i in enumerate(instructions)}
    found: list[list[Instruction]] = []
    for at, i in enumerate(instructions):
        target = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", i.text)
        start = number.get(int(target[1], 16), at) if target else at
        if start < at:
            found.append(list(instructions[start : at + 1]))

    def tensor(body: Sequence[Instruction]) -> int:
        return sum(i.group == "tensor cores" for i in body)

    return max((body for body in found if tensor(body)), key=lambda body: (tensor(body), -len(body)), default=[])


def functions(source: Path, defines: Mapping[str, str], arch: str | Arch) -> dict[str, list[Instruction]]:
    """The machine code of a kernel source for a compute capability: function (mangled name) -> its instructions."""
    return parse(toolchain.disassemble(ptxas.cubin(source, defines, arch).path))


def by_line(source: Path, defines: Mapping[str, str], arch: str | Arch) -> dict[str, list[tuple[int, Instruction]]]:
    """Likewise, each instruction after the line of the source that it comes from (0: none)."""
    listing = toolchain.disassemble_with_lines(ptxas.cubin(source, defines, arch).path)
    return parse_lines(listing, source.resolve())
