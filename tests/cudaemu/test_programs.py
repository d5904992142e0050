"""Whole programs with a main: the command line, the stand-in runtime's calls, host code that goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu.__main__ import FINDINGS_STATUS, NOT_COMPILED_STATUS, NOT_RUN_STATUS, USAGE_STATUS
from cudaemu.errors import UserError
from tests.cudaemu.sources import source

ROOT = Path(__file__).parents[2]


def command(
    path: Path | str, *argv: object, options: tuple[str, ...] = ("-q",), **settings
) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "cudaemu", *options, str(path), *map(str, argv)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, **settings)


# ---- what a program may call -----------------------------------------------------------------------------------------

CALLS = r"""
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>
#include <vector>
#define MUST(call)                                                        \
  if (cudaError_t error = (call)) {                                       \
    printf("line %d: %s\n", __LINE__, cudaGetErrorString(error));         \
    return 1;                                                             \
  }
__constant__ float factor;
__device__ int counter = 3;
__managed__ int shared_count = 40;
__global__ void scale(float *data, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] *= factor;
  if (i == 0) { atomicAdd(&counter, n); ++shared_count; printf("scaled %d of %s\n", n, "it"); }
}
__global__ void touch(int *pinned) { pinned[threadIdx.x] += 1; }
int main(int argc, char **argv) {
  const int n = 100;
  int device, count;
  MUST(cudaGetDeviceCount(&count));
  MUST(cudaGetDevice(&device));
  cudaDeviceProp p;
  MUST(cudaGetDeviceProperties(&p, device));
  const cudaDeviceAttr asked[] = {cudaDevAttrComputeMode, cudaDevAttrManagedMemory, cudaDevAttrConcurrentManagedAccess,
                                  cudaDevAttrCooperativeLaunch, cudaDevAttrClockRate, cudaDevAttrMaxPitch};
  for (cudaDeviceAttr attribute : asked) {
    int value;
    MUST(cudaDeviceGetAttribute(&value, attribute, device));
    printf("%d ", value);
  }
  size_t free_bytes, total_bytes;
  MUST(cudaMemGetInfo(&free_bytes, &total_bytes));
  printf("| %d devices, sm_%d%d, %d %d\n", count, p.major, p.minor, p.managedMemory && p.cooperativeLaunch,
         free_bytes <= total_bytes);
  cudaStream_t stream;
  cudaEvent_t start, stop;
  MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  MUST(cudaEventCreate(&start));
  MUST(cudaEventCreate(&stop));
  float two = 2, *host, *data, *managed;
  MUST(cudaMemcpyToSymbol(factor, &two, sizeof two));
  MUST(cudaMallocHost(&host, n * sizeof(float)));
  MUST(cudaMalloc(&data, n * sizeof(float)));
  MUST(cudaMallocManaged(&managed, n * sizeof(float)));
  for (int i = 0; i < n; ++i) host[i] = managed[i] = i;
  MUST(cudaEventRecord(start, stream));
  MUST(cudaMemcpyAsync(data, host, n * sizeof(float), cudaMemcpyHostToDevice, stream));
  scale<<<1, 128, 0, stream>>>(data, n);
  MUST(cudaGetLastError());
  MUST(cudaMemcpyAsync(host, data, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
  MUST(cudaEventRecord(stop, stream));
  MUST(cudaEventSynchronize(stop));
  float ms = -1;
  MUST(cudaEventElapsedTime(&ms, start, stop));
  scale<<<1, 128>>>(managed, n);
  MUST(cudaDeviceSynchronize());
  int seen;
  MUST(cudaMemcpyFromSymbol(&seen, counter, sizeof seen));
  printf("%g %g %d %d %d\n", host[99], managed[99], seen, shared_count, ms >= 0);
  // rows with a pitch, there and back
  char matrix[5][7], back[5][7];
  for (int i = 0; i < 35; ++i) matrix[0][i] = char(i);
  void *pitched;
  size_t pitch;
  MUST(cudaMallocPitch(&pitched, &pitch, 7, 5));
  MUST(cudaMemcpy2D(pitched, pitch, matrix, 7, 7, 5, cudaMemcpyHostToDevice));
  MUST(cudaMemset2D(pitched, pitch, 9, 1, 5));
  MUST(cudaMemcpy2D(back, 7, pitched, pitch, 7, 5, cudaMemcpyDeviceToHost));
  printf("%d %d %d\n", back[4][0], back[4][6], memcmp(back[2] + 1, matrix[2] + 1, 6));
  // memory of the host that kernels may use
  int *mapped, *on_device;
  MUST(cudaHostAlloc(&mapped, 32 * sizeof(int), cudaHostAllocMapped));
  for (int i = 0; i < 32; ++i) mapped[i] = i;
  MUST(cudaHostGetDevicePointer(&on_device, mapped, 0));
  void *arguments[] = {&on_device};
  MUST(cudaLaunchKernel(touch, dim3(1), dim3(32), arguments, 0, 0));
  MUST(cudaDeviceSynchronize());
  MUST(cudaLaunchCooperativeKernel(touch, dim3(1), dim3(32), arguments, 0, stream));
  MUST(cudaStreamSynchronize(stream));
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 32;
  MUST(cudaLaunchKernelEx(&config, touch, on_device));
  MUST(cudaDeviceSynchronize());
  int blocks, best;
  MUST(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, touch, 128, 0));
  MUST(cudaOccupancyMaxPotentialBlockSize(&count, &best, touch, 0, 0));
  cudaPointerAttributes attributes;
  MUST(cudaPointerGetAttributes(&attributes, data));
  printf("%d %d %d %d\n", mapped[31], blocks, best, attributes.type == cudaMemoryTypeDevice);
  MUST(cudaFree(data));
  MUST(cudaFree(managed));
  MUST(cudaFree(pitched));
  MUST(cudaFreeHost(host));
  MUST(cudaFreeHost(mapped));
  MUST(cudaEventDestroy(start));
  MUST(cudaEventDestroy(stop));
  MUST(cudaStreamDestroy(stream));
  MUST(cudaDeviceReset());
  std::vector<char> word;
  for (int c; (c = getchar()) != EOF;) word.push_back(c);
  printf("%d arguments, last %s, read %zu bytes\n", argc - 1, argv[argc - 1], word.size());
  return 7;
}
"""

EXPECTED = """\
0 1 1 1 1000000 2147483647 | 1 devices, sm_86, 1 1
scaled 100 of it
scaled 100 of it
198 198 203 42 1
9 34 0
34 12 768 1
2 arguments, last --two words, read 5 bytes
"""


def test_a_program_runs_as_it_is():
    """Its output, its input, its arguments and its exit status are its own; nothing is found."""
    done = command(source(CALLS, "calls"), "one", "--two words", options=("--arch", "8.6"), input="input")
    assert done.stdout == EXPECTED, done.stderr
    assert done.returncode == 7
    assert "no findings" in done.stderr and "touch" in done.stderr


def test_options_before_the_file_and_a_record(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "size.h").write_text("#define SIZE 48\n")
    text = r"""
#include <size.h>
#include <cstdio>
__global__ void fill(int *out) { out[blockIdx.x * blockDim.x + threadIdx.x] = SIZE * FACTOR; }
int main() {
  int *out, host[SIZE];
  cudaMalloc(&out, sizeof host);
  for (int turn = 0; turn < 2; ++turn) fill<<<3, 16>>>(out);
  cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  printf("%d %ld\n", host[47], __cplusplus);
}
"""
    path = tmp_path / "a, b c.cu"  # nvcc splits what it is told at commas
    path.write_text(text)
    record, trace = tmp_path / "record.json", tmp_path / "trace.npy"
    options = (
        "-D",
        "FACTOR=2",
        "-I",
        tmp_path / "folder",
        "--flags=-std=c++20",
        "--counters",
        "--json",
        record,
        "--trace",
        trace,
    )
    done = command(path, options=tuple(map(str, options)))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "96 202002\n"
    assert "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum" in done.stderr
    saved = json.loads(record.read_text())
    assert [launch["kernel"] for launch in saved["launches"]] == ["fill", "fill"]
    assert saved["launches"][0]["counters"]["global_store_requests"] == 3 and saved["findings"] == []
    assert len(np.load(trace)) == 2 * 48
    (tmp_path / "folder" / "size.h").write_text("#define SIZE 96\n")  # a header in angle brackets is part of the source
    assert command(path, options=tuple(map(str, options))).stdout == "192 202002\n"


def test_flags_and_the_environment_are_part_of_what_is_built(monkeypatch):
    text = '#include <cstdio>\nint main() { printf("%d\\n", VALUE); }\n'
    path = source(text, "flagged")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DVALUE=1")
    assert command(path).stdout == "1\n"
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DVALUE=2")
    assert command(path).stdout == "2\n"
    monkeypatch.delenv("NVCC_APPEND_FLAGS")
    assert command(path, options=("--flags=-DVALUE=3",)).stdout == "3\n"


@pytest.mark.core(every=3)
@pytest.mark.parametrize(
    ("options", "text", "status", "said"),
    [
        ((), "int main() { return nothing; }", NOT_COMPILED_STATUS, r"error: identifier \"nothing\" is undefined"),
        (("--arch", "7.0"), "int main() {}", USAGE_STATUS, "compute capability must .*'7.0'"),
        (("--flags=-arch=sm_90",), "int main() {}", USAGE_STATUS, "-arch=sm_90: .*--arch"),
        ((), '__global__ void k() {}\nextern "C" int f() { return 1; }', NOT_COMPILED_STATUS, r"must have a main\(\)"),
        (
            (),
            "void elsewhere();\nint main() { elsewhere(); }",
            NOT_COMPILED_STATUS,
            r"uses elsewhere\(\) \(wrong\.cu:2\)",
        ),
        (
            (),
            "int main() {\n  cudaIpcMemHandle_t h;\n  return cudaIpcGetMemHandle(&h, nullptr);\n}",
            NOT_COMPILED_STATUS,
            r"calls cudaIpcGetMemHandle \(wrong\.cu:3\).*does not have: leave the call out \(#ifndef __EMULATOR__\)",
        ),
        (
            (),
            "__device__ char big[4ull << 30];\n__global__ void k() { big[0] = 1; }\nint main() { k<<<1, 1>>>(); }",
            NOT_COMPILED_STATUS,
            "__device__ variables must .*2 GB",
        ),
        (("--flags=-x c++",), "int main() {}", USAGE_STATUS, "error: -x.*nvcc"),
        (("--flags=-E",), "int main() {}", USAGE_STATUS, "error: -E.*nvcc"),
        (("--threads", "0"), "int main() {}", USAGE_STATUS, "threads must be a whole number"),
        (("--nonsense",), "int main() {}", USAGE_STATUS, "--help"),
        (("--error-exitcode", "0"), "int main() {}", USAGE_STATUS, "must be a number from 1 to 255, got '0'"),
        (
            ("--arch", "10.0"),
            '__global__ void k() { asm("st.bulk.weak.shared::cta [%0], 8, 0;" ::"l"(0ll)); }\n'
            "int main() { k<<<1, 1>>>(); }",
            NOT_RUN_STATUS,
            "the emulator cannot execute",
        ),
    ],
)
def test_what_cannot_be_run_is_explained(options, text, status, said, tmp_path):
    path = tmp_path / "wrong.cu"
    path.write_text(text + "\n")
    done = command(path, options=options)
    assert done.returncode == status and re.search(said.replace('\\"', '"'), done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_an_exit_status_of_ones_own_for_findings():
    path = source(TROUBLE, "trouble")
    assert command("--error-exitcode", 7, path, 3).returncode == 7
    assert command("--error-exitcode", 7, path, 0).returncode == 0
    assert command("--error-exitcode", 7, path.with_name("nothing.cu")).returncode == USAGE_STATUS
    nowhere = os.environ | {"CUDA_HOME": "/nowhere", "CUDAEMU_CACHE": "/proc/nowhere"}
    assert command(path, 0, env=nowhere).returncode == NOT_RUN_STATUS


def test_the_cache_has_a_door(tmp_path):
    environment = os.environ | {"CUDAEMU_CACHE": str(tmp_path), "CUDAEMU_CACHE_LIMIT": "2"}
    product = cache_of(tmp_path, environment)

    def asked(option: str) -> str:
        words = [sys.executable, "-m", "cudaemu", option]
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert asked("--cache") == f"{tmp_path}: 3 MB of at most 2,000 MB\n" and product.exists()
    assert asked("--clear-cache") == f"{tmp_path}: 0 MB of at most 2,000 MB, 3 MB freed\n" and not product.exists()


def cache_of(folder: Path, environment: dict[str, str]) -> Path:
    """A cache in that folder with a product of 3 MB."""
    script = (
        "from cudaemu.compiler import cache\n"
        'print(cache.get("thing", ["key"], lambda out: (out / "file").write_bytes(bytes(3_000_000))))'
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(folder))
    return Path(done.stdout.strip())


# ---- host code that goes wrong ---------------------------------------------------------------------------------------

TROUBLE = r"""
#include <cuda_runtime.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
__global__ void fill(int *a, int n) { a[blockIdx.x * blockDim.x + threadIdx.x] = n; }
__global__ void __launch_bounds__(256) bounded(int *a) { a[0] = 1; }
int depth(int n) { volatile char big[4096]; big[n % 4096] = n; return depth(n + 1) + big[0]; }
struct Early { Early() { if (getenv("CRASH_EARLY")) abort(); } } early;
int trouble(int what) {
  int *d, *m;
  cudaMalloc(&d, 32 * sizeof(int));
  cudaMallocManaged(&m, 32 * sizeof(int));
  fill<<<1, 32>>>(d, 7);
  cudaDeviceSynchronize();
  switch (what) {
    case 1: return *d;
    case 2: fill<<<1, 32>>>(m, 7); return m[3] == 7 && !cudaDeviceSynchronize() && m[4] == 7 ? 0 : 1;
    case 3: fill<<<1, 64>>>(d, 7); exit(5);
    case 4: throw std::runtime_error("thrown");
    case 5: { volatile int zero = what - 5; return 5 / zero; }
    case 6: return depth(1);
    case 7: for (volatile int i = 0;; ++i);
    case 8: return cudaMemcpy(d, (void *)0x123450, 128, cudaMemcpyHostToDevice) == cudaErrorInvalidValue ? 0 : 1;
    case 9: exit(3);
    case 10: { int h[99]; return cudaMemcpy(h, d, 400, cudaMemcpyDeviceToHost); }
    case 11: return cudaMalloc(&d, 1ull << 45) - 2 + cudaMalloc(&d, 1ull << 50) - 2 + cudaMalloc(&d, 8);
    case 12: cudaFree(d); fill<<<1, 32>>>(d, 2); return cudaDeviceSynchronize();
    case 13: return *(volatile int *)16;
    case 14: abort();
    case 15: cudaFree(d); return cudaFree(d);
    case 16: bounded<<<1, 2048>>>(d); return cudaGetLastError();
    case 17: fill<<<1, 32, 50000>>>(d, 1); return cudaGetLastError();
    case 18: fill<<<dim3(1, 65536), 32>>>(d, 1); return cudaGetLastError();
    case 19: return cudaMemcpy(&what, d, 4, cudaMemcpyHostToDevice);
    case 20: _Exit(0);
    case 21: return cudaMemcpy(d + 1, d, 4, cudaMemcpyDeviceToHost);
    case 22: for (int file = 3; file < 64; ++file) (void)!write(file, "not mine", 8); sleep(60);
    case 23: { int *h; cudaMallocHost(&h, 4); return cudaFree(h); }
    case 24: return cudaFreeHost(d);
  }
  return 0;
}
int main(int argc, char **argv) { return trouble(atoi(argv[1])); }
"""

# what -> exit status of the program, kind of finding (None: none), what is said
CASES = {
    1: (
        139,
        "device pointer on the host",
        r"host code reads or writes d \(cudaMalloc 1, line 13\) \+ 0 bytes.*trouble\.cu:18",
    ),
    2: (
        0,
        "managed memory too early",
        r"m \(cudaMallocManaged 2, line 14\) \+ 12 bytes.*cudaDeviceSynchronize is missing",
    ),
    3: (5, "out of bounds global", r"just past the end of d.*thread \(32, 0, 0\)"),
    4: (134, "host crash", r"SIGABRT.*trouble\.cu:21"),
    5: (136, "host crash", r"SIGFPE.*trouble\.cu:22"),
    6: (139, "host crash", r"endless recursion.*in depth"),
    8: (0, "wild host pointer", r"cudaMemcpy: 128 bytes at 0x123450"),
    11: (0, None, ""),
    12: (188, "out of bounds global", r"d \(cudaMalloc 1, line 13\) \+ 0 bytes, which was freed"),
    13: (139, "host crash", r"SIGSEGV\) at address 0x10.*cudaDeviceSynchronize"),
    14: (134, "host crash", r"SIGABRT"),
    15: (1, "double free", r"d \(cudaMalloc 1, line 13\) was freed before, at trouble\.cu:32"),
    22: (137, "host crash", r"a file descriptor that it has not opened"),
}


def spaced(text: object) -> str:
    return " ".join(str(text).split())


@pytest.mark.parametrize("what", CASES)
def test_host_code_of_a_stranger(what):
    """The program ends as it would; this process goes on, and knows why and where."""
    status, kind, said = CASES[what]
    report = cudaemu.program(source(TROUBLE, "trouble"), [str(what)])
    assert report.status == status
    assert [finding.kind for finding in report.findings] == ([kind] if kind else [])
    assert re.search(said, spaced(report)), report


def test_findings_decide_the_exit_status_and_come_at_once():
    done = command(source(TROUBLE, "trouble"), 3)
    assert done.returncode == FINDINGS_STATUS and "out of bounds global" in done.stderr
    assert command(source(TROUBLE, "trouble"), 0).returncode == 0
    assert command(source(TROUBLE, "trouble"), 9).returncode == 3


@pytest.mark.parametrize(
    ("what", "status", "why"),
    [
        (10, 1, "cudaMemcpy: 400 bytes at d (cudaMalloc 1, line 13) + 0 bytes (it has 128 from there)"),
        (16, 1, "bounded: 2048 threads per block, at most 256 (launch bounds 256)"),
        (17, 1, "fill: 50000 bytes of dynamic shared memory, at most 49152 without cudaFuncAttribute"),
        (18, 1, "fill: 65536 blocks along y, at most 65535"),
        (19, 1, "the target must be device memory"),
        (23, 1, "cudaFree of memory that another call allocated"),
        (24, 1, "cudaFreeHost of memory that another call allocated"),
    ],
)
def test_refusals_have_a_reason(what, status, why):
    report = cudaemu.run(source(TROUBLE, "trouble"), "trouble", [what])
    assert report.status == status and why in report.error, report.error
    called = re.search(r"\(trouble\.cu:(\d+)\)$", report.error)
    assert called and f"case {what}:" in TROUBLE.splitlines()[int(called[1]) - 1], report.error
    done = command(source(TROUBLE, "trouble"), what)
    assert done.returncode == status and why in " ".join(done.stderr.split())


def test_a_direction_that_cuda_corrects_is_a_note():
    """Device memory is known by its address, whatever the direction says: so it is on a GPU (hardware.json)."""
    report = cudaemu.run(source(TROUBLE, "trouble"), "trouble", [21])
    assert report.status == 0 and not report.findings, report
    (note,) = report.notes
    assert note.kind == "wrong direction" and "the target must be host memory" in note.message


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (1, "device pointer on the host"),
        (4, "SIGABRT"),
        (6, "endless recursion"),
        (9, "exit status 3 instead of returning; its last CUDA call was cudaDeviceSynchronize"),
        (13, "SIGSEGV"),
        (20, "exit status 0 instead of returning"),
    ],
)
def test_a_launcher_that_does_not_return(what, said):
    report = cudaemu.run(source(TROUBLE, "trouble"), "trouble", [what])
    assert report.status == 999 and not report.ok and said in str(report)
    assert len(report.launches) == 1  # what there was until then is kept


def test_findings_before_a_crash_are_kept():
    report = cudaemu.run(source(TROUBLE, "trouble"), "trouble", [3])
    assert [finding.kind for finding in report.findings] == ["out of bounds global", "host exit"]


def test_a_crash_in_a_constructor(monkeypatch):
    monkeypatch.setenv("CRASH_EARLY", "1")
    report = cudaemu.run(source(TROUBLE, "trouble"), "trouble", [0])
    assert "SIGABRT" in str(report) and "it had not called CUDA" in str(report)


@pytest.mark.full
def test_an_endless_loop_on_the_host_is_ended():
    started = time.monotonic()
    report = cudaemu.run(source(TROUBLE, "trouble"), "trouble", [7], timeout=1)
    assert "has run for 1 s without calling CUDA" in str(report) and time.monotonic() - started < 30


READS = r"""#include <cuda_fp16.h>
#include <cuda_runtime.h>
extern "C" cudaError_t reads(const half *a, float *b, int n) {
  if (float(a[0]) == 0.f) return cudaErrorUnknown;  // the read
  b[0] = 1, n += 1;
  return n ? cudaGetLastError() : cudaSuccess;
}
"""


def test_a_fault_at_the_beginning_of_a_function():
    """g++ gives the load no line of its own: it seems to be on the one with the function's name."""
    a, b = torch.ones(32).half(), torch.ones(32)
    report = cudaemu.run(source(READS, "reads"), "reads", [a, b, 1])
    (finding,) = report.findings
    assert (finding.kind, finding.line) == ("device pointer on the host", 4), report


def interrupted(path: Path, *arguments: str, after: float) -> tuple[int, str, float]:
    """A program at which Ctrl-C is pressed: its exit status, what it said, the seconds that it then took."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cudaemu", str(path), *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # not as a job in the background
    )
    try:
        time.sleep(after)
        os.killpg(process.pid, signal.SIGINT)
        started = time.monotonic()
        _, said = process.communicate(timeout=60)
        return process.returncode, said, time.monotonic() - started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.full
def test_ctrl_c_ends_an_endless_loop_on_the_host():
    cudaemu.program(source(TROUBLE, "trouble"), ["0"])  # compiled
    status, said, _ = interrupted(source(TROUBLE, "trouble"), "7", after=2)
    assert status == 130 and "Traceback" not in said


@pytest.mark.full
def test_ctrl_c_ends_a_long_kernel():
    text = r"""
__global__ void k(volatile int *p) { for (int i = 0; i < 1000000; ++i) p[threadIdx.x] = i; }
int main() { int *p; cudaMalloc(&p, 128); k<<<100000, 32>>>(p); }
"""
    cudaemu.load(source(text, "long"))  # compiled
    status, said, seconds = interrupted(source(text, "long"), after=3)
    assert status == 130 and "Traceback" not in said and seconds < 10


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "status"),
    [(["-m", "cudaemu", "x.cu"], 130), (["cudaemu", "x.cu"], 130), (["-c", "import cudaemu"], -signal.SIGINT)],
)
def test_ctrl_c_while_the_command_starts(tmp_path, words, status):
    """In NumPy's place there is a module at whose import Ctrl-C is pressed."""
    (tmp_path / "numpy.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n")
    (tmp_path / "cudaemu").write_text("from cudaemu.__main__ import main\nmain()\n")  # as pip makes it
    words = [str(tmp_path / "cudaemu") if word == "cudaemu" and words[0] == word else word for word in words]
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert ended.returncode == status and (status != 130 or not ended.stdout + ended.stderr), ended


# ---- streams, threads ------------------------------------------------------------------------------------------------

STREAMS = r"""
#include <cuda_runtime.h>
__global__ void add(int *a) { atomicAdd(a, 1); }
extern "C" cudaError_t launch(int *a, int own, cudaStream_t stream) {
  cudaStream_t other;
  cudaStreamCreate(&other);
  add<<<1, 1, 0, stream>>>(a);
  if (own == 1) add<<<1, 1, 0, other>>>(a);
  if (own == 2) add<<<1, 1>>>(a);
  cudaStreamDestroy(other);
  if (own == 3) add<<<1, 1, 0, other>>>(a);
  return stream ? cudaGetLastError() : cudaErrorUnknown;
}
"""


@pytest.mark.parametrize(("own", "kinds", "status"), [(0, [], 0), (1, [], 0), (2, ["wrong stream"], 0), (3, [], 400)])
def test_the_launcher_is_given_a_stream(own, kinds, status):
    """A launcher that forgets its stream works on an idle GPU and fails in somebody's program."""
    count = torch.zeros(1, dtype=torch.int32)
    report = cudaemu.run(source(STREAMS, "streams"), "launch", [count, own, None])
    assert [finding.kind for finding in report.findings] == kinds and report.status == status
    assert count.item() == 1 + (own in (1, 2))
    if own == 2:
        assert report.findings[0].line == 9


THREADS = r"""
#include <cuda_runtime.h>
__device__ int turns = 0;
__global__ void work(const float *in, float *out, int n, float add) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] + add + turns - 1;
}
__global__ void count() { turns += 1; }
extern "C" int launch(const float *in, float *out, int n, float add, cudaStream_t stream) {
  float *scratch;
  cudaMalloc(&scratch, n * sizeof(float));
  count<<<1, 1, 0, stream>>>();
  work<<<1, 256, 0, stream>>>(in, scratch, n, add);
  cudaMemcpyAsync(out, scratch, n * sizeof(float), cudaMemcpyDeviceToDevice, stream);
  return cudaFree(scratch) | cudaGetLastError();
}
"""


def test_several_threads_at_once():
    """Each call has memory, module variables and errors of its own."""
    path, wrong = source(THREADS, "threads"), []

    def work(number: int) -> None:
        for turn in range(6):
            data, out = torch.arange(200.0), torch.full((200,), torch.nan)
            report = cudaemu.run(path, "launch", [data, out, 200, float(number + turn), None], outputs=["out"])
            if not report.ok or not torch.equal(out, data + (number + turn)):
                wrong.append((number, turn, str(report)))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.full
def test_the_program_dies_with_the_one_that_runs_it():
    words = [sys.executable, "-m", "cudaemu", str(source(TROUBLE, "trouble")), "7"]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    children: list[str] = []
    while not children and time.monotonic() < deadline:
        time.sleep(0.2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        children = [pid for pid in children if "runner" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert children
    process.kill()
    process.wait()
    while time.monotonic() < deadline and Path(f"/proc/{children[0]}").exists():
        time.sleep(0.1)
    assert not Path(f"/proc/{children[0]}").exists()


def test_a_source_that_is_none():
    with pytest.raises(UserError, match="no such file"):
        cudaemu.load("nothing.cu")


def test_what_is_copied_to_the_host_and_nobody_has_written_is_noted():
    """A word or more: single bytes pad structures."""
    text = r"""
struct Padded { short a; int b; };
__global__ void few(int *out, Padded *padded) { out[threadIdx.x] = 1, padded[threadIdx.x] = {1, 2}; }
int main() {
  int *d_out, out[64];
  Padded *d_padded, padded[60];
  cudaMalloc(&d_out, sizeof out);
  cudaMalloc(&d_padded, sizeof padded);
  few<<<1, 60>>>(d_out, d_padded);
  cudaMemcpy(padded, d_padded, sizeof padded, cudaMemcpyDeviceToHost);
  return cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost);
}
"""
    report = cudaemu.program(source(text, "copied"))
    assert report.ok
    (note,) = report.notes
    assert note.message == (
        "cudaMemcpy: 16 of 256 bytes have never been written, the first at d_out (cudaMalloc 1, line 7) + 240 bytes"
    )


# ---- programs that nobody would write, and streams that are not there ------------------------------------------------

ODD = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
__global__ void last(int *p) { p[-1] = 1; }
__global__ void print() {
  if (threadIdx.x == 0) printf("block %d\n", blockIdx.x);
}
int main(int, char **argv) {
  int *d, here = 7;
  cudaMalloc(&d, 4096);
  cudaMemset(d, 0, 4096);
  if (!strcmp(argv[1], "last")) last<<<1, 1>>>(nullptr);
  if (!strcmp(argv[1], "null")) {
    printf("%d ", (int)cudaMemcpy(nullptr, d, 4, cudaMemcpyDeviceToHost));
    printf("%d ", (int)cudaMemcpy(d, nullptr, 4, cudaMemcpyHostToDevice));
    printf("%d ", (int)cudaMemcpy((void *)~7ull, d, 4, cudaMemcpyDeviceToHost));
    printf("%d ", (int)cudaMemcpy(&here, d, 4, cudaMemcpyDeviceToHost));
    cudaGetLastError();
  }
  if (!strcmp(argv[1], "close"))
    for (int i = 3; i < 100; ++i) close(i);
  if (!strcmp(argv[1], "close")) print<<<1, 1>>>();
  if (!strcmp(argv[1], "child") && fork() == 0) {
    sleep(120);
    _exit(0);
  }
  if (!strcmp(argv[1], "print")) {
    printf("before ");
    print<<<5000, 32>>>();
  }
  printf("%d %d\n", (int)cudaDeviceSynchronize(), here);
}
"""


def odd(what: str, **settings) -> subprocess.CompletedProcess:
    return command(source(ODD, "odd"), what, **settings)


def test_one_element_before_a_null_pointer():
    """It took Python down."""
    done = odd("last")
    assert done.returncode == FINDINGS_STATUS and done.stdout == "700 7\n"
    assert "out of bounds global: 4 bytes, 4 bytes before a null pointer" in done.stderr


def test_copies_of_null_and_wild_pointers_are_refused():
    done = odd("null")
    assert done.stdout == "1 1 1 0 0 0\n"
    assert "cudaMemcpy: the target is a null pointer" in done.stderr and "source is a null pointer" in done.stderr


def test_a_program_that_closes_what_it_did_not_open_is_told():
    done = odd("close")
    assert done.returncode == 125 and "the program has closed descriptor" in done.stderr


@pytest.mark.full
def test_a_child_in_the_background_is_not_waited_for():
    started = time.monotonic()
    done = _to_files("child")
    assert done == (0, "0 7\n") and time.monotonic() - started < 60


def _to_files(what: str) -> tuple[int, str]:
    """The command with its output in a file: a pipe would stay open as long as the child has it."""
    with tempfile.TemporaryFile("w+") as out:
        words = [sys.executable, "-m", "cudaemu", "-q", str(source(ODD, "odd")), what]
        done = subprocess.run(words, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL, check=False, timeout=100)
        out.seek(0)
        return done.returncode, out.read()


def test_what_kernels_print_stays_in_its_place_among_the_rest():
    done = odd("print")
    assert done.stdout == "before " + "".join(f"block {n}\n" for n in range(5000)) + "0 7\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_else(closed):
    words = [sys.executable, "-m", "cudaemu", "-q", str(source(ODD, "odd")), "print"]
    done = subprocess.run(["/bin/sh", "-c", f'"$@" {closed}', "sh", *words], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert done.stdout.endswith("0 7\n") or ">&-" in closed.split("2>&-")[0]


def test_python_without_streams_runs_programs():
    script = f"""
import sys
sys.stdout = sys.stderr = None
import cudaemu
report = cudaemu.program({str(source(ODD, "odd"))!r}, ["print"])
library = cudaemu.load({str(source(ODD, "odd"))!r})
sys.exit(0 if report.status == 0 and library.launch("print", 5, 32).status == 0 else 1)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_findings_and_json_with_a_closed_standard_output():
    words = [sys.executable, "-m", "cudaemu", "-q", str(source(ODD, "odd")), "last"]
    done = subprocess.run(["/bin/sh", "-c", '"$@" >&-', "sh", *words], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    assert done.returncode == FINDINGS_STATUS and "before a null pointer" in done.stderr
    words = [sys.executable, "-m", "cudaemu", "-q", "--json", "-", str(source(ODD, "odd")), "last"]
    done = subprocess.run(["/bin/sh", "-c", '"$@" >&-', "sh", *words], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    assert done.returncode == NOT_RUN_STATUS and "Traceback" not in done.stderr
    assert "--json - writes to standard output, which is closed" in done.stderr


def test_a_path_of_other_letters_in_an_ascii_locale(tmp_path):
    """Python's names of files are then not the text that compilers write."""
    path = tmp_path / "é日" / "ü.cu"
    path.parent.mkdir()
    path.write_text('#include "größe.h"\n#include <cstdio>\nint main() { printf("%d\\n", SIZE); }\n', encoding="utf-8")
    path.with_name("größe.h").write_text("#define SIZE 7\n")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for _ in range(2):  # compiled, and found in the cache
        done = command(path, env={**os.environ, **ascii_only})
        assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_nvcc_may_be_asked_for_line_information():
    """What begins with -l is for the linker, except this."""
    assert command(source(ODD, "odd"), "last", options=("-q", "--flags=-lineinfo")).stdout == "700 7\n"


# ---- what is wrong, in words that lead to it -------------------------------------------------------------------------

TOLD = r"""
#include <cooperative_groups.h>
__device__ __noinline__ int deeper(int n, volatile int *p) {
  volatile int a[64];
  a[n & 63] = n;
  return deeper(n + 1, p) + a[n & 63];
}
extern "C" __global__ void recursion(int *p) { p[0] = deeper(0, p); }
extern "C" __global__ void grid_sync(int *p) {
  cooperative_groups::this_grid().sync();
  p[0] = 1;
}
extern "C" __global__ void dynamic(int *p) {
  extern __shared__ int s[];
  __shared__ volatile int fixed[4];
  s[threadIdx.x + 64] = fixed[0] = 1;
  p[threadIdx.x] = s[threadIdx.x + 64];
}
extern "C" __global__ void wild_free(int *p) { free((void *)1234); }
template <class A, class B> __global__ void named(A *p) { p[0] = 1; }
template <class T> struct a_type_with_a_long_name {};
int main() {
  int *d;
  cudaMalloc(&d, 4096);
  named<int, a_type_with_a_long_name<a_type_with_a_long_name<a_type_with_a_long_name<float>>>><<<1, 1>>>(d);
  named<int, a_type_with_a_long_name<a_type_with_a_long_name<a_type_with_a_long_name<double>>>><<<1, 1>>>(d);
}
"""


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [
        ("recursion", "stack overflow", "more than the 16384 bytes of stack"),
        ("grid_sync", "trap", "co-operative launch"),
        ("dynamic", "out of bounds shared", "16 bytes that the kernel declares, and 128 dynamic"),
        ("wild_free", "bad free", "a null pointer + 1234 bytes"),
    ],
)
def test_findings_say_what_is_behind_them(kernel, kind, words):
    library = cudaemu.load(source(TOLD, "told"))
    report = library.launch(kernel, 1, 32, np.zeros(1024, np.int32), shared=128)
    assert kind in [finding.kind for finding in report.findings] and words in str(report)


def test_kernels_of_a_template_have_short_names_that_tell_them_apart():
    done = command(source(TOLD, "told"), options=())
    heads = [line.partition(":")[0] for line in done.stderr.splitlines() if line.startswith("named<")]
    assert len(set(heads)) == 2 and all(len(head) < 80 for head in heads)


@pytest.mark.full
def test_a_long_launch_is_announced_where_no_terminal_shows_it(monkeypatch, capsys):
    from cudaemu import __main__ as main

    now = [0.0]
    monkeypatch.setattr(main.time, "monotonic", lambda: now[0])
    bar = main._Bar()
    for now[0] in (1.0, 5.0, 12.0, 13.0, 19.0, 22.0, 30.0):
        bar(3, 4000)
    bar(4000, 4000)
    told = capsys.readouterr().err.splitlines()
    assert told == [f"emulating: 3 of 4,000 blocks after {n} s; Ctrl-C ends it" for n in (10, 20)]


# ---- right programs of others ----------------------------------------------------------------------------------------

BOTH_SIDES = r"""
#include <cstdio>
#include <cuda_runtime.h>
__global__ void add(int *n) { ADD(n, 1); }
int main() {
  int *n;
  cudaMallocManaged(&n, sizeof *n);
  *n = 0;
  add<<<4, 64>>>(n);
  for (int i = 0; i < 100; ++i) __sync_fetch_and_add(n, 1);
  cudaDeviceSynchronize();
  printf("%d\n", *n);
}
"""


@pytest.mark.parametrize(("add", "kinds"), [("atomicAdd_system", []), ("atomicAdd", ["managed memory too early"])])
def test_the_host_may_meet_a_kernel_that_is_made_for_it(add, kinds):
    report = cudaemu.program(source(BOTH_SIDES.replace("ADD", add), f"both_sides_{add}"))
    assert [finding.kind for finding in report.findings] == kinds, report


GLOBAL_OWNERS = r"""
#include <cstdio>
#include <cuda_runtime.h>
struct Owner {
  cudaError_t (*release)(void *);
  void *p = nullptr;
  ~Owner() { printf("%d", int(release(p))); }
};
cudaError_t end_stream(void *p) { return cudaStreamDestroy(cudaStream_t(p)); }
cudaError_t end_event(void *p) { return cudaEventDestroy(cudaEvent_t(p)); }
Owner device[5] = {{cudaFree}, {cudaFree}, {cudaFree}, {cudaFree}, {cudaFree}};
Owner managed{cudaFree}, pinned{cudaFreeHost}, stream{end_stream}, event{end_event};
int main() {
  for (Owner &each : device) cudaMalloc(&each.p, 100);
  cudaMallocManaged(&managed.p, 100);
  cudaMallocHost(&pinned.p, 100);
  cudaStreamCreate(reinterpret_cast<cudaStream_t *>(&stream.p));
  cudaEventCreate(reinterpret_cast<cudaEvent_t *>(&event.p));
}
"""


def test_global_objects_free_what_they_own_after_main(capfd):
    report = cudaemu.program(source(GLOBAL_OWNERS, "global_owners"))
    assert report.ok and report.status == 0 and capfd.readouterr().out == "0" * 9, report


LIBRARY = r"""
#include <cstdio>
#include <cub/device/device_radix_sort.cuh>
#include <thrust/device_vector.h>
#include <thrust/remove.h>
#include <thrust/unique.h>
struct Odd { __host__ __device__ bool operator()(int x) const { return x & 1; } };
int main() {
  const int n = 3000;  // not a multiple of any tile
  int from[n], in_pairs[n];
  for (int i = 0; i < n; ++i) from[i] = i * 7919 % 10007, in_pairs[i] = i / 2;
  thrust::device_vector<int> keys(from, from + n), values = keys, sorted(n), sorted_values(n);
  size_t bytes = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys.data().get(), sorted.data().get(), values.data().get(),
                                  sorted_values.data().get(), n);
  thrust::device_vector<char> room(bytes);
  cub::DeviceRadixSort::SortPairs(room.data().get(), bytes, keys.data().get(), sorted.data().get(), values.data().get(),
                                  sorted_values.data().get(), n);
  int right = 1;
  for (int i = 1; i < n; ++i) right &= sorted[i - 1] <= sorted[i];
  const int even = thrust::remove_if(keys.begin(), keys.end(), Odd()) - keys.begin();
  thrust::device_vector<int> pairs(in_pairs, in_pairs + n);
  const int different = thrust::unique(pairs.begin(), pairs.end()) - pairs.begin();
  return !(right && even == EVEN && different == n / 2);
}
"""


@pytest.mark.full
def test_thrust_and_cub_are_clean():
    """They pass on values that nobody has set, and overwrite what other blocks have counted."""
    even = sum(i * 7919 % 10007 % 2 == 0 for i in range(3000))
    report = cudaemu.program(source(LIBRARY.replace("EVEN", str(even)), "library"))
    assert report.ok and report.status == 0, report


def test_findings_as_other_programs_read_them(tmp_path):
    """At the finding's line, for GitHub and as SARIF; nothing of it in the program's own output."""
    path = source(TROUBLE, "trouble")
    annotated = command("--format", "github", path, 3)
    assert annotated.returncode == FINDINGS_STATUS
    found = re.search(
        r"^::error file=\S+trouble\S*\.cu,line=(\d+),title=out of bounds global::\S", annotated.stderr, re.M
    )
    assert found and "::error" not in annotated.stdout
    written = tmp_path / "found.sarif"
    assert command("--format", "sarif", "--output", written, path, 3).returncode == FINDINGS_STATUS
    record = json.loads(written.read_text())
    (result,) = record["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert record["version"] == "2.1.0" and result["ruleId"] == "out-of-bounds-global"
    assert place["region"]["startLine"] == int(found[1]) and place["artifactLocation"]["uri"].endswith(".cu")
    assert [rule["id"] for rule in record["runs"][0]["tool"]["driver"]["rules"]] == ["out-of-bounds-global"]
    assert command("--output", written, path, 0).returncode == USAGE_STATUS
