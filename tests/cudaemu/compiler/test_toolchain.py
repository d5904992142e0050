"""Finding the compilers, and the cache that parallel processes share."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cudaemu import build
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import ToolFailed, UserError

ROOT = Path(__file__).parents[3]


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
    with pytest.raises(UserError, match="no CUDA compiler.*\n.*pip install"):
        toolchain.find_nvcc()
    with pytest.raises(UserError, match=r"apt install g\+\+"):
        toolchain.find_cxx()
    bare.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="CXX .*'no-such-compiler'"):
        toolchain.find_cxx()
    for other in (sys.executable, shutil.which("true", path=os.defpath)):
        bare.setenv("CXX", other)
        with pytest.raises(UserError, match=f"CXX .*'{other}'"):
            toolchain.find_cxx()


def test_clang_is_taken_where_there_is_no_gcc(bare, tmp_path):
    bare.setenv("PATH", str(tmp_path))
    for name in ("clang++", "g++"):  # the second is preferred
        (tmp_path / name).write_text("#!/bin/sh\necho '#define __GNUG__ 4'\n")
        (tmp_path / name).chmod(0o755)
        assert toolchain.find_cxx() == str(tmp_path / name)


def test_a_compiler_that_does_not_know_this_processor_compiles_for_any(bare, tmp_path):
    for known, flags in (("-march=native", ["-march=native"]), ("-mcpu=native", ["-mcpu=native"]), ("nothing", [])):
        compiler = tmp_path / f"g++{known}"
        compiler.write_text(f'#!/bin/sh\ncase "$*" in *{known}*) echo "#define X";; *) exit 1;; esac\n')
        compiler.chmod(0o755)
        assert toolchain._host_processor(str(compiler))[0] == flags


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
    assert cache.folder() == tmp_path / "xdg" / "cudaemu"


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
    assert [path.name for path in cache.folder().glob("thing-*/*")] == [cache.LOCK]


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
        toolchain._macros.cache_clear()
        flags, processor = toolchain._host_processor(toolchain.find_cxx())
        said.add(processor)
    assert len(said) == 1 and "#define" in said.pop() and flags == ["-march=native"]


def test_the_compiler_speaks_for_itself(tmp_path):
    source = tmp_path / "broken.cpp"
    source.write_text("int main() { return nothing; }\n")
    with pytest.raises(UserError, match=r"broken\.cpp:1:\d+: error: .*nothing"):
        toolchain.compile_cxx(source, [], "broken")
    with pytest.raises(UserError, match="does not run"):
        toolchain.run([tmp_path / "no-such-tool"])
    assert shutil.which(toolchain.find_cxx())


def test_another_build_of_the_compilers_is_another_key(bare, tmp_path):
    """A patch release has the same release number; cicc comes in a package of its own."""
    nvcc, cxx = toolchain.describe_nvcc(fake_nvcc(tmp_path)), tmp_path / "g++"
    cxx.write_text("#!/bin/sh\necho gcc version 12.2.0 1>&2\n")
    cxx.chmod(0o755)
    keys = [toolchain.identity(str(cxx), nvcc)]
    keys.append(toolchain.identity(str(cxx), replace(nvcc, version=nvcc.version + "Build 13.7.r13.7/compiler.2_0")))
    (tmp_path / "nvvm" / "bin").mkdir(parents=True)
    (tmp_path / "nvvm" / "bin" / "cicc").write_text("another")
    keys.append(toolchain.identity(str(cxx), nvcc))
    cxx.write_text("#!/bin/sh\necho gcc version 12.2.0-14 1>&2\n")
    toolchain._version.cache_clear()
    keys.append(toolchain.identity(str(cxx), nvcc))
    bare.setenv("CPATH", str(tmp_path))
    keys.append(toolchain.identity(str(cxx), nvcc))
    machine = toolchain.identity(str(cxx))
    bare.setenv("NVCC_APPEND_FLAGS", "-g")
    keys.append(toolchain.identity(str(cxx), nvcc))
    assert len(set(map(tuple, keys))) == 6
    assert machine == toolchain.identity(str(cxx))  # nvcc's flags do not build the emulator's machine again


HEADERS = {  # how a header is found -> flags, environment
    "-I": (["-I", "{0}"], {}),
    "-I, in one word": (["-I{0}"], {}),
    "-isystem": (["-isystem", "{0}"], {}),
    "-include": (["-include", "{0}/value.h"], {}),
    "CPATH": ([], {"CPATH": "{0}"}),
    "CPLUS_INCLUDE_PATH": ([], {"CPLUS_INCLUDE_PATH": "/nowhere:{0}"}),
}


@pytest.fixture
def header(tmp_path, monkeypatch):
    """A header in a folder, flags and environment by which it is found, and a source that includes it."""
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path / "cache"))

    def find(way: str) -> tuple[Path, list[str]]:
        flags, environment = HEADERS[way]
        folder = tmp_path / "a"
        folder.mkdir()
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(folder))
        return folder / "value.h", [flag.format(folder) for flag in flags]

    return find


@pytest.mark.parametrize("way", HEADERS)
def test_an_edited_header_is_noticed_however_it_is_found(way, header, tmp_path):
    path, flags = header(way)
    source = tmp_path / "main.cpp"
    source.write_text(("" if way == "-include" else "#include <value.h>\n") + "int main() { return VALUE; }\n")
    for value in (1, 2, 1):
        path.write_text(f"#define VALUE {value}\n")
        program = toolchain.compile_cxx(source, flags, "program")
        assert subprocess.run([program], check=False).returncode == value
    assert len(list(cache.folder().glob("program-*/*/program"))) == 2, "the first was found again"


@pytest.mark.core(every=3)
@pytest.mark.parametrize("way", ["-I", "CPLUS_INCLUDE_PATH", "-include"])
def test_an_edited_header_is_noticed_in_a_cuda_source(way, header, tmp_path, monkeypatch):
    path, flags = header(way)
    source = tmp_path / "kernel.cu"
    source.write_text(
        ("" if way == "-include" else "#ifdef __CUDA_ARCH__\n#include <value.h>\n#else\n#define VALUE 0\n#endif\n")
        + "__global__ void kernel(int *x) { *x = VALUE; }\n"
    )
    for value in (1234, 5678):
        path.write_text(f"#define VALUE {value}\n")
        assert str(value) in build.compile_host(source, flags=flags).ptx


@pytest.mark.parametrize(
    ("said", "status", "on_input"),
    [
        ("kernel.cu(3): error: identifier x is undefined", 2, True),
        ("main.cpp:3:1: error: expected ;", 1, True),
        ("main.cpp:1:10: fatal error: none.h: No such file or directory", 1, True),
        ("ptxas kernel.ptx, line 12; error   : Unknown opcode", 255, True),
        ("ptxas kernel.ptx, line 28; fatal   : Parsing error near '{': syntax error", 255, True),
        ("e.cu: Assembler messages:\ne.cu:1: Error: no such instruction", 1, True),
        ("virtual memory exhausted: Cannot allocate memory", 1, False),
        ("cc1plus: out of memory allocating 65536 bytes", 1, False),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", 9, False),
        ("main.cpp:3:1: fatal error: error writing to /tmp/x.s: No space left on device", 1, False),
        ("main.cpp:1:10: fatal error: some.h: Too many open files", 1, False),
        ("kernel.cu(1): error: /tmp/x: Permission denied", 1, False),
        ("main.cpp:3:1: internal compiler error: Segmentation fault", 1, False),
        ("nvcc fatal   : Unknown option '--none'", 1, False),
        ("license expired", 1, False),
        ("kernel.cu(3): error: the last that it said", "KILL", False),
        ("", 1, False),
    ],
)
def test_a_failure_is_the_inputs_if_the_tool_names_a_place(said, status, on_input):
    end = f"kill -{status} $$" if isinstance(status, str) else f"exit {status}"
    with pytest.raises(UserError) as raised:
        toolchain.run(["/bin/sh", "-c", f'printf "%s" "$0"; {end}', said])
    assert isinstance(raised.value, ToolFailed) == on_input and said in str(raised.value)


def test_folders_are_found_among_flags_and_in_the_environment(bare, tmp_path):
    """A header that appears in one of them may be found in place of one that was read."""
    folders = [tmp_path / name for name in ("a", "b b", "c", "d", "e", "f", "g", "h")]
    for folder in folders:
        folder.mkdir()
    a, b, c, d, e, f, g, h = map(str, folders)
    bare.setenv("CPATH", f"/nowhere:{f}")
    bare.setenv("NVCC_APPEND_FLAGS", f"-O2 -I{g}")
    flags = [f"-I{a}", "-I", b, "-isystem", c, f"--include-path={d}", f"-Xcompiler=-iquote,{e}", "-I", "relative"]
    flags.append(f"-L{h}")
    assert toolchain.search_folders(flags) == folders


def test_files_of_options_count_by_what_they_hold(monkeypatch, tmp_path):
    """Those among the flags, those in the environment, and those that such a file names."""
    inner, outer, cxx = tmp_path / "inner", tmp_path / "outer", toolchain.find_cxx()
    outer.write_text(f"-optf={inner}")
    monkeypatch.setenv("CPATH", f"/nowhere:{outer}")
    seen = []
    for flags in ("-DA", "-DB"):
        inner.write_text(flags)
        seen += [str(toolchain.identity(cxx)), str(toolchain.option_files([f"--options-file={outer}"]))]
    assert len(set(seen)) == 4


def test_a_compiler_that_is_a_script_counts_by_what_it_holds(tmp_path):
    """Its version is that of the compiler that it calls."""
    seen, path = [], tmp_path / "g++"
    for flags in ("-DA", "-DB"):
        path.write_text(f'#!/bin/sh\nexec g++ {flags} "$@"\n')
        path.chmod(0o755)
        seen.append(toolchain.identity(str(path)))
    assert seen[0] != seen[1]


# ---- tools in bounds -------------------------------------------------------------------------------------------------


def test_tools_have_nothing_to_read():
    assert toolchain.run(["/bin/sh", "-c", "cat; echo end"]) == "end\n"


def test_tools_end_when_their_time_is_over(tmp_path):
    """With all that they have started."""
    started = time.monotonic()
    with pytest.raises(UserError, match="signal 9.* 1 s") as raised:
        toolchain.run(["/bin/sh", "-c", f"(sleep 4; touch {tmp_path}/left) & sleep 60"], seconds=1)
    assert not isinstance(raised.value, ToolFailed) and time.monotonic() - started < 30
    time.sleep(max(0.0, 4.5 - (time.monotonic() - started)))
    assert not (tmp_path / "left").exists()


def test_tools_get_so_much_memory_and_no_more():
    script = "import sys; len(bytearray(int(sys.argv[1])))"
    toolchain.run([sys.executable, "-c", script, 1 << 20], memory=1 << 30)
    with pytest.raises(UserError, match="MemoryError"):
        toolchain.run([sys.executable, "-c", script, 2 << 30], memory=1 << 30)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_tools_do_not_outlive_python(tmp_path, how):
    """Whatever ends it: an interrupted notebook left ptxas behind, which went on eating memory."""
    tool = f"echo $$ > {tmp_path}/pid; sleep 300"
    script = (  # what runs in the background of a shell inherits that it ignores Ctrl-C
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from cudaemu.compiler import toolchain; toolchain.run(['/bin/sh', '-c', {tool!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL) as python:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            time.sleep(0.02)
        python.send_signal(how)
        python.wait(30)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0]:
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the tool runs on")


def test_what_tools_leave_goes_with_their_folder(tmp_path):
    """nvcc's temporary files, if it is ended, stay where it was told to make them."""
    toolchain.run(["/bin/sh", "-c", "mktemp -t left.XXXXXX"], cwd=tmp_path)
    assert [path.name[:5] for path in tmp_path.iterdir()] == ["left."]


def test_closed_streams_are_no_hindrance():
    script = "from cudaemu.compiler import toolchain; toolchain.run(['/bin/sh', '-c', 'echo told'])"
    for closed in ("<&-", ">&-", "<&- >&-"):
        words = ["/bin/sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, script]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), closed


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_a_source_must_be_a_plain_file(make, tmp_path):
    """Reading a pipe would wait for ever, and /dev/zero has no end."""
    make(tmp_path / "source.cu")
    for path in (tmp_path / "source.cu", Path("/dev/zero")):
        with pytest.raises(UserError, match="plain file|folder"):
            toolchain.read(path)
        with pytest.raises(UserError, match="plain file|folder"):
            toolchain.source_texts(path)
