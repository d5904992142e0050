"""The cache of what was built: damage is mended, what cannot be used is said in words, two builds at once are one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cudaemu import engine
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import ToolFailed, UserError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path / "a cache, with a space"))
    monkeypatch.setattr(cache, "_verified", {})
    return tmp_path / "a cache, with a space"


class Builder:
    """Counts how often it had to build."""

    def __init__(self) -> None:
        self.builds = 0

    def __call__(self, out: Path) -> None:
        self.builds += 1
        (out / "product").write_text("whole")
        (out / "product").chmod(0o755)
        (out / "folder").mkdir()
        (out / "folder" / "second").write_text("also")


DAMAGE = {
    "truncated": lambda place: (place / "product").write_text("who"),
    "changed": lambda place: (place / "product").write_text("WHOLE"),
    "not to be executed": lambda place: (place / "product").chmod(0o644),
    "emptied": lambda place: (place / "product").write_text(""),
    "deleted": lambda place: (place / "product").unlink(),
    "deleted below": lambda place: (place / "folder" / "second").unlink(),
    "no manifest": lambda place: (place / cache.MANIFEST).unlink(),
    "a damaged manifest": lambda place: (place / cache.MANIFEST).write_text('{"product"'),
    "an odd manifest": lambda place: (place / cache.MANIFEST).write_text("[1]"),
    "a file in its place": lambda place: (place.rename(place.with_name(".moved")), place.write_text("")),
}


@pytest.mark.parametrize(
    ("process", "damage"),
    [
        *(("same process", damage) for damage in DAMAGE if damage != "changed"),  # one looks at the contents once
        *(("another", damage) for damage in DAMAGE),
    ],
)
def test_what_is_damaged_is_built_again(cache_folder, damage, process):
    build = Builder()
    place = cache.get("thing", ["key"], build)
    assert cache.get("thing", ["key"], build) == place and build.builds == 1
    DAMAGE[damage](place)
    if process == "another":
        cache._verified.clear()
    assert cache.get("thing", ["key"], build) == place and build.builds == 2
    assert (place / "product").read_text() == "whole" and (place / "folder" / "second").read_text() == "also"


# ---- what was read ---------------------------------------------------------------------------------------------------


class Compiler:
    """Builds a product of the contents of files, as a compiler does, and says in a depfile which files these are."""

    def __init__(self, *files: Path, fails: bool = False) -> None:
        self.files, self.fails, self.builds = files, fails, 0
        self.meanwhile: list[Callable[[], object]] = []  # what happens while it works, once each

    def __call__(self, out: Path) -> None:
        self.builds += 1
        names = " \\\n  ".join(str(path).replace(" ", "\\ ") for path in self.files)
        (out / "read.d").write_text(f"product : source.cu \\\n  {names}\n")
        (out / "product").write_text("".join(path.read_text() for path in self.files))
        if self.meanwhile:
            self.meanwhile.pop(0)()
        if self.fails:
            raise ToolFailed("kernel.cu(1): error: wrong")

    def product(self, *search: Path) -> str:
        return (cache.get("thing", ["key"], self, search) / "product").read_text()


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """What a compiler reads: the first lies beside the second, the third elsewhere."""
    found = [tmp_path / "a project" / "kernel.cu", tmp_path / "a project" / "tile.h", tmp_path / "lib" / "sub" / "x.h"]
    for number, path in enumerate(found):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
        os.utime(path, (1e9, 1e9))
    return found


def test_a_product_is_found_by_the_contents_of_what_was_read(cache_folder, files):
    compiler = Compiler(*files)
    assert (compiler.product(), compiler.product(), compiler.builds) == ("012", "012", 1)
    for number, path in enumerate(files):
        path.write_text("x")
        assert "x" in compiler.product() and compiler.builds == 2 + number, path
        path.write_text(str(number))
        assert compiler.product() == "012" and compiler.builds == 2 + number, "it is found again"
    files[1].unlink()
    with pytest.raises(OSError):
        compiler(cache_folder)
    compiler.files = (files[0], files[2])
    assert compiler.product() == "02"


def test_an_edit_is_noticed_that_leaves_size_and_time(cache_folder, files, monkeypatch):
    monkeypatch.setattr(cache, "SETTLED", -1)  # as if the product were built long after
    compiler = Compiler(*files)
    before, _ = compiler.product(), compiler.product()
    inode = files[0].stat().st_ino
    files[0].write_text("9")
    os.utime(files[0], (1e9, 1e9))
    assert files[0].stat().st_ino == inode and (before, compiler.product()) == ("012", "912")


def test_files_that_have_new_times_only_are_read_once(cache_folder, files, monkeypatch):
    """As after an installation of the same release, or in a copy of the cache."""
    monkeypatch.setattr(cache, "SETTLED", -1)
    compiler, read, real = Compiler(*files), [], cache._hash
    compiler.product()
    monkeypatch.setattr(cache, "_hash", lambda path, parts: read.append(path) or real(path, parts))
    compiler.product()
    assert read == []
    os.utime(files[2], (2e9, 1.1e9))
    compiler.product()
    assert read == [str(files[2])]
    compiler.product()
    assert read == [str(files[2])] and compiler.builds == 1


def test_a_file_just_saved_is_read_each_time(cache_folder, files, monkeypatch):
    """Its times may be those of a later change, too: the clock of files ticks every few milliseconds."""
    read, real = [], cache._hash
    compiler = Compiler(*files)
    files[0].write_text("now")
    compiler.product()
    monkeypatch.setattr(cache, "_hash", lambda path, parts: read.append(path) or real(path, parts))
    compiler.product()
    assert str(files[0]) in read


NEW = {
    "beside the source": ("a project/x.h", True),
    "in a folder that is searched first": ("first/x.h", True),
    "below it": ("first/sub/x.h", True),
    "below the source's folder": ("a project/sub/x.h", True),
    "of another name": ("first/other.h", False),
}


@pytest.mark.parametrize("where", NEW)
def test_a_new_file_that_would_be_found_first_is_noticed(where, cache_folder, files, tmp_path):
    (tmp_path / "first").mkdir()
    if where == "below it":
        (tmp_path / "first" / "sub").mkdir()
    compiler = Compiler(*files)
    for _ in range(2):
        compiler.product(tmp_path / "first", tmp_path / "lib")
    assert compiler.builds == 1
    name, noticed = NEW[where]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("new")
    compiler.product(tmp_path / "first", tmp_path / "lib")
    assert compiler.builds == 1 + noticed


def test_a_file_that_a_source_asks_for_is_noticed(cache_folder, files):
    files[0].write_text('#if __has_include("tuning.h") || __has_include( <own/more.h> )\n')
    compiler, beside = Compiler(*files), files[0].parent
    for number, name in enumerate(("other.h", "tuning.h", "own/more.h")):
        compiler.product()
        assert compiler.builds == 1 + max(0, number - 1)
        (beside / name).parent.mkdir(exist_ok=True)
        (beside / name).write_text("new")
    compiler.product()
    assert compiler.builds == 3


def test_a_library_that_would_be_taken_is_noticed(cache_folder, files, tmp_path):
    """libx.so in place of libx.a."""
    compiler = Compiler(*files)
    for builds in (1, 2):
        cache.get("thing", ["key"], compiler, [tmp_path / "lib"], ["libx.so"])
        assert compiler.builds == builds
        (tmp_path / "lib" / "libx.so").write_text("new")


def test_a_folder_of_headers_that_is_a_link_and_leads_elsewhere(cache_folder, files, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "x.h").write_text("found first now")
    compiler, link = Compiler(*files), tmp_path / "link"
    for builds, name in enumerate(("one", "two"), 1):
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        compiler.product(link, tmp_path / "lib")
        assert compiler.builds == builds


def test_what_is_saved_while_it_is_compiled_is_compiled_again(cache_folder, files):
    compiler = Compiler(*files)

    def save() -> None:
        time.sleep(0.02)  # a tick of the clock of files
        files[0].write_text("saved")

    compiler.meanwhile = [save]
    assert compiler.product() == "saved12" and compiler.builds == 2
    assert compiler.product() == "saved12" and compiler.builds == 2


def test_what_never_rests_is_not_compiled_for_ever(cache_folder, files):
    def save() -> None:
        time.sleep(0.02)
        files[0].write_text("saved")

    compiler = Compiler(*files)
    compiler.meanwhile = [save] * 9
    with pytest.raises(UserError, match=f"{files[0]} changed"):
        compiler.product()
    assert compiler.builds == 3


def test_files_of_a_clock_that_is_ahead_are_compiled_twice_at_most(cache_folder, files):
    """Those of another machine."""
    compiler, ahead = Compiler(*files), time.time() + 1000
    os.utime(files[0], (ahead, ahead))
    assert compiler.product() == "012" and compiler.builds == 2
    assert compiler.product() == "012" and compiler.builds == 2


def test_a_failure_is_kept_with_the_files_that_it_is_about(cache_folder, files):
    compiler = Compiler(*files, fails=True)
    for _ in range(3):
        with pytest.raises(ToolFailed, match=r"kernel.cu\(1\): error: wrong"):
            compiler.product()
    assert compiler.builds == 1
    files[1].write_text("mended")
    compiler.fails = False
    assert compiler.product() == "0mended2"


@pytest.mark.parametrize("error", [ToolFailed("kernel.cu(1): fatal error: x.h: No such file"), UserError("no memory")])
def test_a_failure_is_not_kept_that_may_not_come_again(error, cache_folder):
    """That of a tool without a list of what it read, since a header is missing; and that of no tool."""
    attempts = []

    def fail(out: Path) -> None:
        attempts.append(out)
        if not isinstance(error, ToolFailed):
            (out / "read.d").write_text("product: kernel.cu\n")
        raise error

    for _ in range(2):
        with pytest.raises(UserError, match=str(error)[:5]):
            cache.get("thing", ["key"], fail)
    assert len(attempts) == 2 and not list(cache_folder.glob("thing-*/*/"))


def test_depfiles_of_all_tools_are_read():
    by_nvcc = "kernel.o : w.cu \\\n    a\\ b/q.h \\\n    inc/do$l#ar.h\n"
    by_gxx = "kernel.o: w.cpp a\\ b/q.h \\\n do$$l\\#ar.h\n\na\\ b/q.h:\n"
    by_ld = "x.so: \\\n  /lib/crti.o \\\n  kernel.o\n\n/lib/crti.o:\n\nkernel.o:\n"
    assert cache.parse_depfile(by_nvcc) == ["w.cu", "a b/q.h", "inc/do$l#ar.h"]
    assert cache.parse_depfile(by_gxx) == ["w.cpp", "a b/q.h", "do$l#ar.h"]
    assert cache.parse_depfile(by_ld) == ["/lib/crti.o", "kernel.o"]


# ---- how large it grows ----------------------------------------------------------------------------------------------


def megabyte(number: int, used: float) -> Path:
    """A product of a megabyte, used so many hours ago."""
    product = cache.get("thing", [number], lambda out: (out / "data").write_bytes(bytes(1_000_000)) and None)
    os.utime(product / cache.MANIFEST, (time.time() - used * 3600,) * 2)
    return product


def test_the_least_recently_used_products_leave(cache_folder, monkeypatch):
    monkeypatch.setenv("CUDAEMU_CACHE_LIMIT", "0.0035")
    products = [megabyte(number, used) for number, used in enumerate((5, 2, 0.5, 4, 3))]
    assert 5.0e6 < cache.size() < 5.1e6
    cache.trim()
    assert [product.exists() for product in products] == [False, True, True, False, True]
    assert not products[0].parent.exists(), "nothing is left of it"
    assert 3.0e6 < cache.size() < 3.1e6


def test_what_is_in_use_stays(cache_folder, monkeypatch):
    """What was used within the hour, be there room or not; what is used again counts as used now."""
    monkeypatch.setenv("CUDAEMU_CACHE_LIMIT", "0.0001")
    products = [megabyte(number, used) for number, used in enumerate((2, 0.9, 2))]
    assert cache.get("thing", [2], lambda out: pytest.fail("it is built again")) == products[2]
    cache.trim()
    assert [product.exists() for product in products] == [False, True, True]


def test_a_build_makes_room_once_an_hour(cache_folder, monkeypatch):
    monkeypatch.setenv("CUDAEMU_CACHE_LIMIT", "0.0001")
    first = megabyte(1, 2)
    megabyte(2, 0)
    assert first.exists(), "there was a look at it a moment ago"
    os.utime(cache_folder / ".trimmed", (1e9, 1e9))
    megabyte(3, 0)
    assert not first.exists()


def test_a_key_that_is_being_built_is_left_alone(cache_folder):
    old = megabyte(1, 5)

    def build(out: Path) -> None:
        cache.clear()
        (out / "product").write_text("whole")

    place = cache.get("thing", ["key"], build)
    assert (place / "product").read_text() == "whole" and not old.exists()
    cache.clear()
    assert cache.size() == 0 and not list(cache_folder.glob("thing-*"))


def test_what_a_killed_build_left_goes(cache_folder):
    place = cache.get("thing", ["key"], Builder())
    left = place.parent / f"{cache.TEMPORARY}left"
    left.mkdir()
    (place / "product").unlink()
    cache.get("thing", ["key"], Builder())
    assert not left.exists()


@pytest.mark.parametrize("asked", ["0", "-1", "much", "nan"])
def test_a_limit_that_is_none(asked, monkeypatch):
    monkeypatch.setenv("CUDAEMU_CACHE_LIMIT", asked)
    with pytest.raises(UserError, match=f"CUDAEMU_CACHE_LIMIT must .*'{asked}'"):
        cache.limit()


USED_WHILE_TRIMMED = """
import sys, time
from pathlib import Path
from cudaemu.compiler import cache
cache.IN_USE = 0
end = time.monotonic() + 3
while time.monotonic() < end:
    for number in range(5):
        product = cache.get("thing", [number], lambda out: (out / "data").write_text("whole") and None)
        cache.trim() if sys.argv[1] == "trim" else None
