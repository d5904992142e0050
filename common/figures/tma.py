"""What a TMA copy brings: a box of a matrix, as the emulator's copy engine left it in shared memory.

explore(rows=20, cols=48, corner=(16, 32))    a matrix and a box of your own
"""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Patch, Rectangle

import cudaemu
from common.figures import layout
from common.figures.accesses import write
from common.figures.draw import FAINT, HUES, INK, WASTED, Picture, bare, picture, rectangles, styled
from common.figures.warpgroup import CHUNK, memory
from cudaemu.errors import UserError

ELEMENT = 2  # bytes
VECTOR = CHUNK // ELEMENT  # elements in a chunk of 16 bytes
MODES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes of the swizzle -> CUtensorMapSwizzle

COPY = """
#include <cuda.h>
#include <cuda_runtime.h>

__global__ void copy_box(const __grid_constant__ CUtensorMap map, unsigned short *got, int row, int col, int bytes) {
  extern __shared__ __align__(1024) unsigned short box[];
  __shared__ unsigned long long full;
  const unsigned to = __cvta_generic_to_shared(box), barrier = __cvta_generic_to_shared(&full);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %2}], [%4];" ::"r"(to), "l"(&map), "r"(row), "r"(col), "r"(barrier) : "memory");
  for (unsigned ended = 0; !ended;)
    asm volatile("{\\n.reg .pred p;\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\\nselp.u32 %0, 1, 0, p;\\n}"
                 : "=r"(ended) : "r"(barrier) : "memory");
  for (int i = 0; i < bytes / 2; ++i) got[i] = box[i];
}

extern "C" cudaError_t launch(unsigned short *matrix, unsigned short *got, int rows, int cols, int pitch, int box_rows,
                              int box_cols, int swizzle, int row, int col) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
  const cuuint64_t sizes[] = {(cuuint64_t)cols, (cuuint64_t)rows}, row_bytes[] = {(cuuint64_t)pitch * 2};
  const cuuint32_t box[] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, steps[] = {1, 1};
  CUtensorMap map;
  if (reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
          &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, matrix, sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
          (CUtensorMapSwizzle)swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
    return cudaErrorInvalidValue;
  const int bytes = box_rows * box_cols * 2;
  cudaFuncSetAttribute(copy_box, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  copy_box<<<1, 1, bytes>>>(map, got, row, col, bytes);
  return cudaGetLastError();
}
"""


def brought(
    rows: int, cols: int, box: tuple[int, int], swizzle: int, corner: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """What a copy leaves in shared memory, in its order: the row and the column of each element in a matrix of
    rows × cols 16-bit elements; -1 for what was filled with zeros. `box` and `corner`: (rows, columns).

    UserError with the emulator's message for what the driver refuses."""
    if swizzle not in MODES:
        raise UserError(f"swizzle must be one of {', '.join(map(str, MODES))} bytes, got {swizzle}")
    if not 0 < rows * cols < 1 << 16:
        raise UserError(
            f"rows · cols must be between 1 and 65,535, so that a number identifies an element, got {rows * cols}"
        )
    pitch = -(-cols // VECTOR) * VECTOR
    matrix = np.zeros((rows, pitch), np.uint16)
    matrix[:, :cols] = 1 + np.arange(rows * cols).reshape(rows, cols)
    got = np.zeros(box[0] * box[1], np.uint16)
    report = cudaemu.run(
        write(COPY, "copy_box.cu"),
        "launch",
        [matrix, got, rows, cols, pitch, *box, MODES[swizzle], *corner],
        names=["matrix", "got", "rows", "cols", "pitch", "box_rows", "box_cols", "swizzle", "row", "col"],
        arch="9.0",
    )
    if report.findings or report.status:
        raise UserError(f"the copy was refused: {report}")
    at = got.astype(np.int64) - 1
    return np.where(at < 0, -1, at // cols), np.where(at < 0, -1, at % cols)


def explore(
    rows: int = 20,
    cols: int = 96,
    box: tuple[int, int] = (8, 64),
    swizzle: int = 128,
    corner: tuple[int, int] = (16, 64),
) -> Picture:
    """A matrix of 16-bit elements, and what a copy of the box (rows, columns) at `corner` leaves in shared memory.

    UserError for what the driver refuses."""
    row, col = (each.reshape(-1, VECTOR) for each in brought(rows, cols, box, swizzle, corner))
    row, chunk = row.max(1), np.where(col.max(1) < 0, -1, col.max(1) // VECTOR)
    filled = row < 0
    lines = np.arange(-(-box[0] * box[1] * ELEMENT // layout.LINE))
    first, last = min(0, corner[0]), max(rows, corner[0] + box[0])
    left_end, right_end = min(0, corner[1]) / VECTOR, max(cols, corner[1] + box[1]) / VECTOR
    share = filled.mean()
    with styled():
        figure = picture(
            11,
            0.75 + 0.2 * max(last - first, len(lines)),
            f"A box of {box[0]} × {box[1]} at ({corner[0]}, {corner[1]}) of {rows} × {cols}"
            + (f": {share:.0%} of its bytes are zeros that no memory was read for" if share else ""),
        )
        left, right = figure.subplots(1, 2)
        y, x = np.mgrid[0:rows, 0 : -(-cols // VECTOR)].reshape(2, -1)
        inside = np.isin(y * 1000 + x, (row * 1000 + chunk)[~filled])
        colours = [HUES[r % 8] if yes else WASTED for r, yes in zip(y.tolist(), inside)]
        labels = [f"{r}·{c}" if yes else "" for r, c, yes in zip(y.tolist(), x.tolist(), inside)]
        rectangles(
            left, x, y, np.minimum(1, cols / VECTOR - x), 1, colours, labels, (4.6 / (right_end - left_end), 0.2)
        )
        outline = (corner[1] / VECTOR, corner[0]), box[1] / VECTOR, box[0]
        left.add_patch(Rectangle(*outline, fill=False, edgecolor=INK, linewidth=1.6, zorder=4, clip_on=False))
        left.set_xlim(left_end, right_end)
        left.set_ylim(last, first)
        left.set_xlabel("chunk of 8 columns")
        left.set_ylabel("row")
        left.set_title("the matrix in global memory, and the box")
        bare(left)
        place = np.arange(len(row)) * CHUNK
        memory(
            right,
            place,
            lines,
            ["0" if zero else f"{r}·{c}" for r, c, zero in zip(row, chunk, filled)],
            [FAINT if zero else HUES[r % 8] for r, zero in zip(row, filled)],
            4.6,
            height=0.2,
        )
        how = f"swizzle of {swizzle} bytes" if swizzle else "no swizzle"
        right.set_title(f"the box in shared memory, {how}: row·chunk")
        handles = [Patch(color=WASTED, label="not copied"), Patch(color=FAINT, label="filled with zeros")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure
