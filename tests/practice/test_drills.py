"""Drills: what they call right is what the emulator counts, moves and waits for, and what other code says."""

from __future__ import annotations

import linecache
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import cudaemu
from common import course, notebook
from common.figures import attention_tiles, fragments, layout
from common.practice.drills import hopper, sheets, threads
from common.practice.drills.asking import ask
from common.practice.drills.fragments import e4m3
from common.practice.drills.question import COUNT, KINDS, LEVELS, Kind, Question, questions, shown
from common.problems.quantize import ORDER
from cudaemu import engine
from cudaemu.errors import UserError
from tests.cudaemu import warpgroups
from tests.cudaemu.machine import kinds, launch, launch_kernel
from tests.cudaemu.test_bulk import MOST, box

ROOT = Path(__file__).parents[2]
BOXES = ROOT / "tests" / "cudaemu" / "boxes.cu"
SEEDS = range(3)
EACH = 8  # questions of a kind and seed


def asked(kind: str) -> list[Question]:
    found = {q.text + q.code: q for seed in SEEDS for q in questions(kind, seed, EACH)}
    assert found
    return list(found.values())


def numbers(text: str) -> list[int]:
    return [int(word.replace(",", "")) for word in re.findall(r"(?<!\w)\d[\d,]*(?!\w)", text)]


# ---- what the reader is shown, compiled and run ----

HEAD = """#include <cuda_fp16.h>
template <class T> __device__ T made() { return T(); }
template <> __device__ half made<half>() { return __float2half(1.0f); }
"""


def kernel(name: str, question: Question) -> str:
    """A kernel that does what a question's code does, with an array in shared memory or in global memory."""
    declared, _, access = question.code.rpartition("\n")
    shared = re.match(r"__shared__ (\w+)", declared)
    type_ = shared[1] if shared else re.search(r"x points to (\w+)", question.text)[1]
    before = after = ""
    if shared:  # written before, and read after, so that nvcc keeps the array
        before = "for (int i = threadIdx.x; i < int(sizeof tile / 4); i += 32) reinterpret_cast<int *>(tile)[i] = i;"
        before += " __syncthreads();"
    if access.startswith("value"):
        after = "out[threadIdx.x] = value;"
        value = f"{type_} value;"
    else:
        value = f"{type_} value = out[threadIdx.x];"
        after = f"__syncthreads(); out[threadIdx.x] = reinterpret_cast<{type_} *>(tile)[n];" if shared else ""
    guard = "if (threadIdx.x < 32)"
    return f"""__global__ void {name}(void *x_, void *out_, int n) {{
      auto x = static_cast<{type_} *>(x_), out = static_cast<{type_} *>(out_);
      {declared} {before}
      {value} {guard} {{
        {access}  // {name}
      }} {after} }}"""


@pytest.fixture(scope="module")
def memory() -> dict[str, cudaemu.Report]:
    """Every question about banks and sectors, its code compiled by nvcc and run in the emulator with a trace."""
    every = {f"{kind}{n}": q for kind in ("banks", "wavefronts", "sectors") for n, q in enumerate(asked(kind))}
    library = cudaemu.load(HEAD + "\n".join(kernel(name, q) for name, q in every.items()), sanitize=False)
    x, out = np.zeros(1 << 20, np.uint8), np.zeros(1 << 10, np.uint8)
    return {name: library.launch(name, 1, 32, x, out, 0, trace=cudaemu.Trace()) for name in every}


def of_line(report: cudaemu.Report, text: str) -> cudaemu.Counters:
    """The counters of the line with that comment."""
    (found,) = (
        each for (file, line), each in report.lines.items() if linecache.getline(file, line).endswith(f"{text}\n")
    )
    return found


