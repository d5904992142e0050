"""What wgmma reads and holds: where a descriptor leads in shared memory, and which lane has which accumulator.

Nothing here is computed from rules: each picture is of a wgmma that the emulator executed.

explore(swizzle=64, transposed=True)    an operand with a descriptor of your own
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

import cudaemu
from common.figures import fragments, layout
from common.figures.accesses import Traced
from common.figures.draw import FAINT, GRID, HUES, INK, Picture, bare, picture, rectangles, styled
from cudaemu.errors import UserError
from cudaemu.trace import Access

ARCH = "9.0a"
WARPS = 4  # of a warpgroup
ROWS = 16  # of D, per warp
CHUNK = 16  # bytes: a row of a core matrix, which has 8 of them
GROUPS = layout.LINE // CHUNK
UNIT = 16  # bytes: what the fields of a descriptor count
MOST = (1 << 14) - 1  # of a field
SHARED = 227 * 1024  # bytes of the probes' shared memory
MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # bytes of the swizzle -> the descriptor's last two bits
COLUMNS = 128  # of B in the probe that reads

# A comes from registers, so that only B is read from shared memory: by a descriptor per block.
READ = """
__global__ void read_operand(const unsigned long long *descriptors, int transposed) {
  extern __shared__ unsigned char memory[];
  float d[64] = {};
  const unsigned a = 0;
  const unsigned long long b = descriptors[blockIdx.x];
  asm volatile("wgmma.fence.sync.aligned;");
  if (transposed)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {D}, {%64, %64, %64, %64}, %65, 1, 1, 1, 1;"
                 : OUTPUTS : "r"(a), "l"(b));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {D}, {%64, %64, %64, %64}, %65, 1, 1, 1, 0;"
                 : OUTPUTS : "r"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;");
}
""".replace("{D}", "{" + ", ".join(f"%{n}" for n in range(64)) + "}").replace(
    "OUTPUTS", ", ".join(f'"+f"(d[{n}])' for n in range(64))
)

# D[row][column] = row · 8 + column: A has the row's number and a one in each row, B 8s and the column's number.
HOLD = """
#include <cuda_fp16.h>

