"""The cache of what was built: damage is mended, what cannot be used is said in words, two builds at once are one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudaemu import engine
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path / "a cache, with a space"))
    monkeypatch.setattr(toolchain, "_verified", {})
    return tmp_path / "a cache, with a space"


class Builder:
    """Counts how often it had to build."""

    def __init__(self) -> None:
        self.builds = 0

    def __call__(self, out: Path) -> None:
        self.builds += 1
        (out / "product").write_text("whole")
        (out / "folder").mkdir()
        (out / "folder" / "second").write_text("also")


DAMAGE = {
    "truncated": lambda place: (place / "product").write_text("who"),
    "changed": lambda place: (place / "product").write_text("WHOLE"),
    "emptied": lambda place: (place / "product").write_text(""),
    "deleted": lambda place: (place / "product").unlink(),
    "deleted below": lambda place: (place / "folder" / "second").unlink(),
    "no manifest": lambda place: (place / toolchain.MANIFEST).unlink(),
    "a damaged manifest": lambda place: (place / toolchain.MANIFEST).write_text('{"product"'),
    "an odd manifest": lambda place: (place / toolchain.MANIFEST).write_text("[1]"),
    "a file in its place": lambda place: (place.rename(place.with_name("moved")), place.write_text("")),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("process", ["same process", "another"])
def test_what_is_damaged_is_built_again(cache, damage, process):
    build = Builder()
    place = cache.get("thing", ["key"], build)
    assert cache.get("thing", ["key"], build) == place and build.builds == 1
    if process == "same process" and damage in ("changed", "no manifest", "a damaged manifest", "an odd manifest"):
        pytest.skip("a process looks at the contents once, and from then on at the sizes")
    DAMAGE[damage](place)
    if process == "another":
        toolchain._verified.clear()
    assert cache.get("thing", ["key"], build) == place and build.builds == 2
    assert (place / "product").read_text() == "whole" and (place / "folder" / "second").read_text() == "also"


def test_failures_are_kept_if_they_will_come_again(cache):
    attempts = []

    def fail(out: Path) -> None:
        attempts.append(out)
        raise (ToolFailed("error: no such thing") if len(attempts) == 2 else UserError("No space left on device"))

    for _ in range(4):
        with pytest.raises(UserError):
            cache.get("thing", ["key"], fail, keep_failures=True)
    assert len(attempts) == 2  # the first was not the input's fault, the second was
    with pytest.raises(ToolFailed, match="no such thing"):
        cache.get("thing", ["key"], fail, keep_failures=True)


@pytest.fixture
def never_linked(cache, monkeypatch):
    """What comes no further than to nvcc needs no runtime, which takes longer to compile."""
    monkeypatch.setattr(toolchain, "compile_cxx", lambda *_: cache / "runtime.o")


def test_what_does_not_compile_is_not_compiled_again(cache, never_linked, monkeypatch):
    from cudaemu.build import compile_host

    path = cache.parent / "wrong.cu"
    path.write_text("int f() { return nothing; }\n")
    with pytest.raises(UserError, match="nothing"):
        compile_host(path)
    monkeypatch.setattr(toolchain, "run", lambda *_, **__: pytest.fail("a tool ran"))
    with pytest.raises(UserError, match="nothing"):
        compile_host(path)


@pytest.mark.parametrize("case", ["a file", "below a file", "cannot be written", "no home"])
def test_a_cache_that_cannot_be(case, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    if case == "no home":
        monkeypatch.delenv("CUDAEMU_CACHE", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        monkeypatch.setenv("XDG_CACHE_HOME", "")
    else:
        place = {
            "a file": tmp_path / "file",
            "below a file": tmp_path / "file" / "cache",
            "cannot be written": Path("/proc/1"),
        }
        monkeypatch.setenv("CUDAEMU_CACHE", str(place[case]))
    with pytest.raises(UserError, match=r"cannot be used: .*\nSet CUDAEMU_CACHE"):
        cache.get("thing", ["key"], Builder())


def test_a_full_disk(cache):
    def build(out: Path) -> None:
        with open("/dev/full", "w") as full:
            full.write("x" * 100_000)

    with pytest.raises(UserError, match=r"cannot be used: No space left on device"):
        cache.get("thing", ["key"], build)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    build_well = Builder()
    cache.get("thing", ["key"], build_well)
    assert build_well.builds == 1


PROGRAM = r"""
#include <cstdio>
__global__ void k(int *p) { *p = 6; }
int main() {
  int *d, h;
  cudaMalloc(&d, 4);
  k<<<1, 1>>>(d);
  cudaMemcpy(&h, d, 4, cudaMemcpyDeviceToHost);
  printf("%d\n", h);
}
"""


BUILD = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from cudaemu.build import compile_host
print(compile_host(Path(sys.argv[2]), call="launch").so)
"""


