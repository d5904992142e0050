"""What is traced and drawn of it: what the emulator executed and counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernels
from common import course
from common.figures import accesses, draw, layout
from cudaemu.errors import UserError

LANE = np.arange(32)
PNG = b"\x89PNG\r\n\x1a\n"

BROADCAST_AND_COLUMN = """
__global__ void kernel(const float *x, float *y) {
  __shared__ float tile[32][32];
  for (int row = 0; row < 32; ++row) tile[row][threadIdx.x] = x[row * 32 + threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x][3];
}
extern "C" cudaError_t launch(const float *x, float *y) {
  kernel<<<1, 32>>>(x, y);
  return cudaGetLastError();
}
"""


@pytest.fixture(scope="module")
def naive() -> accesses.Traced:
    return accesses.run(kernels.load("01"))


@pytest.fixture(scope="module")
def thread_tile() -> accesses.Traced:
    return accesses.run(kernels.load("03"))


@pytest.fixture(scope="module")
def snippet() -> accesses.Traced:
    return accesses.snippet(BROADCAST_AND_COLUMN, x=torch.arange(1024.0).reshape(32, 32), y=torch.zeros(32))


def headline(picture: draw.Picture) -> str:
    return picture.texts[0].get_text().replace("\n", " ")


KNOWN: dict[tuple, tuple[int, int]] = {}


def banks(request: accesses.Request) -> tuple[int, int]:
    """Wavefronts and conflicts; the same pattern, lines of 128 bytes further on, is served alike."""
    offsets = request.addresses - request.addresses.min() // layout.LINE * layout.LINE
    key = (offsets.tobytes(), request.lanes.tobytes(), request.size, request.is_load)
    if key not in KNOWN:
        KNOWN[key] = request.banks.count, request.banks.conflicts
    return KNOWN[key]


def one_block(stage) -> tuple[int, ...]:
    """A shape that makes a grid of one block."""
    kernel = stage.kernel()
    if stage.spec.part == "gemm":
        return tuple(max(kernel.multiples.get(axis, 1), 32) for axis in stage.spec.axes)
    return stage.spec.parse(f"1x1x{kernel.multiples.get('N', 64)}", kernel.variants)


@pytest.mark.core(every=24)
@pytest.mark.parametrize("stage", course.everything(), ids=lambda stage: stage.name)
def test_rules_equal_the_emulators_counters(stage):
    """Sectors and wavefronts of every request of a block, added up, are what the emulator counts for a grid of one."""
    for dtype in {stage.dtypes[0], stage.dtypes[-1]}:
        whole = {"PING_PONG": 0} if "PING_PONG" in stage.variants else {}  # both consumers share the block's tile
        traced = accesses.run(stage.kernel(dtype, whole), one_block(stage))
        assert traced.report.launches[0].grid == (1, 1, 1)
        moved = [r for tensor in traced.tensors for r in traced.requests(tensor)]
        for group, place, verbs in (
            ("global_load", moved, ("load",)),
            ("global_store", moved, ("store",)),
            ("shared_load", traced.requests(), ("load", "ldmatrix")),
            ("shared_store", traced.requests(), ("store", "stmatrix")),
            ("cp_async", traced.requests(), ("copy",)),
        ):
            found = [request for request in place if request.verb in verbs]
            costs = {"requests": len(found)}
            if place is moved:
                costs["sectors"] = sum(r.sectors for r in found)
            elif group == "cp_async":
                pairs = [layout.copied_sectors(source.addresses, targets) for source, targets in traced.copied()]
                costs["sectors"] = sum(map(len, pairs))
            else:
                served = [banks(request) for request in found]
                costs["wavefronts"], costs["conflicts"] = (sum(each) for each in (zip(*served) if served else ((), ())))
            assert costs == {what: traced.report.counters[f"{group}_{what}"] for what in costs}, (traced.label, group)


# ---- what is traced ----


def test_a_snippet_runs_and_is_traced(snippet):
    assert torch.equal(snippet.tensors["y"].array, snippet.tensors["x"].array[:, 3])
    assert snippet.outputs == ("y",)
    assert len(snippet.requests("x")) == len(snippet.requests(verb="store")) == 32
    (column,) = snippet.patterns(verb="load")
    assert (column.text, column.banks.count, column.size) == ("y[threadIdx.x] = tile[threadIdx.x][3];", 32, 4)


def test_code_has_a_folder_of_its_own_and_keeps_it():
    first, second = accesses.write("// one", "same.cu"), accesses.write("// two", "same.cu")
    assert (first.read_text(), second.read_text()) == ("// one", "// two") and first.name == second.name == "same.cu"
    assert accesses.write("// one", "same.cu") == first


def test_naive_lanes_are_a_row_or_a_column_of_c(naive):
    rows = naive._accesses("C", naive.requests("C"))
    assert np.array_equal(rows["row"], rows["thread"] // 32)
    assert np.array_equal(rows["column"], rows["thread"] % 32)
    scattered = accesses.run(kernels.load("01"), COALESCED=0)
    rows = scattered._accesses("C", scattered.requests("C"))
    assert np.array_equal(rows["row"], rows["thread"] % 32)
    assert np.array_equal(rows["column"], rows["thread"] // 32)


def test_thread_tile_owns_what_its_header_says(thread_tile):
    """8 rows: 4 neighbours in each half of the warp's 32; 8 columns: 4 in each half of its 64."""
    accesses = thread_tile._accesses("C", thread_tile.requests("C"))
    mine = accesses["thread"] == 5 * 32 + 13  # warp 5: rows from 64, columns from 64; lane 13: row 1, column 5 of 4 × 8
    rows, columns = np.unique(accesses["row"][mine]), np.unique(accesses["column"][mine])
    assert list(rows) == [64 + 4 + i for i in (0, 1, 2, 3, 16, 17, 18, 19)]
    assert list(columns) == [64 + 20, 64 + 32 + 20] and set(accesses["width"]) == {4}