__global__ void hold(float *held) {
  __shared__ __align__(128) half A[64][16], B[8][16];  // in core matrices of 8 rows and 8 columns
  for (int at = threadIdx.x; at < 64 * 16; at += 128) {
    const int row = at / 16, k = at % 16;
    (&A[0][0])[row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8] = k == 0 ? row : k == 1 ? 1 : 0;
    if (row < 8) (&B[0][0])[k / 8 * 64 + row * 8 + k % 8] = k == 0 ? 8 : k == 1 ? row : 0;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const auto descriptor = [](const void *matrix) {  // no swizzle; along K 128 bytes on, 8 rows 256
    const unsigned address = __cvta_generic_to_shared(matrix);
    return (unsigned long long)(address >> 4) | 8ull << 16 | 16ull << 32;
  };
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(A)), "l"(descriptor(B)));
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int n = 0; n < 4; ++n) held[threadIdx.x * 4 + n] = d[n];
}
"""


@dataclass(frozen=True)
class Operand:
    """Where one wgmma finds A or B: at[i, k, r] is the byte offset, in shared memory, of the 16 bytes of row r of a
    core matrix, the i-th along M or N and the k-th along K. Its rows are rows of A or columns of B; if the operand is
    `transposed`, its 16 bytes lie along M or N and its rows along K."""

    at: np.ndarray
    transposed: bool

    def place(self, i: int, k: int, row: int) -> tuple[int, int]:
        """(row, chunk of 16 bytes) of the matrix as it lies in memory."""
        return (8 * k + row, i) if self.transposed else (8 * i + row, k)


def held() -> list[fragments.Fragment]:
    """Which lane holds which element of 8 columns of D, for each warp and its 16 rows: as one wgmma left it."""
    found = np.zeros((WARPS, layout.WARP, 4), np.float32)
    cudaemu.load(HOLD, arch=ARCH).launch("hold", 1, WARPS * layout.WARP, found).raise_if_findings()
    return [fragments.fragment(found[warp] - warp * ROWS * 8, (ROWS, 8), 4) for warp in range(WARPS)]


def accumulator() -> Picture:
    """Which lane of which warp holds which element of 8 columns of D."""
    shown = {
        "ABCD"[warp]: (f"warp {warp}: rows {warp * ROWS}–{warp * ROWS + ROWS - 1}", each)
        for warp, each in enumerate(held())
    }
    return fragments.tiles(
        shown,
        "wgmma's D: each warp of the warpgroup has 16 rows, in the layout of mma.m16n8k16; the numbers are lanes",
        "ABCD",
        axes_names=dict.fromkeys(shown, ("row of the warp's 16", "column")),
    )


def operands(traced: Traced, number: int = 0) -> dict[str, Operand]:
    """{"A": …, "B": …} of the `number`-th wgmma that the first warpgroup with one issued; no A if it is in registers.

    UserError if there are fewer."""
    rows = traced.report.trace
    rows = rows[(rows["launch"] == 0) & (rows["block"] == traced.block) & (rows["kind"] == Access.WGMMA)]
    warps = rows["thread"] // layout.WARP
    group = warps // WARPS == (warps.min() // WARPS if len(rows) else 0)
    rows, warps = rows[group], warps[group]
    parts: dict[str, list[np.ndarray]] = {"A": [], "B": []}
    transposed = {"A": False, "B": False}
    for warp in np.unique(warps):
        mine = rows[warps == warp]
        issued = np.unique(mine["seq"])
        if number >= len(issued):
            break
        mine = mine[mine["seq"] == issued[number]]
        text = traced.report.source(mine[0]).text
        flags, columns = _shape(text)
        transposed = dict(zip("AB", flags))
        at = mine["addr"].astype(np.int64)
        of_b = columns // 2  # a quarter of B's pieces: columns / 8 core matrices, 2 along K, 8 rows
        parts["A"].append(at[: len(at) - of_b])
        parts["B"].append(at[len(at) - of_b :])
    if not parts["B"]:
        raise UserError(f"{traced.label}: block {traced.block} issues no wgmma with the number {number}")
    found = {name: Operand(np.concatenate(each).reshape(-1, 2, 8), transposed[name]) for name, each in parts.items()}
    return {name: each for name, each in found.items() if each.at.size}


def _shape(ptx: str) -> tuple[tuple[bool, bool], int]:
    """Whether A and B are transposed, and the columns of B."""
    columns = re.search(r"m64n(\d+)k", ptx)
    flags = re.findall(r"(?<=, )\d(?=[,;]|$)", ptx)
    assert columns, ptx
    return (flags[-2] == "1", flags[-1] == "1"), int(columns[1])


def steps(traced: Traced, count: int = 4, rows: int = 16) -> Picture:
    """What the first `count` wgmma of a warpgroup read of the first `rows` rows of A."""
    found = [operands(traced, number)["A"] for number in range(count)]
    lines = np.unique(found[0].at // layout.LINE)[:rows]
    chunks, labels, colours = [], [], []
    for number, operand in enumerate(found):
        for i, k, r in np.ndindex(operand.at.shape):
            if operand.at[i, k, r] // layout.LINE in lines:
                row, chunk = operand.place(i, k, r)
                chunks.append(operand.at[i, k, r])
                labels.append(f"{row}·{chunk + 2 * number}")
                colours.append(HUES[number])
    moved = int(found[1].at[0, 0, 0] - found[0].at[0, 0, 0]) if count > 1 else 0
    with styled():
        takeaway = f"{traced.label}: each wgmma of a slice has A's descriptor begin {moved} bytes further"
        figure = picture(7.5, 0.75 + 0.24 * len(lines), takeaway)
        axes = figure.subplots()
        memory(axes, np.array(chunks), lines, labels, colours, 6.0)
        axes.set_title("where row·chunk of A lies: 128 bytes per line")
        handles = [Patch(color=HUES[number], label=f"wgmma {number}") for number in range(count)]
        figure.legend(handles=handles, loc="outside lower left", ncols=count)
    return figure


def memory(
    axes: Axes,
    chunks: np.ndarray,
    lines: np.ndarray,
    labels: Sequence[str],
    colours: Sequence[str],
    width: float,
    height: float = 0.24,
) -> None:
    """Chunks of 16 bytes, at these byte offsets, on lines of 128 bytes of shared memory, of which `lines` are shown.

    The axes are `width` inches wide, a line `height` high."""
    everywhere = np.arange(GROUPS * len(lines))
    rectangles(axes, everywhere % GROUPS, everywhere // GROUPS, 1, 1, FAINT, edge=GRID)
    inch = (width / GROUPS, height)
    x, y = chunks % layout.LINE // CHUNK, np.searchsorted(lines, chunks // layout.LINE)
    rectangles(axes, x, y, 1, 1, list(colours), list(labels), inch)
    for left_out in np.flatnonzero(np.diff(lines) > 1):
        axes.axhline(left_out + 1, color="white", linewidth=5)
    axes.set_xlim(0, GROUPS)
    axes.set_ylim(len(lines), 0)
    axes.set_xticks(np.arange(GROUPS) + 0.5, [f"{4 * group}–{4 * group + 3}" for group in range(GROUPS)])
    axes.set_yticks(np.arange(len(lines)) + 0.5, [f"{line * layout.LINE:,}" for line in lines])
    axes.set_xlabel("banks")
    axes.set_ylabel("byte offset")
    bare(axes)


# ------------------------------------------------------------------------------------------------ a descriptor's fields


@dataclass(frozen=True)
class Descriptor:
    """Of an operand that begins at offset 0: the swizzle, and two distances, in bytes."""

    swizzle: int
    leading: int
    stride: int

    def __post_init__(self) -> None:
        if self.swizzle not in MODES:
            raise UserError(f"swizzle must be one of {', '.join(map(str, sorted(MODES)))} bytes, got {self.swizzle}")
        for name, value in (("leading", self.leading), ("stride", self.stride)):
            if value % UNIT or not 0 <= value <= MOST * UNIT:
                raise UserError(f"{name} must be a multiple of {UNIT} up to {MOST * UNIT:,} bytes, got {value}")

    @property
    def bits(self) -> int:
        return self.leading // UNIT << 16 | self.stride // UNIT << 32 | MODES[self.swizzle] << 62

    @property
    def row(self) -> int:
        """Bytes in a row of the tile."""
        return self.swizzle or CHUNK


def dense(swizzle: int, transposed: bool) -> Descriptor:
    """Of an operand without gaps, 16 deep: swizzled tiles have rows of `swizzle` bytes; 0: core matrices in a row."""
    group = 8 * (swizzle or CHUNK)  # bytes of 8 rows
    if not swizzle:
        return Descriptor(0, group, 2 * group)
    return Descriptor(swizzle, 2 * group if transposed else 0, group)


def read(descriptors: Sequence[Descriptor], transposed: bool) -> list[Operand]:
    """What a wgmma in the emulator reads as B, 128 columns and 16 deep, by each of the descriptors."""
    report = cudaemu.load(READ, arch=ARCH, sanitize=False).launch(
        "read_operand",
        len(descriptors),
        WARPS * layout.WARP,
        np.array([each.bits for each in descriptors], np.uint64),
        int(transposed),
        shared=SHARED,
        trace=cudaemu.Trace(blocks=range(len(descriptors))),
    )
    found = []
    for block in range(len(descriptors)):
        rows = report.trace[(report.trace["block"] == block) & (report.trace["kind"] == Access.WGMMA)]
        rows = rows[np.argsort(rows["thread"] // layout.WARP, kind="stable")]
        at = rows["addr"].astype(np.int64)
        found.append(Operand(at.reshape(COLUMNS // 8, 2, 8), transposed))
    return found


def walk(swizzle: int, transposed: bool, like: Descriptor | None = None) -> dict[str, str]:
    """How far apart the parts of an operand are, in bytes and fields of its descriptor: {"next row": "128", …}.

    Found by changing each field and looking which of the executed reads move."""
    base = like or dense(swizzle, transposed)
    more = 8 * layout.LINE  # leaves the bits that the swizzle looks at
    plain, leading, stride = read(
        [
            base,
            Descriptor(swizzle, base.leading + more, base.stride),
            Descriptor(swizzle, base.leading, base.stride + more),
        ],
        transposed,
    )

    def from_first(i: int, k: int) -> str:
        times = [int(moved.at[i, k, 0] - plain.at[i, k, 0]) // more for moved in (leading, stride)]
        rest = int(plain.at[i, k, 0]) - times[0] * base.leading - times[1] * base.stride
        parts = [f"{rest}"] * (rest > 0)
        parts += [name if n == 1 else f"{n} · {name}" for n, name in zip(times, ("leading", "stride")) if n]
        return " + ".join(parts)

    lines = plain.at[0, 0] // base.row
    across = base.row // CHUNK
    return {
        "next row": f"{int(lines[1] - lines[0]) * base.row}",
        "next 8 along M or N": from_first(1, 0),
        "next box along M or N": from_first(across, 0) if transposed and across > 1 else "–",
        "next 8 along K": from_first(0, 1),
        "leading": "not read" if (leading.at == plain.at).all() else "read",
    }


def explore(
    swizzle: int = 128, transposed: bool = False, leading: int | None = None, stride: int | None = None
) -> Picture:
    """Where a wgmma finds its operand B, 16 deep, by a descriptor with these fields (bytes); by default those of a tile
    without gaps. Rows lie along K, or, `transposed`, along N.

    UserError for what a descriptor cannot say."""
    usual = dense(swizzle, transposed) if swizzle in MODES else Descriptor(swizzle, 0, 0)
    chosen = Descriptor(
        swizzle, usual.leading if leading is None else leading, usual.stride if stride is None else stride
    )
    (operand,) = read([chosen], transposed)
    across = chosen.row // CHUNK if transposed else 1  # core matrices side by side along N
    shown = [(i, k) for i in range(across + 1 if swizzle else 4) for k in range(1 if transposed and i == across else 2)]
    lines = np.unique([operand.at[i, k] // layout.LINE for i, k in shown])
    chunks, labels, colours = [], [], []
    for i, k, r in np.ndindex(operand.at.shape):
        if operand.at[i, k, r] // layout.LINE in lines:
            row, chunk = operand.place(i, k, r)
            chunks.append(operand.at[i, k, r])
            labels.append(f"{row}·{chunk}")
            colours.append(HUES[(i + 4 * k if transposed else 2 * i + k) % len(HUES)])
    way = "along N (transposed)" if transposed else "along K"
    how = f"swizzle of {swizzle} bytes" if swizzle else "no swizzle"
    with styled():
        figure = picture(
            10,
            0.55 + 0.24 * max(len(lines), 3),
            f"Rows {way}, {how}: leading {chosen.leading:,}, stride {chosen.stride:,}",
        )
        left, right = figure.subplots(1, 2, width_ratios=(5, 4), sharey=True)
        memory(left, np.array(chunks), lines, labels, colours, 4.7)
        left.set_title("row·chunk of the operand; a core matrix has one colour (colours repeat)")
        _steps(right, operand, across, lines, walk(swizzle, transposed, chosen))
    return figure


def _steps(axes: Axes, operand: Operand, across: int, lines: np.ndarray, steps: Mapping[str, str]) -> None:
    """Arrows from the first core matrix to what comes next along each way, beside the lines of `memory`."""
    targets = dict(zip(steps, ((0, 0, 1), (1, 0, 0), (across, 0, 0), (0, 1, 0))))
    rows = {
        name: int(np.searchsorted(lines, operand.at[place] // layout.LINE))
        for name, place in targets.items()
        if steps[name] != "–"
    }
    beside = [name for name, row in rows.items() if row == 0]
    axes.text(0.2, 0.5, ", ".join(f"{name}: + {steps[name]}" for name in beside), va="center", color=INK)
    below = sorted((row, name) for name, row in rows.items() if row)
    for turn, (row, name) in enumerate(below, 1):
        x = 0.2 * turn
        axes.plot([0, x, x], [1, 1, row + 0.5], color=INK, linewidth=1)
        arrow = {"arrowstyle": "->", "color": INK, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (0, row + 0.5), (x, row + 0.5), arrowprops=arrow)
        axes.text(0.2 * len(below) + 0.15, row + 0.5, f"{name}: + {steps[name]}", va="center", color=INK)
    axes.set_xlim(0, 4)
    axes.tick_params(labelleft=False)
    axes.set_xticks([])
    bare(axes)
