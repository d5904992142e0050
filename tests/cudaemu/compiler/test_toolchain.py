"""Finding the compilers, and the cache that parallel processes share."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest

from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment without any compiler, and with a cache of its own."""
    for name in ("CUDA_HOME", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "_pip_tool", lambda name: None)
    return monkeypatch


def test_missing_compilers_say_what_to_install(bare):
    with pytest.raises(UserError, match=r'pip install "cuda-toolkit\[nvcc,cccl\]" nvidia-cuda-cuobjdump'):
        toolchain.find_nvcc()
    with pytest.raises(UserError, match=r"apt install g\+\+"):
        toolchain.find_cxx()
    bare.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="CXX is 'no-such-compiler'"):
        toolchain.find_cxx()


def fake_nvcc(home: Path, release: str = "13.7", top: str = "") -> Path:
    """A program that answers --version, and --dryrun with the toolkit `top`."""
    path = home / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\necho '#$ TOP={top}'\n")
    path.chmod(0o755)
    return path


def test_cuda_home_comes_first_then_the_path_then_pip(bare, tmp_path):
    first, second, third = (fake_nvcc(tmp_path / name) for name in ("home", "path", "pip"))
    bare.setattr(toolchain, "_pip_tool", lambda name: str(third))
    assert toolchain.find_nvcc().path == third
    bare.setenv("PATH", str(second.parent))
    assert toolchain.find_nvcc().path == second
    bare.setenv("CUDA_HOME", str(first.parent.parent))
    assert toolchain.find_nvcc().path == first
    bare.setenv("CUDA_HOME", str(tmp_path / "runtime-only"))
    assert toolchain.find_nvcc().path == second
    assert toolchain.find_nvcc().release == "13.7"


def test_a_wrapper_leads_to_its_toolkit(bare, tmp_path):
    toolkit = tmp_path / "toolkit"
    (toolkit / "include").mkdir(parents=True)
    (toolkit / "include" / "cuda_runtime.h").touch()
    nvcc = toolchain.describe_nvcc(fake_nvcc(tmp_path / "wrapper", top=f"{toolkit}/bin/.."))
    assert nvcc.home == toolkit and nvcc.include == toolkit / "include"


def test_the_cache_is_where_the_environment_says(bare, tmp_path):
    assert cache.folder() == tmp_path / "cache"
    bare.delenv("CUDAEMU_CACHE")
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "gpu-kernels-course"


def _build(folder: Path, log: Path) -> Path:
    def build(out: Path) -> None:
        with open(log, "a") as file:
            file.write("built\n")
        time.sleep(0.2)
        (out / "product").write_text("whole")

    os.environ["CUDAEMU_CACHE"] = str(folder)
    return cache.get("thing", ["key"], build)


def test_processes_build_a_product_once(bare, tmp_path):
    log = tmp_path / "log"
    with multiprocessing.get_context("fork").Pool(4) as pool:
        places = set(pool.starmap(_build, [(tmp_path / "cache", log)] * 8))
    (place,) = places
    assert (place / "product").read_text() == "whole"
    assert log.read_text() == "built\n"


def test_a_failed_build_leaves_nothing(bare, tmp_path):
    def build(out: Path) -> None:
        (out / "half").touch()
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        cache.get("thing", ["key"], build)
    assert [path.suffix for path in cache.folder().iterdir()] == [".lock"]


def test_a_listing_is_made_once_of_each_code_by_each_tool(bare, tmp_path):
    """Wherever the code lies; another one, another release or another way to print it is another listing."""
    tool, log = tmp_path / "nvdisasm", tmp_path / "log"

    def release(version: str) -> None:
        tool.write_text(f'#!/bin/sh\n[ $1 = --version ] && echo {version} && exit\necho "$@" >> {log}\necho "$@"\n')
        tool.chmod(0o755)
        toolchain._version.cache_clear()

    release("13.0")
    bare.setattr(toolchain, "find_tool", lambda name: str(tool))
    one, same, other = (tmp_path / f"{name}.cubin" for name in ("one", "same", "other"))
    for path, code in ((one, b"1"), (same, b"1"), (other, b"2")):
        path.write_bytes(code)
    said = [toolchain.disassemble(path) for path in (one, same, other)] + [toolchain.disassemble_with_lines(one)]
    assert said == [f"-sass {one}\n", f"-sass {one}\n", f"-sass {other}\n", f"-gi -c {one}\n"]
    assert len(log.read_text().splitlines()) == 3
    release("13.1")
    toolchain.disassemble(one)
    assert len(log.read_text().splitlines()) == 4


def test_a_source_is_what_it_includes_too(tmp_path):
    (tmp_path / "kernel.cu").write_text('#include <cuda_fp16.h>\n#include "helper.h"\n#include "missing.h"\nint x;\n')
    (tmp_path / "helper.h").write_text('#include "kernel.cu"\nint y;\n')
    first = toolchain.source_texts(tmp_path / "kernel.cu")
    assert len(first) == 2
    (tmp_path / "helper.h").write_text("int z;\n")
    assert toolchain.source_texts(tmp_path / "kernel.cu") != first
    with pytest.raises(UserError, match="cannot read .*nothing.cu"):
        toolchain.source_texts(tmp_path / "nothing.cu")


def test_what_is_built_for_this_processor_is_found_in_a_terminal_of_any_width(monkeypatch):
    said = set()
    for columns in ("40", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        toolchain._host_processor.cache_clear()
        said.add(toolchain._host_processor(toolchain.find_cxx()))
    assert len(said) == 1 and "#define" in said.pop()


def test_the_compiler_speaks_for_itself(tmp_path):
    source = tmp_path / "broken.cpp"
    source.write_text("int main() { return nothing; }\n")
    with pytest.raises(UserError, match=r"broken\.cpp:1:\d+: error: .*nothing"):
        toolchain.compile_cxx(source, [], "broken")
    with pytest.raises(UserError, match="does not run"):
        toolchain.run([tmp_path / "no-such-tool"])
    assert shutil.which(toolchain.find_cxx())
