"""nvcc's passes at the same time: the same products and the same complaints as nvcc's own, and nothing left running."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cudaemu.compiler import headers, passes, toolchain
from cudaemu.errors import UserError

NAME = "source.cu"
KERNELS = """#include <cuda_fp16.h>
namespace {
__device__ float bias;
__global__ void scale(half *x) { x[threadIdx.x] = __hadd(x[threadIdx.x], __float2half(bias)); }
}
__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }
extern "C" int launch(half *x, float *y) {
  scale<<<1, 32>>>(x);
  twice<<<1, 32>>>(y);
  return cudaGetLastError();
}
"""


def command(*flags: str) -> list[object]:
    nvcc, cxx = toolchain.find_nvcc(), toolchain.find_cxx()
    target = ["-gencode", "arch=compute_80,code=compute_80", "-Xcompiler", "-fPIC,-g1", "--cudart=none"]
    kept = ["--keep", "--keep-dir", ".", "-c", NAME, "-o", "kernel.o"]
    return [nvcc.path, "-ccbin", cxx, "-std=c++17", "-lineinfo", *target, *flags, *kept]


@pytest.fixture
def compiled(tmp_path):
    """Compiles a source by itself, in a new folder."""

    def compile(text: str, run, *flags: str) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / NAME).write_text(text)
        run(command(*flags), folder)
        return folder

    return compile


def by_nvcc(words: list[object], folder: Path) -> None:
    toolchain.run(words, cwd=folder)


@pytest.fixture(scope="module")
def products(tmp_path_factory) -> tuple[Path, Path]:
    """What these passes and what nvcc makes of KERNELS."""
    folders = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("theirs")
    for folder, run in zip(folders, (passes.compile_source, by_nvcc)):
        (folder / NAME).write_text(KERNELS)
        run(command(), folder)
    return folders


def ptx_of(folder: Path) -> str:
    """The PTX, with one name for the folder, and one for the file, which nvcc makes of the folder's."""
    name = (folder / "source.module_id").read_text()
    assert re.fullmatch(r"_[0-9a-f]{8}_9_source_cu_\w+", name)
    text = (folder / "source.ptx").read_text()
    assert name in text
    text = re.sub(r"\d+(_INTERNAL_FILE|_GLOBAL__N__FILE)", r"\1", text.replace(name, "_FILE"))  # however long it is
    text = text.replace(str(folder), "FOLDER")
    return re.sub(r"^\.b8 .*\n", "", text, flags=re.MULTILINE)  # the same names as numbers, letter by letter


def test_the_ptx_is_nvccs(products):
    ours, theirs = products
    assert ptx_of(ours) == ptx_of(theirs)


def test_both_passes_know_the_file_by_one_name(products):
    ours, _ = products
    (kernel,) = re.findall(r"\.entry (_ZN\w+scaleE\w+)", (ours / "source.ptx").read_text())
    assert kernel.encode() in (ours / "kernel.o").read_bytes(), "what the host code registers"


BROKEN = {
    "a kernel that does not compile": "__global__ void k(float *x) { x[0] = y; }\n",
    "host code that does not compile": "int f() { return g(); }\n__global__ void k(float *x) { x[0] = y; }\n",
    "a warning before": "int f() { int unused; return 1; ; }\nint g() { return 1; return 2; }\nint h() { return i; }\n",
    "only the device's pass": "#ifdef __CUDA_ARCH__\n#error no device\n#endif\n__global__ void k() { y = 1; }\n",
    "only the device's compiler": "__global__ void k() {\n#ifdef __CUDA_ARCH__\n  y = 1;\n#endif\n}\nint i = 1u << 40;",
    "a header that is not there": '#include "nowhere.h"\n',
    "what only the host compiler sees": 'void f() { asm("nonsense"); }\n',
}


@pytest.mark.parametrize("why", BROKEN)
def test_what_is_said_of_a_broken_source_is_what_nvcc_says(why, compiled):
    said = []
    for run in (passes.compile_source, by_nvcc):
        with pytest.raises(UserError) as raised:
            compiled(BROKEN[why], run)
        said.append((type(raised.value), re.sub(r"/tmp/\w+\.s", "/tmp/NAME.s", str(raised.value))))
    assert said[0] == said[1]
    assert "error" in said[0][1].lower()