def test_another_block_touches_another_tile():
    traced = accesses.run(kernels.load("01"), block=3)
    stored = traced._accesses("C", traced.requests("C"))
    assert (stored["row"].min(), stored["column"].min()) == (32, 32)


# ---- pictures ----


def test_headlines_say_what_was_executed(naive, thread_tile, snippet):
    assert "each element of A 32 times, each element of B 32 times" in headline(naive.footprint())
    assert "each element of A once, each element of B once" in headline(thread_tile.footprint())
    assert "1 sector; 32 bytes moved, 2 used (6 %)" in headline(naive.sectors("A"))
    assert "2 sectors; 64 bytes moved, 64 used (100 %)" in headline(naive.sectors("B"))
    assert "stores 32 × 32 elements of C: one thread each" in headline(naive.threads("C"))
    assert "loads 32 × 1 elements of A, each warp's first load: 32 threads each" in headline(naive.threads("A"))
    assert "loads 16 × 128 elements of B, first slice: one thread each, 8 at a time" in headline(
        thread_tile.threads("B")
    )
    assert "64 elements of C, 8 rows × 8 columns; a warp holds 2,048" in headline(thread_tile.registers())
    column = headline(snippet.banks(snippet.patterns(verb="load")[0]))
    assert "32 wavefronts where 1 would do, 31 bank conflicts" in column
    assert "1 wavefront, no bank conflict" in headline(snippet.banks(snippet.patterns(verb="store")[0]))


@pytest.mark.full
def test_every_figure_draws_and_is_small(thread_tile):
    stems = []
    for stem, picture in thread_tile.all():
        png = picture._repr_png_()
        assert png.startswith(PNG) and 2_000 < len(png) < 120_000, stem
        stems.append(stem)
    kinds = {stem.partition("-")[0] for stem in stems}
    assert kinds == set(accesses.FIGURES) - {"copies"} and len(stems) == len(set(stems))


GUARDED = """
__global__ void kernel(const float4 *x, float4 *y, int lanes) {
  __shared__ float4 tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float4 v = {};
  const unsigned address = __cvta_generic_to_shared(&tile[threadIdx.x / 2]);
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %4, %5; @p ld.shared.v4.f32 {%0, %1, %2, %3}, [%6]; }"
               : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w) : "r"((int)threadIdx.x), "r"(lanes), "r"(address));
  y[threadIdx.x] = v;
}
extern "C" cudaError_t launch(const float4 *x, float4 *y, int lanes) {
  kernel<<<1, 32>>>(x, y, lanes);
  return cudaGetLastError();
}
"""


def test_a_load_under_a_predicate_is_served_as_a_load():
    """Neighbours want the same 16 bytes: half a warp at a time, in the figures as in the counters."""
    traced = accesses.snippet(GUARDED, x=torch.zeros(128), y=torch.zeros(128), lanes=32)
    (load,) = traced.requests(verb="load")
    assert load.is_load and load.banks.count == 2 == traced.report.counters["shared_load_wavefronts"]


