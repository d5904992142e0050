"""What each compute capability has, and what is not emulated: the table of features.py, and its use at load."""

from __future__ import annotations

import contextlib
import os
import subprocess

import numpy as np
import pytest

import cudaemu
from cudaemu import engine, features
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from cudaemu.hardware import Arch
from cudaemu.lower.core import RULES
from cudaemu.ptx import PtxError
from docs import faithful

SUMS = "{%f0, %f1, %f2, %f3}"
A, B = "{%r0, %r1, %r2, %r3}", "{%r4, %r5}"
SCALES = "%r6, {0, 0}, %r7, {0, 0}"
TENSOR = "cp.async.bulk.tensor.1d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
GATHER = TENSOR.replace("1d", "2d").replace("tile.", "tile::gather4.") + " [s], [%rd0, {%r0, %r1, %r2, %r3, %r4}], [s];"
EXAMPLES = {
    "tcgen05 (tensor memory, and products there)": "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], 32;",
    "wgmma of a sparse A (.sp)": "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 "
    f"{SUMS}, %rd0, %rd1, %r0, 0, 1, 1, 1, 0, 0;",
    "mma of a sparse A with block_scale": "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4"
    f".block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 {SUMS}, {A}, {A}, {SUMS}, %r8, 0, {SCALES};",
    "mma.m8n8k4 of fp16": "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 "
    "{%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6, %r7}, {%r0, %r1, %r2, %r3};",
    "multimem (memory of several GPUs)": "multimem.ld_reduce.relaxed.gpu.global.add.f32 %f0, [%rd0];",
    "cp.async.bulk.tensor with im2col": f"{TENSOR} [s], [%rd0, {{%r0, %r1, %r2}}], [s], {{%h0}};".replace(
        "1d.shared::cta.global.tile.", "3d.shared::cluster.global.im2col."
    ),
    "cp.async.bulk.tensor with tile::gather4 or tile::scatter4": GATHER,
    "cp.async.bulk with cta_group": f"{TENSOR}.cta_group::2 [s], [%rd0, {{%r0}}], [s];".replace("::cta.", "::cluster."),
    "cp.async.bulk with cp_mask": "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd0], [s], 16, %h0;",
    "st.bulk": "st.bulk.weak.shared::cta [%r0], 64, 0;",
    "cvt.rs (stochastic rounding)": f"cvt.rs.satfinite.e4m3x4.f32 %r0, {SUMS}, %r1;",
    "cvt with a scale (.scaled)": "cvt.rn.scaled::n2::ue8m0.bf16x2.e4m3x2 %r0, %h0, %h1;",
    "add, sub and fma of fp32 with fp16 or bf16": "add.f32.f16 %f0, %h0, %f1;",
    "textures of cubes": f"tex.cube.v4.f32.f32 {SUMS}, [%rd0, {SUMS}];",
    "textures of several samples": "tex.2dms.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%rd0, {%r4, %r5, %r6, %r7}];",
    "txq, suq, sured": "txq.width.b32 %r0, [%rd0];",
    "istypep": "istypep.texref %p0, %rd0;",
    "lop3 with a predicate": "lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0x3f, %p1;",
    "alloca, stacksave, stackrestore": "alloca.u64 %rd0, 16, 8;",
    "video instructions of one value (vadd, vmad, ...)": "vadd.u32.u32.u32 %r0, %r1, %r2;",
    "wgmma": "wgmma.fence.sync.aligned;",
    "setmaxnreg": "setmaxnreg.inc.sync.aligned.u32 64;",
    "mma with block_scale": "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0 "
    f"{SUMS}, {A}, {B}, {SUMS}, {SCALES};",
    "mma with kind::f8f6f4": "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32 "
    f"{SUMS}, {A}, {B}, {SUMS};",
    "ldmatrix and stmatrix of 8 bits": "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [s], {%r0};",
    "clusterlaunchcontrol with multicast": "clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes"
    ".multicast::cluster::all.b128 [%rd0], [%rd1];",
    "clusterlaunchcontrol": "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %q0;",
    "redux.sync of fp32": "redux.sync.max.f32 %f0, %f1, -1;",
    "conversions of fp4, fp6 and ue8m0, and between bf16 and fp8": "cvt.rn.satfinite.e2m3x2.f32 %h0, %f0, %f1;",
    "mma of fp8": f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {SUMS}, {A}, {B}, {SUMS};",
    "clusters (barrier.cluster, mapa, getctarank)": "barrier.cluster.arrive.aligned;",
    "bulk copies (TMA)": "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], 16;",
    "st.async, red.async": "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r0], %r1, [%r2];",
    "elect.sync": "elect.sync %r0|%p0, -1;",
    "griddepcontrol": "griddepcontrol.wait;",
    "f32x2 arithmetic": "fma.rn.f32x2 %rd0, %rd1, %rd2, %rd3;",
}
MNEMONICS = [
    *["alloca", "applypriority", "bmsk", "brkpt", "clusterlaunchcontrol", "createpolicy", "discard", "dp2a", "dp4a"],
    *["elect", "fns", "getctarank", "griddepcontrol", "isspacep", "istypep", "ldmatrix", "ldu", "lop3", "match"],
    *["mbarrier", "mma", "movmatrix", "multimem", "nanosleep", "pmevent", "prefetch", "prefetchu", "redux"],
    *["setmaxnreg", "shf", "stackrestore", "stacksave", "stmatrix", "suld", "suq", "sured", "sust", "szext", "tanh"],
    *["tcgen05", "tensormap", "testp", "tex", "tld4", "txq", "vabsdiff", "vabsdiff2", "vabsdiff4", "vadd", "vadd2"],
    *["vadd4", "vavrg2", "vavrg4", "vmad", "vmax", "vmax2", "vmax4", "vmin", "vmin2", "vmin4", "vset", "vset2"],
    *["vset4", "vshl", "vshr", "vsub", "vsub2", "vsub4", "wgmma", "wmma"],
]
EXAMPLES_OF = [pytest.param(feature, EXAMPLES[feature.name], id=feature.name) for feature in features.FEATURES]


