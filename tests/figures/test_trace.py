"""Figures and the arithmetic behind them: what they show is what the emulator executed and counted."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kernels  # noqa: E402
from common import figures, layout, notebook, show  # noqa: E402
from common.cli import main  # noqa: E402
from common.errors import UserError  # noqa: E402

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
def naive() -> show.Traced:
    return show.trace(kernels.load("01"))


@pytest.fixture(scope="module")
def thread_tile() -> show.Traced:
    return show.trace(kernels.load("03"))


@pytest.fixture(scope="module")
def snippet() -> show.Traced:
    return show.snippet(BROADCAST_AND_COLUMN, x=torch.arange(1024.0).reshape(32, 32), y=torch.zeros(32))


def headline(picture: figures.Picture) -> str:
    return picture.texts[0].get_text().replace("\n", " ")


# ---- the rules of sectors and banks ----


@pytest.mark.parametrize(
    ("addresses", "size", "count"),
    [
        (LANE * 4, 4, 4),  # 128 neighbouring bytes
        (LANE * 2, 2, 2),
        (LANE * 16, 16, 16),
        (LANE * 0, 4, 1),  # a broadcast
        (LANE * 32, 4, 32),  # a sector per lane
        (LANE * 2 + 16, 2, 3),  # 64 bytes that begin in the middle of a sector
        (np.array([30]), 4, 2),  # one access across the border of two sectors
    ],
)
def test_sectors(addresses, size, count):
    assert len(layout.sectors(addresses, size)) == count


@pytest.mark.parametrize(
    ("addresses", "size", "count", "minimum"),
    [
        (LANE * 4, 4, 1, 1),
        (LANE * 2, 2, 1, 1),  # two lanes share a word
        (LANE * 0, 4, 1, 1),
        (LANE * 8, 4, 2, 1),
        (LANE * 128, 4, 32, 1),
        (LANE * 132, 4, 1, 1),  # a padded column
        (LANE * 8, 8, 2, 2),  # half a warp at a time
        (LANE * 16, 16, 4, 4),  # a quarter at a time
        (LANE * 32, 16, 8, 4),
        (LANE * 128, 16, 32, 4),
        (LANE[:8] * 16, 16, 1, 1),  # one quarter is active
    ],
)
def test_wavefronts(addresses, size, count, minimum):
    served = layout.wavefronts(addresses, size)
    assert (served.count, served.minimum, served.conflicts) == (count, minimum, count - minimum)
    words = {(w, b) for w, b, turn in zip(served.wavefront, served.bank, served.word)}
    assert len(words) == len(set(zip(served.wavefront, served.bank, served.word))), "a bank delivers one word at a time"
    assert set(served.lane) == set(range(len(addresses)))


@pytest.mark.parametrize("stage", [s for s in kernels.ladder() if s.problem == "gemm"], ids=lambda stage: stage.name)
def test_rules_equal_the_emulators_counters(stage):
    """Sectors and wavefronts of every request of a block, added up, are what the emulator counts for a grid of one."""
    for dtype in {stage.dtypes[0], stage.dtypes[-1]}:
        kernel = stage.kernel(dtype)
        shape = [max(kernel.multiples.get(axis, 1), 32) for axis in stage.spec.axes]
        traced = show.trace(kernel, shape)
        assert traced.report.launches[0].grid == (1, 1, 1)
        moved = [r for tensor in traced.tensors for r in traced.requests(tensor)]
        for group, place, verbs in (
            ("global_load", moved, ("load",)),
            ("global_store", moved, ("store",)),
            ("shared_load", traced.requests(), ("load", "ldmatrix")),
            ("shared_store", traced.requests(), ("store",)),
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
                costs["wavefronts"] = sum(r.banks.count for r in found)
                costs["conflicts"] = sum(r.banks.conflicts for r in found)
            assert costs == {what: traced.report.counters[f"{group}_{what}"] for what in costs}, (kernel.label, group)


# ---- layouts without a kernel ----


@pytest.mark.parametrize(("width", "plain"), [(8, 1), (16, 2), (32, 4), (64, 8), (128, 8)])
def test_padding_and_xor_cure_column_reads(width, plain):
    """Eight rows of 16 bytes, as ldmatrix reads them: conflicts by the row's length, none once cured."""
    for column in range(0, width, 8):
        assert layout.column_read(width=width, column=column).count == plain
        assert layout.column_read(width=width, column=column, padding=8).count == (1 if width >= 16 else 2)
        assert layout.column_read(width=width, column=column, xor=True).count == 1


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_xor_is_a_permutation_of_chunks(width):
    row, column = np.divmod(np.arange(64 * width), width)
    offsets = layout.tile_offset(row, column, width=width, element=2, xor=True)
    assert sorted(offsets) == list(range(0, 64 * width * 2, 2))
    assert np.array_equal(offsets // (width * 2), row), "it stays in its row"
    assert np.array_equal(offsets % 16, column * 2 % 16), "chunks of 16 bytes stay whole"


# ---- what is traced ----


def test_a_snippet_runs_and_is_traced(snippet):
    assert torch.equal(snippet.tensors["y"].tensor, snippet.tensors["x"].tensor[:, 3])
    assert snippet.outputs == ("y",)
    assert len(snippet.requests("x")) == len(snippet.requests(verb="store")) == 32
    (column,) = snippet.patterns(verb="load")
    assert (column.text, column.banks.count, column.size) == ("y[threadIdx.x] = tile[threadIdx.x][3];", 32, 4)


def test_naive_lanes_are_a_row_or_a_column_of_c(naive):
    accesses = naive._accesses("C", naive.requests("C"))
    assert np.array_equal(accesses["row"], accesses["thread"] // 32)
    assert np.array_equal(accesses["column"], accesses["thread"] % 32)
    scattered = show.trace(kernels.load("01"), COALESCED=0)
    accesses = scattered._accesses("C", scattered.requests("C"))
    assert np.array_equal(accesses["row"], accesses["thread"] % 32)
    assert np.array_equal(accesses["column"], accesses["thread"] // 32)


def test_thread_tile_owns_what_its_header_says(thread_tile):
    """8 rows: 4 neighbours in each half of the warp's 32; 8 columns: 4 in each half of its 64."""
    accesses = thread_tile._accesses("C", thread_tile.requests("C"))
    mine = accesses["thread"] == 5 * 32 + 13  # warp 5: rows from 64, columns from 64; lane 13: row 1, column 5 of 4 × 8
    rows, columns = np.unique(accesses["row"][mine]), np.unique(accesses["column"][mine])
    assert list(rows) == [64 + 4 + i for i in (0, 1, 2, 3, 16, 17, 18, 19)]
    assert list(columns) == [64 + 20, 64 + 32 + 20] and set(accesses["width"]) == {4}


def test_another_block_touches_another_tile():
    traced = show.trace(kernels.load("01"), block=3)
    accesses = traced._accesses("C", traced.requests("C"))
    assert (accesses["row"].min(), accesses["column"].min()) == (32, 32)


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


def test_every_figure_draws_and_is_small(thread_tile):
    stems = []
    for stem, picture in thread_tile.all():
        png = picture._repr_png_()
        assert png.startswith(PNG) and 2_000 < len(png) < 120_000, stem
        stems.append(stem)
    kinds = {stem.partition("-")[0] for stem in stems}
    assert kinds == set(show.FIGURES) - {"copies"} and len(stems) == len(set(stems))


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
    traced = show.snippet(GUARDED, x=torch.zeros(128), y=torch.zeros(128), lanes=32)
    (load,) = traced.requests(verb="load")
    assert load.is_load and load.banks.count == 2 == traced.report.counters["shared_load_wavefronts"]


def test_a_copy_is_drawn_with_its_sectors():
    """Rows of 80 bytes part the halves of a sector; rows of 64 bytes, permuted by XOR, do not."""
    padded, swizzled = (show.trace(kernels.load(name)) for name in ("07", "09"))
    assert headline(padded.copies("A")).endswith(
        "24 sectors from L2 where 16 hold the data: halves of a sector go to different ones"
    )
    assert headline(swizzled.copies("A")).endswith("16 sectors from L2")
    assert {stem for stem, _ in padded.all(["copies"])} == {"copies-A", "copies-B"}
    with pytest.raises(UserError, match="makes 8 copies from A with cp.async.cg; there is no number 8"):
        padded.copies("A", index=8)


def test_numbers_on_the_lanes(thread_tile):
    """The picture of C holds each lane's number once for each quad that a lane of the eight warps owns."""
    texts = [text.get_text() for text in thread_tile.threads("C").axes[0].texts]
    assert sorted(texts) == sorted(str(lane) for lane in range(32) for _ in range(8 * 4))


def test_ranges():
    assert figures.ranges([3, 1, 2, 8, 0]) == "0–3, 8"
    assert figures.ranges([5]) == "5"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.threads("D"), "no tensor 'D'; it has A, B, C"),
        (lambda t: t.threads("C", warp=99), "no warp 99"),
        (lambda t: t.sectors("A", index=10_000), "no number 10000"),
        (lambda t: t.banks(), "0 kinds of shared-memory request"),
        (lambda t: t.threads("A", when="never"), "first, before or all"),
        (lambda t: show.trace(kernels.load("01"), block=4), "block 4 made no memory access"),
        (lambda t: show.trace(kernels.load("03"), (64, 128, 16)), "M a multiple of 128"),
    ],
)
def test_what_cannot_be_shown_is_said(naive, call, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        call(naive)


# ---- the verb ----


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main("kernels.02_block_tile", ["show", *words])
    return exit_.value.code


def test_show_writes_files_and_prints_their_paths(tmp_path, capsys):
    assert run("sectors", "--dtype", "fp32", "--output", str(tmp_path)) == 0
    printed = capsys.readouterr().out.split()
    assert sorted(printed) == sorted(str(path) for path in tmp_path.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {f"02_block_tile-fp32-sectors-{t}.png" for t in "ABC"}
    assert all(path.read_bytes().startswith(PNG) for path in tmp_path.iterdir())


def test_show_writes_one_file_by_its_suffix(tmp_path):
    target = tmp_path / "c.svg"
    assert run("threads", "--tensor", "C", "--output", str(target)) == 0
    assert "<svg" in target.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("threads", "--tensor", "Q"),
        ("threads", "--output", "x.png"),  # several figures, one file
        ("registers",),  # one output per thread: nothing to draw
        ("threads", "--lane", "32"),
        ("threads", "--warp", "32"),
        ("threads", "--block", "4"),
        ("threads", "--sizes", "64", "128"),
    ],
)
def test_show_refuses(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert capsys.readouterr().err.startswith("error: ")


# ---- quotes ----


@pytest.mark.parametrize("stage", kernels.ladder(), ids=lambda stage: stage.name)
def test_phases_are_quoted_whole_and_in_order(stage):
    source = stage.source.read_text()
    last = 0
    for number in range(1, 20):
        try:
            shown = notebook.phase(stage, number).data
        except UserError:
            break
        where, _, code = shown.partition("```cpp\n")
        first, end = (int(word) for word in where.split("lines ")[1].split(":")[0].split("–"))
        lines = source.splitlines()[first - 1 : end]
        assert first > last and f"// {number}. " in lines[0]
        assert [line.strip() for line in code.removesuffix("\n```").splitlines()] == [line.strip() for line in lines]
        last = end
    assert number > 3, "a kernel has numbered phases"