def test_notebooks_find_what_was_built_elsewhere(tmp_path):
    """They have put ".." on the path: the folder of the emulator has another spelling there."""
    path = tmp_path / "k.cu"
    path.write_text('extern "C" cudaError_t launch(int *) { return cudaSuccess; }\n')
    found = set()
    for folder, place in ((ROOT, str(ROOT)), (ROOT / "notebooks", "..")):
        command = [sys.executable, "-c", BUILD, place, str(path)]
        found.add(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


GXX = """
for word; do case "$word" in */emulator/vm/*.cpp) object=$(basename "$word" .cpp).o;; esac; done
[ -z "$object" ] && exec g++ "$@" -O0
for out; do :; done
exec cp "{objects}/$object" "$out"
"""


@pytest.fixture
def quick(tmp_path):
    """A g++ that has compiled the machine before: that takes a minute."""
    folder = tmp_path / "objects"
    folder.mkdir()
    for source in engine.SOURCES:
        made = toolchain.compile_cxx(source, ["-c", *engine.FLAGS], f"{source.stem}.o")
        (folder / made.name).symlink_to(made)
    return script(tmp_path / "bin" / "g++", GXX.format(objects=folder))


def test_a_whole_build_in_a_path_with_a_space_twice_at_once(quick, cache, tmp_path, monkeypatch):
    """Nothing is there yet: both build the runtime, the runner, the machine and the program, or wait for the other."""
    monkeypatch.setenv("CXX", str(quick))
    path = tmp_path / "a program.cu"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "cudaemu", "-q", str(path)]
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in both:
        out, said = process.communicate(timeout=600)
        assert (process.returncode, out) == (0, "6\n"), said
    (so,) = cache.glob("kernel-*/kernel.so")
    so.write_bytes(so.read_bytes()[:1000])  # a bus error, if it were used
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'release 9.1, V9.1.85'", "is of CUDA 9.1, and cudaemu needs 13.0 or newer"),
        ("echo broken; exit 3", "--version fails: broken"),
        ("exit 1", "--version fails: .*exit status 1"),
        ("echo hello", "does not say which CUDA release it is"),
    ],
)
def test_an_nvcc_that_will_not_do_is_named(text, said, monkeypatch, tmp_path):
    nvcc = script(tmp_path / "bin" / "nvcc", text)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{nvcc.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UserError, match=f"(?s){nvcc}.*{said}"):
        toolchain.find_nvcc()


def test_an_nvcc_that_fails_is_named(tmp_path, never_linked):
    from cudaemu.build import compile_host

    real = toolchain.find_nvcc()
    nvcc = script(
        tmp_path / "bin" / "nvcc",
        f'case "$*" in *--version*|*--dryrun*{os.devnull}) exec {real.path} "$@";; esac\necho license expired; exit 1',
    )
    path = tmp_path / "k.cu"
    path.write_text(PROGRAM)
    with pytest.raises(UserError, match=rf"{nvcc} \(CUDA .*\) failed: license expired"):
        compile_host(path, nvcc=toolchain.describe_nvcc(nvcc))