def test_a_copy_is_drawn_with_its_sectors():
    """Rows of 80 bytes part the halves of a sector; rows of 64 bytes, permuted by XOR, do not."""
    padded, swizzled = (accesses.run(kernels.load(name)) for name in ("07", "09"))
    assert headline(padded.copies("A")).endswith(
        "24 sectors from L2 where 16 hold the data: halves of a sector go to different ones"
    )
    assert headline(swizzled.copies("A")).endswith("16 sectors from L2")
    assert {stem for stem, _ in padded.all(["copies"])} == {"copies-A", "copies-B"}
    with pytest.raises(UserError, match="8 copies from A .*no number 8"):
        padded.copies("A", index=8)


def test_numbers_on_the_lanes(thread_tile):
    """The picture of C holds each lane's number once for each quad that a lane of the eight warps owns."""
    texts = [text.get_text() for text in thread_tile.threads("C").axes[0].texts]
    assert sorted(texts) == sorted(str(lane) for lane in range(32) for _ in range(8 * 4))


def test_ranges():
    assert draw.ranges([3, 1, 2, 8, 0]) == "0–3, 8"
    assert draw.ranges([5]) == "5"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.threads("D"), "no tensor 'D'; it has A, B, C"),
        (lambda t: t.threads("C", warp=99), "no warp 99"),
        (lambda t: t.sectors("A", index=10_000), "no number 10000"),
        (lambda t: t.banks(), "0 kinds of shared-memory request"),
        (lambda t: t.threads("A", when="never"), "when must .*'never'"),
        (lambda t: accesses.run(kernels.load("01"), block=4), "block 4 made no memory access"),
        (lambda t: accesses.run(kernels.load("03"), (64, 128, 16)), "M must be a multiple of 128"),
    ],
)
def test_what_cannot_be_shown_is_said(naive, call, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        call(naive)


TWO_TENSORS = """
__global__ void first(const float *x, const float *y, float *z) {
  z[threadIdx.x] = *(threadIdx.x % 4 ? x + threadIdx.x : y + threadIdx.x);
}
__global__ void second(float *z) { z[threadIdx.x] += 1; }
extern "C" cudaError_t launch(const float *x, const float *y, float *z) {
  first<<<1, 32>>>(x, y, z);
  second<<<1, 32>>>(z);
  return cudaGetLastError();
}
"""


def test_a_request_to_two_tensors_is_seen_in_both_and_a_second_launch_in_neither():
    traced = accesses.snippet(TWO_TENSORS, x=torch.ones(32), y=torch.zeros(32), z=torch.zeros(32))
    (x,), (y,), z = (traced.requests(name) for name in "xyz")
    assert list(y.lanes) == list(range(0, 32, 4)) and sorted([*x.lanes, *y.lanes]) == list(range(32))
    assert x.order == y.order and [request.verb for request in z] == ["store"]
    assert "each element of x once, each element of y once" in headline(traced.footprint())


@pytest.mark.full
def test_registers_are_those_of_the_first_output():
    """Attention under a causal mask, with scratch memory of its own: a thread's elements of O."""
    traced = accesses.run(kernels.load("16").kernel("fp16", {"CAUSAL": 1}))
    assert traced.outputs == ("O",) and "elements of O" in headline(traced.registers())


# ---- what figures say ----


def test_a_statement_over_several_lines_is_quoted_whole():
    """The machine code of a store belongs to the line of its right-hand side, which looks like a load."""
    store = accesses.run(kernels.load("05")).patterns(verb="store")[0]
    assert store.text.startswith("*reinterpret_cast<Chunk *>(&A_tile") and "&A_block[" in store.text
    assert store.text.endswith(";") and "  " not in store.text


def words(picture) -> list[str]:
    """All that is written in a picture's axes and its legend."""
    labels = [text.get_text() for legend in picture.legends for text in legend.get_texts()]
    ticks = [tick.get_text() for axes in picture.axes for tick in axes.get_yticklabels()]
    return labels + ticks + [axes.get_ylabel() for axes in picture.axes]


def test_figures_say_what_their_rows_are(snippet, naive):
    """However short they are."""
    (column,) = snippet.patterns(verb="load")
    tall, short = words(snippet.banks(column)), words(snippet.banks(snippet.patterns(verb="store")[0]))
    assert {"byte offset", "wavefront"} <= set(tall)
    assert {"byte offset 0", "wavefront 1"} <= set(short)
    assert "line +0" in words(naive.sectors("B"))


def test_bytes_of_a_sector_that_a_store_leaves_alone_are_not_moved():
    traced = accesses.run(kernels.load("05"))
    assert "touched with its sector, not written" in words(traced.sectors("C"))
    assert "moved with its sector, unused" in words(traced.sectors("A"))
