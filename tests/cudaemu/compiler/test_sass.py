"""Machine code: listings read, instructions sorted by kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import kernels
from common.verbs import sass as verb
from cudaemu.compiler import sass
from cudaemu.errors import UserError

LISTING = """
\t\tFunction : _Z3onePf
\t.headerflags\t@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM80 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM80)"
        /*0000*/                   MOV R1, c[0x0][0x28] ;                         /* 0x00000a0000017a02 */
                                                                                  /* 0x000fe40000000f00 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;               /* 0x0000000402047981 */
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;               /* 0x000000040c04723c */
        /*0030*/                   LDSM.16.M88.4 R8, [R3] ;                       /* 0x000000000308783b */
        /*0040*/              @UP0 LDS.128 R8, [R3] ;                             /* 0x000000000308783b */
        /*0050*/                   HADD2.F32 R5, -RZ, R4.H0_H0 ;                  /* 0x000000000308783b */
        /*0060*/                   EXIT ;                                         /* 0x000000000000794d */
        /*0070*/                   BRA 0x70;                                      /* 0xfffffff000007947 */
        /*0080*/                   NOP;                                           /* 0x0000000000007918 */
"""


def test_a_listing_is_read_and_sorted_by_kind():
    ((name, instructions),) = sass.parse(LISTING).items()
    assert name == "_Z3onePf"
    assert instructions[1].text == "@!P0 LDG.E.128.CONSTANT R4, [R2.64]"
    opcodes = ["MOV", "LDG.E.128.CONSTANT", "HMMA.16816.F32", "LDSM.16.M88.4", "LDS.128", "HADD2.F32", "EXIT"]
    assert [i.opcode for i in instructions] == opcodes
    assert {group: counter.total() for group, counter in sass.histogram(instructions).items()} == {
        "tensor cores": 1,
        "ldmatrix": 1,
        "shared load": 1,
        "global load": 1,
        "conversion": 1,
        "integer, address": 1,
        "control": 1,
    }
    assert [hex(i.address) for i in verb.select(instructions, "LD[GS]")] == ["0x10", "0x30", "0x40"]
    with pytest.raises(UserError, match=r"--grep .*'\('"):
        verb.select(instructions, "(")


INLINED = """
//--------------------- .text._Z3onePf --------------------------
\t.section\t.text._Z3onePf,"ax",@progbits
.text._Z3onePf:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
\t//## File "/a/kernel.cu", line 61
        /*0010*/                   STS.U16 [R11], R24 ;
\t//## File "/b/cuda_fp16.hpp", line 708 inlined at "/b/cuda_fp16.hpp", line 138
\t//## File "/b/cuda_fp16.hpp", line 138 inlined at "/a/kernel.cu", line 67
\t//## File "/a/kernel.cu", line 67
        /*0020*/              @!PT LDS RZ, [RZ] ;
.L_x_0:
        /*0030*/                   LDS.64 R6, [R15] ;
\t//## File "/b/mma.hpp", line 9
        /*0040*/                   EXIT ;
//--------------------- .text._Z3twov --------------------------
.text._Z3twov:
        /*0000*/                   EXIT ;
"""


def test_lines_are_those_of_the_source_itself():
    found = sass.parse_lines(INLINED, Path("/a/kernel.cu"))
    assert [(line, i.text) for line, i in found["_Z3onePf"]] == [
        (0, "LDC R1, c[0x0][0x28]"),
        (61, "STS.U16 [R11], R24"),
        (67, "@!PT LDS RZ, [RZ]"),
        (67, "LDS.64 R6, [R15]"),
        (0, "EXIT"),
    ]
    assert [line for line, _ in found["_Z3twov"]] == [0]


def test_the_lines_of_a_stage():
    """The same instructions as without lines, and each shared load of 03 in one of four lines of its inner loop."""
    kernel = kernels.load("03").kernel()
    (code,) = sass.by_line(kernel.source, kernel.defines, "80").values()
    (plain,) = sass.functions(kernel.source, kernel.defines, "80").values()
    assert [i.opcode for _, i in code][: len(plain)] == [i.opcode for i in plain]
    lines = Counter(line for line, i in code if i.opcode == "LDS.128")
    texts = kernel.source.read_text().splitlines()
    assert set(lines.values()) == {16} and all("_tile" in texts[line - 1] for line in lines) and len(lines) == 4


def test_the_code_of_a_stage():
    """03_thread_tile: 4 reads of 128 bits and 64 products for each of 16 k; every opcode has a kind."""
    kernel = kernels.load("03").kernel()
    (instructions,) = sass.functions(kernel.source, kernel.defines, "80").values()
    found = sass.histogram(instructions)
    assert found["shared load"]["LDS.128"] == 64 and found["fp32"]["FFMA"] == 1024 and "other" not in found


def test_the_verb_prints_kinds_or_lines(command):
    status, out, _ = command("kernels.03_thread_tile", "sass", "--grep", r"^LDS\.128")
    lines = out.splitlines()
    assert status == 0 and lines[0].endswith("64 instructions") and len(lines) == 65
    status, out, _ = command("kernels.03_thread_tile", "sass")
    assert status == 0 and "1024 FFMA" in out and "other" not in out and max(map(len, out.splitlines())) <= 80


def test_the_main_loop_is_the_innermost_with_the_most_tensor_instructions():
    texts = [
        "MOV R0, R1",
        "LDG R2, [R4]",
        "HMMA R0, R1, R2, R0",
        "@P0 BRA 0x20",
        "IADD3 R0, R1",
        "@!P1 BRA 0x10",
        "EXIT",
    ]
    code = [sass.Instruction(16 * n, text) for n, text in enumerate(texts)]
    assert [i.text for i in sass.main_loop(code)] == texts[2:4]
    more = [*code[:3], sass.Instruction(48, "HMMA R4, R1, R2, R4"), sass.Instruction(64, "@P0 BRA 0x10")]
    rest = ["MOV R0, R1", "HMMA R0, R1, R2, R0", "@P0 BRA 0x60"]  # shorter, with fewer
    more += [sass.Instruction(80 + 16 * n, text) for n, text in enumerate(rest)]
    assert sass.main_loop(more) == more[1:5]
    assert sass.main_loop([code[1], code[4], sass.Instruction(0x50, "@!P1 BRA 0x10")]) == []  # a loop of copies
