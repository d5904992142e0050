"""What shared memory does with a request, as ncu counts it on a GPU: patterns of addresses, and a program to measure.

    python -m docs.hardware.banks        # on a machine with a GPU and ncu: measures all patterns, writes banks.json

Each pattern is one request of one warp: `to`, a byte offset in shared memory per lane (-1: the lane is switched off),
and for copies `source`, the byte offset in global memory (-1: the lane fills with zeros). test_banks.py holds the
emulator and common/layout.py to what is recorded in banks.json.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.measure.ncu import Launch

RECORD = Path(__file__).with_suffix(".json")
OPERATIONS = ("load 8", "load 16", "store 8", "store 16", "copy 16", "copy 16 or zeros")
METRICS = {  # what the emulator counts -> what ncu calls it
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "cp_async_sectors": "l1tex__m_xbar2l1tex_read_sectors_mem_lg_op_ld.sum",  # all from L2 to L1, so less the tables'
}
TABLE_SECTORS = 4  # of a row of 32 offsets
PROBE = """
#include <cuda_runtime.h>

template <int OPERATION>
__global__ void probe(const int *to, const int *source, const char *x, unsigned *y) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int offset = to[threadIdx.x];
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared)) + offset;
  const char *from = x + (source[threadIdx.x] < 0 ? 0 : source[threadIdx.x]);
  const int bytes = source[threadIdx.x] < 0 ? 0 : 16;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (offset < 0) return;
  if (OPERATION == 0) asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address));
  if (OPERATION == 1)
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address));
  if (OPERATION == 2) asm volatile("st.shared.v2.u32 [%0], {%1, %1};" ::"r"(address), "r"(offset));
  if (OPERATION == 3) asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(offset));
  if (OPERATION == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
  if (OPERATION == 5)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
  asm volatile("cp.async.wait_all;");
  y[threadIdx.x] = a + b + c + d;
}

extern "C" cudaError_t launch(const int *to, const int *source, const char *x, unsigned *y, int operation) {
  const auto kernel = operation == 0 ? probe<0> : operation == 1 ? probe<1> : operation == 2 ? probe<2>
                    : operation == 3 ? probe<3> : operation == 4 ? probe<4> : probe<5>;
  kernel<<<1, 32, 32768>>>(to, source, x, y);
  return cudaGetLastError();
}

#ifdef MEASURE  // a program of its own: launches what it reads, per pattern 32 of `to`, 32 of `source` and an operation
#include <cstdio>
#include <cuda_profiler_api.h>

int main() {
  int table[65], *device;
  char *x;
  unsigned *y;
  cudaMalloc(&device, sizeof(table));
  cudaMalloc(&x, SOURCE_BYTES);
  cudaMalloc(&y, 32 * sizeof(unsigned));
  cudaProfilerStart();
  for (int count = 0; scanf("%d", &table[count]) == 1;) {
    if (++count < 65) continue;
    count = 0;
    cudaMemcpy(device, table, sizeof(table), cudaMemcpyHostToDevice);
    launch(device, device + 32, x, y, table[64]);
  }
  cudaProfilerStop();
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) fprintf(stderr, "%s\\n", cudaGetErrorString(status));
  return status;
}
#endif
"""
SOURCE_BYTES = 1 << 16


@dataclass(frozen=True)
class Pattern:
    name: str
    operation: str  # one of OPERATIONS
    to: tuple[int, ...]
    source: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes per lane."""
        return int(self.operation.split()[1])