def module(target: str, statement: str, reached: bool = True) -> str:
    jump = "" if reached else "setp.ne.u32 %p3, %tid.x, %tid.x; @!%p3 bra END;"
    return f""".version 9.2
.target sm_{target}
.address_size 64
.file 1 "kernel.cu"
.visible .entry k(.param .u64 p)
{{
.reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .f32 %f<8>; .reg .b64 %rd<8>; .reg .b128 %q<2>;
.shared .align 128 .b8 s[256];
.loc 1 12 3
{jump}
{statement}
END: ret;
}}
"""


@pytest.mark.parametrize(("feature", "statement"), EXAMPLES_OF)
def test_what_counts_as_lacking_is_what_lowering_does_not_know(feature, statement):
    assert features.of(statement) is feature
    target = Arch.of(feature.least[0]).nvcc
    places = engine.Module(module(target, statement)).kernel("k").instructions
    (place,) = [place for place in places if place.text == statement[:-1]]
    assert feature.emulated == (not place.problem), place.problem
    said = features.check(module(target, statement))
    assert bool(said) != feature.emulated
    assert all(line.startswith(f"kernel.cu(12): {statement.split()[0]} is not emulated") for line in said), said


def test_every_mnemonic_that_has_no_rule_is_listed():
    """Those of the PTX ISA 9.3 ("Instruction Set"), but for the ones that all programs use."""
    lacking = [name for name in MNEMONICS if name not in RULES]
    listed = {name: features.of(f"{name}.u32 %r0;") for name in lacking}
    assert lacking and not [name for name, feature in listed.items() if feature is None or feature.emulated]


@pytest.mark.full
@pytest.mark.parametrize(("feature", "statement"), EXAMPLES_OF)
def test_ptxas_says_the_same(feature, statement, tmp_path):
    """... of the targets that people compile for."""
    try:
        ptxas = toolchain.find_tool("ptxas", toolchain.find_nvcc())
    except UserError as error:
        pytest.skip(str(error))
    for target in ("80", "90", "90a", "100", "100a", "100f", "103a", "120", "120a", "120f"):
        (tmp_path / "k.ptx").write_text(module(target, statement))
        done = subprocess.run(
            [ptxas, f"-arch=sm_{target}", tmp_path / "k.ptx", "-o", os.devnull], capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        if "Unsupported .version" in said:
            pytest.skip(said.strip())  # an older ptxas than the PTX ISA's that the table was made of
        assert (done.returncode == 0) == feature.has(Arch.of(target)), (target, said)


def test_a_program_is_told_at_load_and_runs_as_long_as_it_can(capfd):
    text = module("100a", EXAMPLES["tcgen05 (tensor memory, and products there)"], reached=False)
    assert cudaemu.run_ptx(text, "k", 1, 32, [np.zeros(1, np.int32)], arch="10.0a").ok
    said = capfd.readouterr().err
    opcode = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
    assert f"kernel.cu(12): {opcode} is not emulated: a kernel that executes it ends there. mma.sync" in said
    text = text.replace("@!%p3 bra END;", "").replace("tcgen05", "@!%p3 tcgen05")
    with pytest.raises(UserError, match=r"kernel.cu:12: the emulator cannot execute .@!%p3 tcgen05.alloc.* mma.sync"):
        cudaemu.run_ptx(text, "k", 1, 32, [np.zeros(1, np.int32)], arch="10.0a")


@pytest.mark.parametrize(("target", "arch"), [("90", "9.0"), ("100a", "10.0"), ("120", "12.0")])
def test_what_a_target_lacks_is_refused_at_load(target, arch):
    text = module(target, EXAMPLES["mma with block_scale"], reached=False)
    with pytest.raises(UserError, match=rf"kernel.cu\(12\): .target sm_{target} has no mma.*") as said:
        cudaemu.run_ptx(text, "k", 1, 32, [np.zeros(1, np.int32)], arch=arch)
    assert "mma with block_scale needs compute capability 12.0a: --arch 12.0a" in str(said.value)


def test_the_pages_are_what_the_tables_say():
    document = faithful.DOCUMENT.read_text()
    assert faithful.PAGE.read_text() == faithful.page(), "python -m docs.faithful writes it"
    assert document == faithful.with_table(document), "python -m docs.faithful writes it"


@pytest.mark.parametrize(("feature", "statement"), EXAMPLES_OF)
def test_what_is_cut_is_unknown_and_no_error_of_ours(feature, statement):
    """Without one of its parts, or of its operands, an instruction is another one, or none."""
    opcode, _, operands = statement[:-1].partition(" ")
    parts, given = opcode.split("."), operands.split(", ")
    texts = [f"{'.'.join(parts[:n] + parts[n + 1 :])} {operands};" for n in range(1, len(parts))]
    texts += [f"{opcode} {', '.join(given[:n] + given[n + 1 :])};" for n in range(len(given))]
    for text in texts:
        with contextlib.suppress(PtxError):
            engine.Module(module("90", text)).kernel("k")