"""


def test_a_folder_that_is_removed_while_mkdir_looks_at_it(cache_folder, monkeypatch):
    """mkdir finds it there, then looks whether it is a folder, and it is gone: FileExistsError."""
    made, gone = Path.mkdir, []

    def mkdir(path: Path, *arguments, **options) -> None:
        if path.name.startswith("thing-") and not gone:
            gone.append(path)
            raise FileExistsError(17, "File exists", str(path))
        made(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert (cache.get("thing", ["a"], Builder()) / "product").read_text() == "whole" and gone


def test_products_that_others_remove_are_built_again(cache_folder, monkeypatch):
    """Four processes want the same five products, and two of them remove all of them all the time."""
    monkeypatch.setenv("CUDAEMU_CACHE_LIMIT", "0.000000001")
    roles = ("use", "trim", "use", "trim")
    command = [sys.executable, "-c", USED_WHILE_TRIMMED]
    processes = [
        subprocess.Popen([*command, role], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for role in roles
    ]
    for process in processes:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said


# ---- compilers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def never_linked(cache_folder, monkeypatch):
    """What comes no further than to nvcc needs no runtime, which takes longer to compile."""
    monkeypatch.setattr(toolchain, "compile_cxx", lambda *_: cache_folder / "runtime.o")


def test_what_does_not_compile_is_not_compiled_again(cache_folder, never_linked, monkeypatch):
    from cudaemu.build import compile_host

    path = cache_folder.parent / "wrong.cu"
    path.write_text("int f() { return nothing; }\n")
    with pytest.raises(UserError, match="nothing"):
        compile_host(path)
    monkeypatch.setattr(toolchain, "run", lambda *_, **__: pytest.fail("a tool ran"))
    with pytest.raises(UserError, match="nothing"):
        compile_host(path)


@pytest.mark.core(every=3)
@pytest.mark.parametrize("wrong", ["main.cu", "part.cpp", "part.cu"])
def test_a_corrected_error_of_several_files_is_not_reported_again(wrong, cache_folder, never_linked, tmp_path):
    """nvcc writes no list of the headers of a file that its preprocessor refuses: nothing else says that it changed."""
    from cudaemu.build import compile_host

    part = "part.cpp" if wrong == "main.cu" else wrong
    for name in ("main.cu", part):
        (tmp_path / name).write_text("int part();\n")
    (tmp_path / wrong).write_text('#include "no_such_header.h"\n')
    with pytest.raises(UserError, match="no_such_header"):
        compile_host(tmp_path / "main.cu", others=[tmp_path / part])
    (tmp_path / wrong).write_text("int f() { return nothing; }\n")
    with pytest.raises(UserError, match="nothing"):
        compile_host(tmp_path / "main.cu", others=[tmp_path / part])


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
    with pytest.raises(UserError, match=r"(?s)cannot.*CUDAEMU_CACHE"):
        cache.get("thing", ["key"], Builder())


def test_a_full_disk(cache_folder):
    def build(out: Path) -> None:
        with open("/dev/full", "w") as full:
            full.write("x" * 100_000)

    with pytest.raises(UserError, match="No space left"):
        cache.get("thing", ["key"], build)
    assert not [path for path in cache_folder.glob("thing-*/*") if path.is_dir()]
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
for word; do case "$word" in */cudaemu/vm/*.cpp) object=$(basename "$word" .cpp).o;; esac; done
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


@pytest.mark.full
def test_a_whole_build_in_a_path_with_a_space_twice_at_once(quick, cache_folder, tmp_path, monkeypatch):
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
    (so,) = cache_folder.glob("kernel-*/*/kernel.so")
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
        ("echo 'release 9.1, V9.1.85'", r"13\.0 .*9\.1"),
        ("echo broken; exit 3", "--version fails: broken"),
        ("exit 1", "--version fails: .*exit status 1"),
        ("echo hello", "which CUDA release"),
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