def _pieces() -> Iterator[tuple[str, Callable[[int], int]]]:
    """(name, lane -> number of the piece that it asks for, -1 for none): requests of any width."""
    for stride in (1, 2, 3, 4, 5, 8, 16, 32):
        yield f"stride {stride}", lambda lane: lane * stride
    for apart in (1, 2, 4, 8, 32):
        for many in (2, 4, 8, 16, 32):
            yield f"{many} neighbours alike, {apart} apart", lambda lane: lane // many * apart
            if many < 32:
                yield f"lanes {many} apart alike, {apart} apart", lambda lane: lane % many * apart
    for bit in (1, 2, 4, 8, 16):
        yield f"lanes i and i ^ {bit} alike", lambda lane: lane & ~bit
    for name, active in {
        "half": range(16),
        "quarter": range(8),
        "even": range(0, 32, 2),
        "one": range(1),
        "quarters 0, 2": (*range(8), *range(16, 24)),
        "every 8th": range(0, 32, 8),
    }.items():
        yield f"only {name}", lambda lane: lane if lane in active else -1
    generator = random.Random(1)
    for number in range(8):
        places, on = [generator.randrange(64) for _ in range(32)], [generator.random() < 0.6 for _ in range(32)]
        yield f"random {number}", lambda lane: places[lane]
        for bits in (1, 2, 3):
            yield f"random {number}, lanes equal but for bits {bits} alike", lambda lane: places[lane & ~bits]
        yield f"random {number}, pairs alike, some off", lambda lane: places[lane & ~1] if on[lane] else -1
        yield f"random {number}, most pairs alike", lambda lane: places[lane & ~1 if on[lane // 2] else lane]


def _copies() -> Iterator[tuple[str, Callable[[int], int], Callable[[int], int]]]:
    """(name, lane -> chunk of 16 bytes in shared memory, lane -> chunk in global memory)."""
    for shift in (0, 1, 2, 3, 4):
        yield f"512 bytes, {shift} chunks on", lambda lane: lane + shift, lambda lane: lane
        yield f"512 bytes from {shift} chunks on", lambda lane: lane, lambda lane: lane + shift
    for chunks in (1, 2, 4, 8, 16):  # per row of the tile
        for pitch in (chunks, chunks + 1, chunks + 2, chunks + 4):
            for shift in (0, 3):
                yield (
                    f"rows of {chunks} every {pitch}, {shift} on",
                    lambda lane: lane // chunks * pitch + lane % chunks,
                    lambda lane: lane // chunks * 64 + lane % chunks + shift,
                )
    yield "rows of 4, XOR", lambda lane: lane ^ lane // 8, lambda lane: lane // 4 * 64 + lane % 4
    yield "rows of 8, XOR", lambda lane: lane ^ lane // 8, lambda lane: lane // 8 * 64 + lane % 8
    yield (
        "rows of 4, 80 bytes, 4 rows apart",
        lambda lane: (lane // 8 + lane % 8 // 4 * 4) * 5 + lane % 4,
        lambda lane: (lane // 8 + lane % 8 // 4 * 4) * 64 + lane % 4,
    )
    yield (
        "rows of 4, 80 bytes, column by column",
        lambda lane: lane % 8 * 5 + lane // 8,
        lambda lane: lane % 8 * 64 + lane // 8,
    )
    for stride in (2, 3, 4, 5, 8):
        yield f"to chunks {stride} apart", lambda lane: lane * stride, lambda lane: lane
        yield f"from chunks {stride} apart", lambda lane: lane, lambda lane: lane * stride
    generator = random.Random(2)
    for number in range(6):
        places, others = generator.sample(range(64), 64), generator.sample(range(128), 64)
        yield f"random {number}", lambda lane: places[lane], lambda lane: lane
        yield f"random {number}, both alike", lambda lane: places[lane], lambda lane: places[lane]
        for group in (2, 4, 8):
            yield (
                f"random {number}, groups of {group}",
                lambda lane: places[lane // group] * group + lane % group,
                lambda lane: others[lane // group] * group + lane % group,
            )


def patterns() -> Iterator[Pattern]:
    """All of them; their order is that of the record."""
    for operation in OPERATIONS[:4]:
        size = int(operation.split()[1])
        for name, piece in _pieces():
            numbers = [piece(lane) for lane in range(32)]
            yield Pattern(name, operation, tuple(n * size if n >= 0 else -1 for n in numbers), (0,) * 32)
    generator = random.Random(3)
    for name, to, source in _copies():
        targets, sources = [16 * to(lane) for lane in range(32)], [16 * source(lane) for lane in range(32)]
        if len(set(targets)) < 32:
            continue
        yield Pattern(name, "copy 16", tuple(targets), tuple(sources))
        if not name.startswith("random"):
            on = [generator.random() < 0.6 for _ in range(32)]
            off = tuple(target if active else -1 for target, active in zip(targets, on))
            yield Pattern(f"{name}, some off", "copy 16", off, tuple(sources))
            if "from" not in name:
                zeros = tuple(source if active else -1 for source, active in zip(sources, on))
                yield Pattern(f"{name}, some zeros", "copy 16 or zeros", tuple(targets), zeros)
                yield Pattern(f"{name}, no zeros", "copy 16 or zeros", tuple(targets), tuple(sources))


def measure() -> dict[str, dict[str, int]]:
    """Run all patterns under ncu: "operation: name" -> counter -> count, those that are not zero."""
    from common.measure import ncu
    from cudaemu.compiler import toolchain

    every = list(patterns())
    with tempfile.TemporaryDirectory() as folder:
        source, program, table = (Path(folder) / name for name in ("banks.cu", "banks", "patterns.txt"))
        source.write_text(PROBE)
        rows = [(*pattern.to, *pattern.source, OPERATIONS.index(pattern.operation)) for pattern in every]
        table.write_text("\n".join(" ".join(map(str, row)) for row in rows))
        flags = ["-arch=native", "-DMEASURE", f"-DSOURCE_BYTES={SOURCE_BYTES}"]
        subprocess.run([toolchain.find_nvcc().path, *flags, "-o", program, source], check=True)
        command = ["sh", "-c", f"exec {program} < {table}"]
        launches, unknown = ncu.collect(command, [*METRICS.values()])
    assert not unknown, unknown
    return read(launches)


def read(launches: Sequence[Launch]) -> dict[str, dict[str, int]]:
    """What ncu counted in one launch of each pattern, in their order: "operation: name" -> counter -> count."""
    counted = {}
    for pattern, launch in zip(patterns(), launches, strict=True):
        found = {counter: int(launch.values[metric]) for counter, metric in METRICS.items()}
        found["cp_async_sectors"] -= TABLE_SECTORS * (2 if pattern.operation.startswith("copy") else 1)
        counted[f"{pattern.operation}: {pattern.name}"] = {counter: n for counter, n in found.items() if n}
    return counted


def recorded() -> dict[str, dict[str, int]]:
    """What `measure` found on the GPU that banks.json names."""
    return json.loads(RECORD.read_text())["counts"]


if __name__ == "__main__":
    import torch

    counts = measure()
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in counts.items())
    RECORD.write_text(f'{{"gpu": {json.dumps(torch.cuda.get_device_name())}, "counts": {{\n{rows}\n}}}}\n')
    print(f"{len(counts)} patterns measured, {RECORD}")