def test_banks_are_where_the_access_goes(memory):
    for n, question in enumerate(asked("banks")):
        rows = memory[f"banks{n}"].trace
        reads = rows[(rows["space"] == 1) & (rows["kind"] == 0)]
        assert len(reads) == 32 and {int(a) // 4 % 32 for a in reads["addr"]} == {question.parts["bank"]}, question


def test_wavefronts_are_those_that_the_emulator_counts(memory):
    met = set()
    for n, question in enumerate(asked("wavefronts")):
        counters = of_line(memory[f"wavefronts{n}"], f"// wavefronts{n}")
        counted = counters.shared_store_wavefronts + counters.shared_load_wavefronts
        assert counted == question.parts["wavefronts"], question
        met.add(counted)
    assert len(met) > 4


def test_sectors_are_those_that_the_emulator_counts(memory):
    for n, question in enumerate(asked("sectors")):
        report = memory[f"sectors{n}"]
        counters = of_line(report, f"// sectors{n}")
        rows, _ = report.accesses("x_")
        load = question.code.startswith("value")
        counted = counters.global_load_sectors if load else counters.global_store_sectors
        assert counted == question.parts["sectors"], question
        base = report.tensors["x_"].base
        lines = {(int(a) - base + byte) // 128 for a, size in zip(rows["addr"], rows["size"]) for byte in range(size)}
        assert base % 256 == 0 and len(lines) == question.parts["lines"], question


def test_shuffles_are_what_the_emulator_computes():
    every = asked("shuffles")
    code = "".join(
        f"__global__ void k{n}(int *out) {{ {q.code} out[threadIdx.x] = value; }}\n" for n, q in enumerate(every)
    )
    library = cudaemu.load(code)
    for n, question in enumerate(every):
        out = np.zeros(32, np.int32)
        assert library.launch(f"k{n}", 1, 32, out).ok
        assert out[numbers(question.text)[-1]] == question.parts[""], question


def test_warps_are_those_of_the_machine():
    code = """__global__ void k(int *out, int x, int y, int z) {
      if (threadIdx.x == x && threadIdx.y == y && threadIdx.z == z) {
        unsigned lane; asm("mov.u32 %0, %%laneid;" : "=r"(lane));
        out[0] = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z) - lane) / 32, out[1] = lane;
      } }"""
    library = cudaemu.load(code)
    for question in asked("warps"):
        *block, x, y, z = numbers(question.text)
        out = np.zeros(2, np.int32)
        library.launch("k", 1, block, out, x, y, z)
        assert out.tolist() == list(question.parts.values()), question


def test_bases_give_the_element_by_xor():
    for question in asked("bases"):
        *bases, place = [tuple(map(int, each)) for each in re.findall(r"\((\d+), (\d+)\)", question.text)]
        offset, found = question.parts["offset"] // 2, (0, 0)
        for bit, (row, column) in enumerate(bases):
            if offset >> bit & 1:
                found = found[0] ^ row, found[1] ^ column
        assert found == place and offset < 1 << len(bases), question


# ---- fragments ----


def test_clocks_of_an_attention_tile_are_those_of_its_instructions():
    """An m64nNk16, or in 8 bits an m64nNk32, takes N / 2 clocks at the full rate."""
    met = set()
    for question in asked("overlap"):
        head_dim, count, _, keys, _, _ = numbers(question.text.partition("D = ")[2])
        depth = 32 if "e4m3" in question.text else 16
        products = head_dim // depth * keys // 2 + keys // depth * head_dim // 2
        weights = 4 * keys
        assert question.parts == {
            "one by one": count * (products + weights),
            "at least": count * max(products, weights),
        }
        met.add(products > weights)
    assert met == {False, True}


def test_each_stage_of_part_iii_has_drills():
    table = (ROOT / "docs" / "practice.md").read_text().partition("| stage | drills |")[2].partition("\n\n")[0]
    named = {row.split("|")[1].strip(): re.findall(r"`([\w-]+)`", row) for row in table.splitlines()[2:]}
    assert list(named) == [stage.name.partition("_")[0] for stage in course.ladder() if stage.name.startswith("h")]
    assert all(named.values()) and {name for row in named.values() for name in row} <= set(KINDS)


def test_fragment_tables_are_those_of_ldmatrix():
    """An 8 × 8 matrix per register, as ldmatrix brings it: A row by row, B (k by n) transposed."""
    tile = np.arange(256, dtype=np.uint16).reshape(16, 16)
    for operand, trans, count, columns in (("A", "", 4, 16), ("B", ".trans", 2, 8)):
        rows = np.array([(lane % 16, lane // 16 * 8) for lane in range(32)])
        out = np.zeros((4, 32), np.uint32)
        registers = ", ".join(f"%r{10 + n}" for n in range(count))
        body = f"""
            .shared .align 16 .b8 s[512];
            mov.u32 %r2, s; mad.lo.u32 %r3, %r1, 16, %r2; mad.wide.u32 %rd20, %r1, 16, %rd1;
            ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd20]; st.shared.v4.u32 [%r3], {{%r4, %r5, %r6, %r7}};
            bar.warp.sync -1;
            mad.wide.u32 %rd21, %r1, 4, %rd2; ld.global.u32 %r8, [%rd21]; add.u32 %r8, %r8, %r2;
            ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r8];
            mad.wide.u32 %rd31, %r1, 4, %rd0;
            """ + "".join(f"st.global.u32 [%rd31+{128 * n}], %r{10 + n};" for n in range(count))
        launch(body, out, tile, (rows[:, 0] * 32 + rows[:, 1] * 2).astype(np.uint32))
        held = np.stack([out & 0xFFFF, out >> 16], -1)[:count].transpose(1, 0, 2)  # [lane][register][half]
        probe = (held // 16 * columns + held % 16).reshape(32, -1)
        found = fragments.fragment(probe, (16, columns), count)
        mine = fragments.mma(operand)
        assert (found.lane == mine.lane).all() and (found.register == mine.register).all(), operand


def test_the_accumulator_of_mma_is_where_the_table_has_it():
    """A row of A times a column of B: only C[row][column] is 1."""
    a, b, c = (fragments.mma(operand) for operand in "ABC")
    body = """
        mad.wide.u32 %rd31, %r1, 16, %rd1; ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd31];
        mad.wide.u32 %rd31, %r1, 8, %rd2; ld.global.v2.u32 {%r14, %r15}, [%rd31];
        mov.f32 %f4, 0f00000000;
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13},
          {%r14, %r15}, {%f4, %f4, %f4, %f4};
        mad.wide.u32 %rd31, %r1, 16, %rd0; st.global.v4.f32 [%rd31], {%f0, %f1, %f2, %f3};"""
    for row, column, k in ((0, 0, 0), (5, 3, 9), (13, 6, 2), (8, 7, 15)):
        left, right = np.zeros((32, 4, 2), np.float16), np.zeros((32, 2, 2), np.float16)
        left[a.lane[row, k], a.register[row, k], k % 2] = 1
        right[b.lane[k, column], b.register[k, column], k % 2] = 1
        out = np.zeros((32, 4), np.float32)
        launch(body, out, left, right)
        assert np.argwhere(out).tolist() == [[c.lane[row, column], c.register[row, column]]]


def test_the_accumulator_of_wgmma_is_where_the_table_has_it():
    """A and B such that C[row][column] = 32 · row + column: each thread stores its registers in their order."""
    columns, rows = 32, 64
    a, b = np.zeros((rows, 16), np.float16), np.zeros((columns, 16), np.float16)
    a[:, 0], a[:, 1] = np.arange(rows), 1
    b[:, 0], b[:, 1] = columns, np.arange(columns)
    places = warpgroups.Layout(), warpgroups.Layout(start=4096)
    memory = np.zeros(8192, np.uint8)
    for matrix, place in zip((a, b), places):
        warpgroups.place(matrix, place.resolved(len(matrix)), memory)
    d = warpgroups.listed("d", columns // 2)
    body = "shr.u32 %r20, %r5, 4; cvt.u64.u32 %rd10, %r20;"
    for n, (matrix, place) in enumerate(zip((a, b), places)):
        body += f"add.u64 %rd{11 + n}, %rd10, {place.descriptor(len(matrix))};"
    body += f"""{warpgroups.zero(columns // 2)} {warpgroups.FENCE}
        wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {d}, %rd11, %rd12, 1, 1, 1, 0, 0; {warpgroups.WAIT}
        mad.wide.u32 %rd6, %r0, {columns * 2}, %rd0;"""
    body += "".join(f"st.global.b32 [%rd6 + {4 * n}], %d{n};" for n in range(columns // 2))
    out = np.zeros((128, columns // 2), np.float32)
    result = warpgroups.run(body, memory, out)
    assert not result.findings
    held = fragments.accumulator(columns)
    row, column = np.mgrid[0:rows, 0:columns]
    assert (out[held.lane, held.register] == columns * row + column).all()


def test_keys_of_values_stand_as_the_stage_takes_them():
    """Where the problem's order has them, in columns of 8-bit operands that the same thread has."""
    for question in asked("fp8-keys"):
        row, key = (int(re.search(rf"{word} (\d+)[, ]", question.text)[1]) for word in ("query", "and key"))
        thread, place = question.parts.values()
        assert place // 16 == key // 16 and ORDER[place % 16] == key % 16
        assert place % 16 // 4 == thread % 4 == key % 8 // 2
        assert thread // 32 == row // 16 and thread % 32 // 4 == row % 8


def test_e4m3_is_rounded_as_torch_does():
    numbers_ = [Fraction(n, 64) for n in range(1, 448 * 64, 7)] + [Fraction(n, 4096) for n in range(1, 512)]
    rounded = torch.tensor([float(n) for n in numbers_]).to(torch.float8_e4m3fn).double().tolist()
    assert [float(e4m3(n)) for n in numbers_] == rounded
    for question in asked("e4m3"):
        largest, x = re.search(r"block is ([\d,.]+)\. .* x = ([\d,.]+) become", question.text).groups()
        scale, (stored, number) = Fraction(largest.replace(",", "")) / 448, question.parts.values()
        exact = torch.tensor(float(Fraction(x.replace(",", "")) / scale))
        assert float(stored) == exact.to(torch.float8_e4m3fn).item() and number == stored * scale, question


# ---- tiles ----


def wavefronts(offsets: np.ndarray) -> int:
    """What one matrix of ldmatrix takes with these eight row addresses, as the emulator counts."""
    body = """
        .shared .align 128 .b8 s[65536];
        mov.u32 %r2, s; mad.wide.u32 %rd21, %r1, 4, %rd1; ld.global.u32 %r8, [%rd21]; add.u32 %r8, %r8, %r2;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r8];"""
    result = launch(body, np.zeros(32, np.uint32), np.resize(offsets, 32).astype(np.uint32), sanitize=False)
    return int(result.counters["wavefronts"][result.counters["wavefronts"] > 0].sum())


def test_paddings_take_one_wavefront_and_less_does_not():
    for question in asked("padding"):
        row, pad = numbers(question.text)[0], question.parts["bytes"]
        taken = {each: wavefronts(np.arange(8) * (row + each)) for each in range(0, pad + 16, 16)}
        assert [each for each, count in taken.items() if count == 1] == [pad], question


def test_one_key_alone_is_free_of_conflicts():
    for question in asked("keys"):
        row_bytes = numbers(question.text)[0]
        fine = []
        for letter, key in re.findall(r"(\w)\) chunk \^ \((.*)\)", question.text):
            row = np.arange(8)
            own = eval(key.replace("/", "//"), {"row": np.arange(64)})
            inside = (own < row_bytes // 16).all()
            free = inside and all(
                wavefronts((first + row) * row_bytes + own[first : first + 8] * 16) == 1 for first in (0, 8, 16, 24)
            )
            fine += [letter] if free else []
        assert fine == [question.parts["key"]], question


def test_a_swizzled_offset_follows_from_its_rule():
    for question in asked("swizzles"):
        row_bytes, *_, chunk, row = numbers(question.text)
        key = eval(re.search(r"c \^ \((r.*?)\)\.", question.text)[1].replace("row", "r").replace("/", "//"), {"r": row})
        assert row * row_bytes + 16 * (chunk ^ key) == question.parts["offset"], question


# ---- what fits, what binds ----


def test_occupancy_is_what_the_toolkit_says():
    """cuda_occupancy.h, restated: warps by quarters, units of 256 registers and 128 bytes."""
    limits = {"8.0": (164, 64, 32), "8.6": (100, 48, 16), "8.9": (100, 48, 24), "9.0": (228, 64, 32),
              "10.0": (228, 64, 32), "12.0": (100, 48, 24)}  # fmt: skip
    for question in asked("occupancy"):
        shared_kb, most_warps, most_blocks = limits[re.search(r"capability ([\d.]+)", question.text)[1]]
        threads, registers, shared = map(int, re.search(
            r"of (\d+) threads, (\d+) registers per thread, (\d+) KB", question.text).groups())  # fmt: skip
        warps = -(-threads // 32)
        by_registers = 65536 // 4 // (-(-registers * 32 // 256) * 256) * 4 // warps
        fits = min(by_registers, most_warps // warps, most_blocks, shared_kb // (shared + 1))
        assert question.parts["blocks"] == fits, question


def test_waves_are_those_of_blocks_taken_one_by_one():
    for question in asked("waves"):
        size, _, tile_m, tile_n, sms, per_sm = numbers(question.text)
        waiting, rounds = size // tile_m * (size // tile_n), []
        while waiting:
            rounds.append(min(waiting, sms * per_sm))
            waiting -= rounds[-1]
        assert list(question.parts.values()) == [len(rounds), rounds[-1]], question


def test_warps_in_flight_are_the_fewest_that_deliver_all():
    for question in asked("flight"):
        latency, rate, loads, width = numbers(question.text)
        need, warps = question.parts.values()
        assert (warps - 1) * loads * width * 32 < need == latency * rate <= warps * loads * width * 32


def test_bounds_count_what_the_formulas_count():
    for question in asked("bounds"):
        sizes, (peak, bandwidth) = numbers(question.text)[:-3], numbers(question.text)[-3:-1]
        if question.text.startswith("C"):
            m, n, k = sizes[-3:]
            flops, moved = 2 * m * n * k, 2 * (m * k + k * n + m * n)
        else:
            b, h, n, d = sizes[:4]
            flops, moved = 4 * b * h * n * n * d, 2 * 4 * b * h * n * d
        bound = "arithmetic" if flops / peak > moved / bandwidth else "memory"
        assert list(question.parts.values()) == [Fraction(flops, 10**6), Fraction(moved, 10**6), bound], question


# ---- loops and waits ----


def test_the_online_softmax_ends_where_a_plain_one_does():
    for seed in range(30):
        generator = np.random.default_rng(seed)
        scores = generator.integers(-3, 6, 8)
        steps = attention_tiles.online(scores, np.zeros(8), 4)
        assert steps[-1].l == sum(Fraction(2) ** int(s - max(scores)) for s in scores)
    for question in asked("softmax"):
        m, l, rest = re.search(r"m = (\S+) and l = (\S+)\. .* scores (.*)\. What", question.text).groups()  # noqa: E741
        scores = [Fraction(word) for word in rest.split(", ")]
        largest = max(Fraction(m), *scores)
        total = Fraction(l) * Fraction(2) ** int(Fraction(m) - largest) + sum(
            Fraction(2) ** int(s - largest) for s in scores
        )
        assert list(question.parts.values()) == [largest, total], question


def test_waits_for_groups_in_the_emulator():
    """A copy per group: after the wait, slice `turn` can be read; with one group more allowed it cannot."""
    for question in asked("groups")[:8]:
        turn, (most, committed) = int(re.search(r"Turn (\d+)", question.text)[1]), question.parts.values()
        for allowed, fine in ((most, True), (most + 1, False)):
            copies = "".join(
                f"cp.async.ca.shared.global [%r2+{16 * n}], [%rd1+{16 * n}], 16; cp.async.commit_group;"
                for n in range(committed)
            )
            body = f""".shared .align 16 .b8 s[1024]; mov.u32 %r2, s; {copies} cp.async.wait_group {allowed};
                ld.shared.u32 %r5, [%r2+{16 * turn}]; cp.async.wait_all; st.global.u32 [%rd0], %r5;"""
            result = launch(body, np.zeros(4, np.uint32), np.zeros(256, np.uint32), block=(1,))
            assert (kinds(result) == []) == fine, (question, allowed, result.findings)


def test_parities_pass_when_the_slices_turn_has_come():
    """An mbarrier of one arrival in the emulator: after n phases, does the wait pass?"""

    def passes(phases: int, parity: int) -> bool:
        body = f""".shared .align 8 .b64 m; mbarrier.init.shared::cta.b64 [m], 1;
            {"mbarrier.arrive.shared::cta.b64 _, [m];" * phases}
            mbarrier.test_wait.parity.shared::cta.b64 %p1, [m], {parity};
            selp.u32 %r5, 1, 0, %p1; st.global.u32 [%rd0], %r5;"""
        out = np.zeros(4, np.uint32)
        launch(body, out, block=(1,))
        return bool(out[0])

    for question in asked("parity"):
        stages, slice_ = (int(re.search(rf"{word} (\d+)", question.text)[1]) for word in ("ring of", "slice"))
        stage, parity = question.parts.values()
        before = sum(n % stages == slice_ % stages for n in range(slice_))  # slices that this stage has had
        assert stage == slice_ % stages
        if "producer" in question.text:  # one arrival of the consumers for each of them
            assert passes(before, parity) and (before == 0 or not passes(before - 1, parity)), question
        else:  # this slice's own bytes complete the phase after those
            assert passes(before + 1, parity) and not passes(before, parity), question


# ---- Hopper's machinery ----


def found(pattern: str, text: str) -> list[int]:
    return [int(word.replace(",", "")) for word in re.search(pattern, text).groups()]


def test_descriptors_find_what_tma_has_written():
    """By the layouts of the PTX ISA (warpgroups.Layout), for every element of the operand: the bytes at which TMA puts
    it, in boxes whose 16-byte pieces are exchanged by the address."""
    seen = set()
    for question in asked("descriptors"):
        if question.text.startswith("TMA"):
            continue
        parts, text = question.parts, question.text
        transposed = text.startswith("B")
        seen.add(transposed)
        size = {"fp16": 2, "bf16": 2, "e4m3": 1}[re.search(r"in (\w+),", text)[1]]
        (swizzled,) = found(r"the (\d+)-byte swizzle", text)
        first, last = found(r"k = (\d+) to (\d+)", text)
        assert (last - first + 1) * size == 32
        depth, rows = found(r"(\d+) × (\d+)", text)[:: 1 if transposed else -1]
        its = warpgroups.Layout(
            swizzled, transposed, parts.get("leading", 16), parts["stride"], start=0, advance=parts["start"]
        )
        row, k = np.meshgrid(np.arange(rows), np.arange(first, last + 1), indexing="ij")
        line = swizzled // size  # elements of a box's row
        if transposed:
            plain = (row // line * depth + k) * swizzled + row % line * size
        else:
            plain = row * swizzled + k * size
        written = plain ^ (plain >> 7 & swizzled // 16 - 1) << 4
        assert (its.offsets(rows, size) == written).all(), question
    assert seen == {False, True}


def test_what_lies_under_a_swizzle_in_the_emulator():
    """TMA writes a box of numbered elements; at the offset lies the number of that row and column."""
    library = cudaemu.load(BOXES, arch="9.0")
    types = {"fp16": (1, np.uint16), "fp32": (2, np.uint32), "e4m3": (0, np.uint8)}
    under = [question for question in asked("descriptors") if question.text.startswith("TMA")]
    assert len(under) >= 5
    for question in under[:6]:
        (columns,), (offset,) = found(r"64 rows × (\d+)", question.text), found(r"lie ([\d,]+) bytes", question.text)
        number, type_ = types[re.search(r"columns of (\w+)", question.text)[1]]
        row, column = (np.arange(64 * columns).reshape(64, columns) // columns, np.arange(columns)[None, :])
        for index, wanted in ((row, "row"), (row * 0 + column, "column")):
            tensor, tile = np.ascontiguousarray(index.astype(type_)).view(np.uint8).ravel(), np.zeros(MOST, np.uint8)
            b = box(type=number, swizzle=3, size=(columns, 64), stride=(128,), box=(columns, 64))
            report = library.call("move_box", tensor, tile, b, 1)
            assert report.status == 0
            assert tile[offset : offset + type_().itemsize].view(type_)[0] == question.parts[wanted], question


def test_expected_bytes_end_the_phase_in_the_emulator():
    """One box of the question; with 16 bytes more or less the launch does not end as it should."""
    library = cudaemu.load(BOXES, arch="9.0")
    types = {"fp16": (1, 2), "bf16": (9, 2), "fp32": (7, 4), "e4m3": (0, 1)}
    edges = set()
    for question in asked("expect-tx")[:14]:
        height, width = found(r"map of (\d+) × (\d+)", question.text)
        number, size = types[re.search(r"in (\w+), boxes", question.text)[1]]
        rows, columns = found(r"boxes of (\d+) rows × (\d+)", question.text)
        y, x = found(r"from row (\d+), column (\d+)", question.text)
        copies = found(r"copies (\d+) boxes", question.text)[0] if "boxes, to" in question.text else 1
        each = question.parts["bytes"] // copies
        edges.add((y + rows > height, x + columns > width))
        shape = {"type": number, "size": (width, height), "stride": (width * size,), "box": (columns, rows)}
        tensor = np.zeros(width * height * size, np.uint8)
        for more, fine in ((0, True), (16, False)):
            b = box(**shape, corner=(x, y), bytes=each + more)
            report = library.call("move_box", tensor, np.zeros(MOST, np.uint8), b, 1)
            assert (report.status == 0) == fine, (question, report)
            assert fine or report.findings[0].kind == "deadlock"
    assert len(edges) > 1, "boxes inside, and boxes over an edge"


def test_registers_that_consumers_can_take_in_the_emulator():
    """As many as the answer says, and not 8 more."""

    def kinds_of(launched: int, producers: int, warpgroups_: int, less: int, more: int) -> set[str]:
        assert launched * 128 * warpgroups_ <= 1 << 16
        text = f""".version 8.3
            .target sm_90a
            .address_size 64
            .visible .entry k() .maxntid {128 * warpgroups_} .minnctapersm 1 .maxnreg {launched} {{
            .reg .pred %p<2>; .reg .b32 %r<2>;
            mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, {128 * producers}; @%p0 bra LESS;
            setmaxnreg.inc.sync.aligned.u32 {more}; bra OUT;
            LESS: setmaxnreg.dec.sync.aligned.u32 {less}; OUT: ret; }}"""
        result = launch_kernel(engine.Module(text), "k", block=(128 * warpgroups_,))
        return {each.kind for each in result.findings}

    run = 0
    for question in asked("setmaxnreg"):
        producers, consumers = found(r"of (\d+) producer warpgroups? and (\d+) consumer", question.text)
        (launched,), (less,) = found(r"with (\d+) registers", question.text), found(r"\.dec (\d+)", question.text)
        more, left = question.parts.values()
        given = launched * 128 * (producers + consumers)
        assert given == 128 * (producers * less + consumers * more) + left and more % 8 == 0 and left >= 0
        assert more == 240 or left < 8 * 128 * consumers, question
        if launched == hopper.REGISTERS // (128 * (producers + consumers)) // 8 * 8:  # what the launch gives by itself
            run += 1
            assert kinds_of(launched, producers, producers + consumers, less, more) == set()
            if more < 240:
                assert kinds_of(launched, producers, producers + consumers, less, more + 8) == {"registers"}
    assert run > 2


def test_clusters_are_placed_one_by_one():
    for question in asked("clusters"):
        counts = [int(n) for n in re.findall(r"\d+", re.search(r"GPCs with (.*?) SMs", question.text)[1])]
        per_sm = 1 if "one block of" in question.text else found(r"holds (\d+) blocks", question.text)[0]
        (size,) = found(r"clusters of (\d+) blocks", question.text)
        room, placed = [count * per_sm for count in counts], 0
        while fits := [n for n, free in enumerate(room) if free >= size]:
            room[fits[0]] -= size
            placed += 1
        assert list(question.parts.values()) == [placed, sum(room)], question


def test_shares_of_split_k_are_all_slices_once():
    for question in asked("split-k"):
        (k,), (depth,) = found(r"K = (\d+)", question.text), found(r"slices of (\d+);", question.text)
        (splits,), (rank,) = (
            found(r"; (\d+) blocks share", question.text),
            found(r"first of block (\d+)", question.text),
        )
        slices, first, count = question.parts.values()
        owner = [next(r for r in range(splits) if n < slices * (r + 1) // splits) for n in range(slices)]
        assert slices == len(range(0, k, depth))
        assert (owner.index(rank), owner.count(rank)) == (first, count), question
        assert max(map(owner.count, range(splits))) - min(map(owner.count, range(splits))) <= 1


# ---- asking ----


def test_every_kind_has_ten_questions_of_its_own_and_they_come_again():
    assert len(KINDS) >= 10
    for kind in (*KINDS, "all"):
        first = questions(kind, 5)
        assert len({q.text + q.code for q in first}) == COUNT
        assert [q.answer for q in first] == [q.answer for q in questions(kind, 5)]
        assert [q.text + q.code for q in first] != [q.text + q.code for q in questions(kind, 6)]
        for question in first:
            assert question.judge(" ".join(shown(value) for value in question.parts.values()))
            assert all(len(line) <= 80 for line in question.drawing.splitlines()), question.drawing
        assert {KINDS[kind].level for kind in KINDS} == set(LEVELS)


@pytest.mark.core(every=6)
@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_drawn(kind):
    for question in questions(kind, 1, 2):
        if question.figure:
            assert question.figure()._repr_png_().startswith(b"\x89PNG")


def question(**parts) -> Question:
    return Question("?", parts, "because.")


@pytest.mark.parametrize(
    ("parts", "answer", "right"),
    [
        ({"sectors": 4, "lines": 1}, "4 1", True),
        ({"lane": 5, "register": 0}, "lane 5, register 0", True),
        ({"m": Fraction(5), "l": Fraction("1.69921875")}, "5, 1.699", True),
        ({"m": Fraction(5), "l": Fraction("1.69921875")}, "5, 1.70", True),
        ({"m": Fraction(5), "l": Fraction("1.69921875")}, "5, 1.698", False),
        ({"m": Fraction(5), "l": Fraction("1.69921875")}, "5, 1.7", False),
        ({"m": Fraction(5), "l": Fraction("1.69921875")}, "5.1, 1.699", False),
        ({"sectors": 4, "lines": 1}, "4,1", True),
        ({"sectors": 4, "lines": 1}, "4, 1", True),
        ({"sectors": 4, "lines": 1}, "1 4", False),
        ({"bytes": 65536}, "65,536", True),
        ({"bytes": 65536, "warps": 8}, "65,536 8", True),
        ({"m": Fraction(3), "l": Fraction(21, 8)}, "3 2.625", True),
        ({"m": Fraction(3), "l": Fraction(21, 8)}, "3 21/8", True),
        ({"key": "b"}, "B", True),
        ({"key": "b"}, "a", False),
    ],
)
def test_answers_are_read_as_people_write_them(parts, answer, right):
    assert question(**parts).judge(answer) == right


@pytest.mark.parametrize(("answer", "says"), [("4", "2 values"), ("four 1", "'four'"), ("1/0 1", "'1/0'")])
def test_what_is_no_answer_is_said(answer, says):
    with pytest.raises(UserError, match=says):
        question(sectors=4, lines=1).judge(answer)


def typed(monkeypatch, *lines: str) -> None:
    waiting = iter(lines)

    def read(prompt: str = "") -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)


def test_a_score_counts_right_answers(monkeypatch, capsys):
    every = [question(n=n) for n in range(4)]
    typed(monkeypatch, "0", "7", "what", "2", "")
    assert ask(every) == 2
    out = capsys.readouterr().out
    assert "2 of 3 right, 1 not answered" in out and "Skipped: 3 n" in out and "No: 1 n" in out and "'what'" in out


def test_who_has_had_enough_keeps_the_score(monkeypatch, capsys):
    typed(monkeypatch, "0", "q")
    assert ask([question(n=n) for n in range(4)]) == 1
    assert "1 of 1 right, 3 not answered" in capsys.readouterr().out


def test_a_sheet_has_no_answers_and_its_key_has(tmp_path):
    made = questions("sectors", 3)
    sheet, key = sheets.sheet("sectors", 3, made, tmp_path / "test.md")
    assert (sheet.name, key.name) == ("test.md", "test.key.md")
    assert sheet.read_text().count("______") == 20 and not any(q.why in sheet.read_text() for q in made)
    assert all(q.answer in key.read_text() for q in made) and "--seed 3" in key.read_text()
    before = key.read_text()
    with pytest.raises(UserError, match="exists"):
        sheets.sheet("banks", 4, made, tmp_path / "test")
    assert key.read_text() == before
    with pytest.raises(UserError, match="cannot write"):
        sheets.sheet("banks", 4, made, tmp_path / "nowhere" / "test.md")
    for folder in (tmp_path, Path("")):
        with pytest.raises(UserError, match="--sheet must be a file"):
            sheets.sheet("banks", 4, made, folder)


def test_what_cannot_be_asked_is_refused(monkeypatch):
    monkeypatch.setitem(KINDS, "one", Kind("one", "always the same", "junior", lambda _: question(n=1)))
    with pytest.raises(UserError, match="no 2 different"):
        questions("one", 0, 2)
    with pytest.raises(UserError, match="Did you mean 'banks'"):
        questions("bank", 0)


def test_in_a_notebook_answers_are_folded_and_judged(capsys):
    shown = notebook.drill("banks", seed=2).data
    assert shown.count("<details>") == 10
    made = questions("banks", 2)
    answers = [str(made[0].parts["bank"]), str(made[1].parts["bank"] + 1)]
    assert notebook.drill("banks", answers, seed=2).data == "**1 of 2 right.**"
    with pytest.raises(UserError, match="at most 1"):
        notebook.drill("banks", ["1", "2"], count=1)


def test_strips_show_what_is_counted():
    lane = np.arange(32)
    strip = threads.bank_strip(layout.wavefronts(lane * 8, 4))
    assert strip.count("wavefront ") == 2 and strip.count("·") == 32
    assert threads.sector_strip(lane * 128, 4).count("line ") == threads.SHOWN