def test_the_object_is_nvccs(products):
    """Though the host's compiler read less than half of the text."""
    ours, theirs = products
    assert len((ours / "source.cudafe1.cpp").read_bytes()) < len((theirs / "source.cudafe1.cpp").read_bytes()) / 2
    assert _symbols(ours) == _symbols(theirs)
    assert _lines(ours) == _lines(theirs) != []


def test_a_source_that_lacks_a_header_is_given_all(compiled, products, monkeypatch):
    monkeypatch.setattr(headers.Headers, "needed", lambda self, source, more: "")
    assert _symbols(compiled(KERNELS, passes.compile_source)) == _symbols(products[0])


def _symbols(folder: Path) -> list[str]:
    """What the object gives to others, and takes from them."""
    name = (folder / "source.module_id").read_text()
    said = toolchain.run(["nm", "kernel.o"], cwd=folder).replace(name, "_FILE")
    return sorted(line[17:] for line in said.splitlines() if line[17] in "TWU")


def _lines(folder: Path) -> list[str]:
    """The lines of the source that the object has code of."""
    said = toolchain.run(["objdump", "--dwarf=decodedline", "kernel.o"], cwd=folder)
    return re.findall(rf"^{re.escape(NAME)}\s+(\d+)\s", said, re.MULTILINE)


@pytest.mark.parametrize("bracket", ['"mine.h"', "<mine.h>"])
def test_a_users_header_is_not_taken_for_the_toolkits(bracket, compiled, tmp_path_factory):
    """What a person edits between two runs is read anew each time."""
    folder = tmp_path_factory.mktemp("include")
    for value in (1234, 5678):
        (folder / "mine.h").write_text(f"__device__ int mine() {{ return {value}; }}\n")
        source = f"#include {bracket}\n__global__ void number(int *x) {{ *x = mine(); }}\n"
        made = compiled(source, passes.compile_source, "-I", str(folder))
        assert str(value) in (made / "source.ptx").read_text()


@pytest.mark.parametrize("flag", ["-MD", "--use_fast_math"])
def test_flags_mean_what_they_mean_to_nvcc(flag, compiled):
    ours, theirs = (compiled(KERNELS, run, flag) for run in (passes.compile_source, by_nvcc))
    assert (ours / "kernel.o").exists()
    assert ptx_of(ours) == ptx_of(theirs)


def test_the_plan_is_known(tmp_path):
    """Of this machine's compiler: where it is not, everything works, but twice as slowly."""
    (tmp_path / NAME).write_text(KERNELS)
    plan = passes._plan(command(), tmp_path)
    assert plan is not None


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """A plan whose second pass takes a minute, and leaves its number first; the first is still to be given."""

    def plan(first: str) -> None:
        second = ["echo $$ > number", "sleep 60", "touch late"]
        made = passes._Plan({}, [[f"true -o {NAME}", first], ["true -o x", *second]], ["touch late"])
        monkeypatch.setattr(passes, "_plan", lambda command, folder: made)

    yield plan
    while not (tmp_path / "number").exists():
        time.sleep(0.01)
    group, end = (tmp_path / "number").read_text().strip(), time.monotonic() + 30
    while (left := _alive(group)) and time.monotonic() < end:  # ended they are at once, gone a little later
        time.sleep(0.01)
    assert not left
    assert not (tmp_path / "late").exists()


def _alive(group: str) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, of_group = rest.split()[:3]
        if of_group == group and state != "Z":
            found.append(name)
    return found


def test_a_failure_ends_the_other_pass(slow, tmp_path):
    slow("until [ -e number ]; do :; done; echo bad; exit 3")
    with pytest.raises(toolchain.ToolFailed, match="^bad$"):
        passes.compile_source(["nvcc"], tmp_path)


def test_an_interrupt_ends_both_passes(slow, tmp_path):
    slow("until [ -e number ]; do :; done; sleep 60")
    with ThreadPoolExecutor() as pool:
        compiling = pool.submit(passes.compile_source, ["nvcc"], tmp_path)
        while not (tmp_path / "number").exists():
            time.sleep(0.01)
        passes.interrupt()
        assert isinstance(error := compiling.exception(30), UserError), error
    assert str(error) == "the compilation was interrupted" and not isinstance(error, toolchain.ToolFailed)
    passes.interrupt()  # nothing is left to interrupt
