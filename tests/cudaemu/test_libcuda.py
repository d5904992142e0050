"""The driver's library in a Python process, by ctypes alone: no front end has to be installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

import pytest

pytestmark = pytest.mark.full  # the library is compiled first

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .f32 factor = 0f40000000;
.visible .entry scale(.param .u64 x, .param .u32 n) {
  .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .pred %p;
  ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x; setp.ge.u32 %p, %r2, %r1; @%p bra done;
  mul.wide.u32 %rd2, %r2, 4; add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [factor]; mul.f32 %f1, %f1, %f2; st.global.f32 [%rd1], %f1;
done: ret;
}
"""
HEAD = f"""
from ctypes import *
PTX = b'''{PTX}'''
cuda = CDLL("libcuda.so.1")  # as front ends do

def call(name, *args):
    error = getattr(cuda, name)(*args)
    if error:
        text = c_char_p()
        cuda.cuGetErrorName(error, byref(text))
        raise RuntimeError(f"{{name}}: {{text.value.decode()}}")

context, module, kernel, x = c_void_p(), c_void_p(), c_void_p(), c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", byref(context), 0)
call("cuCtxSetCurrent", context)

def launch(n, x):
    values = x, c_uint(n)
    pointers = (c_void_p * 2)(*(addressof(each) for each in values))
    call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, pointers, None)
"""


def run(tmp_path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(HEAD + textwrap.dedent(text))
    command = [sys.executable, "-m", "cudaemu", "python", *options, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def line_of(text: str) -> int:
    """The number of the line that ends with `# here`."""
    return 1 + next(number for number, line in enumerate((HEAD + text).splitlines()) if line.endswith("# here"))


def test_a_module_is_loaded_and_launched(tmp_path):
    done = run(
        tmp_path,
        """
        call("cuModuleLoadData", byref(module), PTX)
        call("cuModuleGetFunction", byref(kernel), module, b"scale")
        host = (c_float * 10)(*range(10))
        call("cuMemAlloc_v2", byref(x), 40)
        call("cuMemcpyHtoD_v2", x, host, 40)
        launch(10, x)
        call("cuMemcpyDtoH_v2", host, x, 40)
        print(list(host) == [2 * each for each in range(10)])
        factor, size = c_uint64(), c_size_t()
        call("cuModuleGetGlobal_v2", byref(factor), byref(size), module, b"factor")
        print(size.value)
        call("cuMemFree_v2", x)
        """,
    )
    assert done.stdout.split() == ["True", "4"], done.stderr
    assert "scale: <<<1, 32>>>" in done.stderr and "no findings" in done.stderr and not done.returncode


def test_libraries_links_and_the_table_of_functions(tmp_path):
    done = run(
        tmp_path,
        """
        def function(name, version=13000):
            found, status = c_void_p(), c_int()
            call("cuGetProcAddress_v2", name, byref(found), version, c_uint64(), byref(status))
            assert found.value and status.value == 0, name
            return CFUNCTYPE(c_int)(found.value)

        state, cubin, size = c_void_p(), c_void_p(), c_size_t()
        call("cuLinkCreate_v2", 0, None, None, byref(state))
        call("cuLinkAddData_v2", state, 1, PTX, len(PTX), b"scale.ptx", 0, None, None)
        call("cuLinkComplete", state, byref(cubin), byref(size))
        assert not function(b"cuLibraryLoadData")(byref(module), cubin, None, None, 0, None, None, 0)
        count, name = c_uint(), c_char_p()
        call("cuLibraryGetKernelCount", byref(count), module)
        call("cuLibraryEnumerateKernels", byref(kernel), 1, module)
        call("cuKernelGetName", byref(name), kernel)
        print(count.value, name.value.decode())
        offset, bytes_ = c_size_t(), c_size_t()
        call("cuKernelGetParamInfo", kernel, 1, byref(offset), byref(bytes_))
        print(offset.value, bytes_.value, cuda.cuKernelGetParamInfo(kernel, 2, byref(offset), byref(bytes_)))
        print(function(b"cuGreenCtxCreate")())  # is not there
        print(cuda.cuModuleLoadData(byref(module), b"\\x7fELF machine code"))
        """,
    )
    assert done.stdout.splitlines() == ["1 scale", "8 4 1", "801", "209"], done.stderr
    assert "cuGreenCtxCreate: the emulator does not have this function" in done.stderr
    assert "the emulator runs PTX, not machine code" in done.stderr


def test_a_bad_access_names_the_line_that_made_the_memory_and_the_process_goes_on(tmp_path):
    text = """
call("cuModuleLoadData", byref(module), PTX)
call("cuModuleGetFunction", byref(kernel), module, b"scale")
assert not cuda.cuMemAlloc_v2(byref(x), 40)  # here
call("cuMemsetD8_v2", x, 0, 40)
try:
    launch(11, x)
except RuntimeError as error:
    print(error)
launch(10, x)
call("cuMemFree_v2", x)
print(cuda.cuMemFree_v2(x))
"""
    done = run(tmp_path, text)
    assert done.stdout.splitlines() == ["cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS", "1"], done.stderr
    assert done.returncode == 99
    assert f"just past the end of x (device memory 1, line {line_of(text)})" in done.stderr
    assert "double free" in done.stderr and "script.py" in done.stderr
    assert "2 launches, 2 findings" in done.stderr


def test_capability_and_options(tmp_path):
    text = """
import cudaemu.driver as driver
major = c_int()
call("cuDeviceGetAttribute", byref(major), 75, 0)
print(major.value)
call("cuMemAlloc_v2", byref(x), 40)
try:
    driver.use(arch="9.0")
except ValueError as error:
    print(error)
"""
    done = run(tmp_path, text, "--arch", "8.0")
    assert done.stdout.splitlines() == ["8", "arch must be chosen before CUDA is used, which has seen 8.0"], done.stderr


def test_threads_with_and_without_pythons_lock(tmp_path):
    done = run(
        tmp_path,
        """
        from threading import Thread
        call("cuModuleLoadData", byref(module), PTX)
        call("cuModuleGetFunction", byref(kernel), module, b"scale")
        call("cuMemAlloc_v2", byref(x), 40)
        call("cuMemsetD8_v2", x, 0, 40)
        holding = PyDLL("libcuda.so.1")  # its calls keep the lock, as some of Cython's do

        def launches():
            for _ in range(20):
                launch(10, x)

        def streams():
            for _ in range(200):
                stream = c_void_p()
                assert not holding.cuStreamCreate(byref(stream), 0)
                assert not holding.cuStreamDestroy_v2(stream)

        threads = [Thread(target=each) for each in (launches, streams, launches, streams)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        print("ended")
        """,
    )
    assert done.stdout.split() == ["ended"] and "40 launches" in done.stderr, done.stderr


def test_the_plugin_fails_a_test_with_a_finding(tmp_path):
    names = {"test_right": "10", "test_wrong": "11"}
    body = "".join(f"\ndef {name}():\n    work({n})\n" for name, n in names.items())
    work = """
        def work(n):
            call("cuModuleLoadData", byref(module), PTX)
            call("cuModuleGetFunction", byref(kernel), module, b"scale")
            call("cuMemAlloc_v2", byref(x), 40)
            if n == 10:
                call("cuMemsetD8_v2", x, 0, 40)
            launch(10, x)

        def test_reports(cudaemu_reports):
            assert not len(cudaemu_reports)
            work(10)
            assert cudaemu_reports[-1].launches[0].kernel == "scale"
        """
    (tmp_path / "test_some.py").write_text(HEAD + textwrap.dedent(work) + body)
    installed = any(each.value == "cudaemu.pytest_plugin" for each in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "cudaemu.pytest_plugin")
    command = [sys.executable, "-m", "pytest", *plugin, "--cudaemu", "-q", str(tmp_path)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert "2 passed" in done.stdout and "1 failed" in done.stdout, done.stdout
    assert "uninitialised global read" in done.stdout and "test_wrong" in done.stdout


def test_a_runtime_in_an_extension_goes_on_in_the_stand_in(tmp_path):
    (tmp_path / "static.c").write_text(
        "static __attribute__((noipa)) int cudaGetDeviceCount(int *n) {\n"
        '  *n = 77; __asm__ volatile(".fill 16, 1, 0x90"); return *n > 70 ? 100 : *n * 3;\n}\n'
        "int count(void) { int n = 5, error = cudaGetDeviceCount(&n); return error ? -error : n; }\n"
    )
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "static.c", "-o", "static.so"], cwd=tmp_path, check=True)
    done = run(
        tmp_path,
        f"""
        from types import SimpleNamespace
        from cudaemu import front_ends
        file = {str(tmp_path / "static.so")!r}
        library = CDLL(file)
        print(library.count())
        front_ends._static_runtime(SimpleNamespace(__file__=file))
        print(library.count())
        """,
    )
    assert done.stdout.split() == ["-100", "1"], done.stderr


MAP = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry corner(.param .align 64 .b8 map[128], .param .u64 out) {
  .reg .b64 %rd<4>; .reg .b32 %r<8>; .reg .pred %p;
  .shared .align 128 .b8 tile[256]; .shared .align 8 .b64 full;
  ld.param.u64 %rd1, [out]; mov.b64 %rd2, map; cvta.param.u64 %rd2, %rd2;
  mov.u32 %r1, tile; mov.u32 %r2, full; mov.u32 %r3, 4; mov.u32 %r4, 2;
  mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
  mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r2], 64;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r3, %r4}], [%r2];
wait: mbarrier.try_wait.parity.shared.b64 %p, [%r2], 0; @!%p bra wait;
  ld.shared.u32 %r5, [%r1 + 36]; st.global.u32 [%rd1], %r5; ret;
}
"""


def test_a_tensor_map_as_cute_dsl_makes_it(tmp_path):
    """Its host code writes the hardware's own words, here of 16 rows of 8 numbers, boxes of 2 rows of 8."""
    done = run(
        tmp_path,
        f"""
        PTX = {MAP!r}.encode()
        call("cuModuleLoadData", byref(module), c_char_p(PTX))
        call("cuModuleGetFunction", byref(kernel), module, b"corner")
        x, y = c_uint64(), c_uint64()
        call("cuMemAlloc_v2", byref(x), 512); call("cuMemAlloc_v2", byref(y), 4)
        numbers = (c_uint32 * 128)(*range(128))
        call("cuMemcpyHtoD_v2", x, numbers, 512)
        FLOAT32, PITCH = 7, 32
        words = (c_uint64 * 16)(
            x.value, 1 << 18 | FLOAT32 << 7 | 1 << 4 | 2 | PITCH // 16 << 32, 0, 0, 7 | 15 << 32, 0, 7 << 56, 1
        )
        before = bytes(words)
        both = (c_void_p * 2)(addressof(words), addressof(y))
        assert cuda._cudaLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, both, c_size_t(0), None) == 0
        assert cuda._cudaDeviceSynchronize() == 0 and bytes(words) == before
        found = c_uint32()
        call("cuMemcpyDtoH_v2", byref(found), y, 4)
        print(found.value)
        """,
        "--arch",
        "9.0",
    )
    assert done.returncode == 0 and done.stdout == "29\n", done.stderr  # row 3, column 5
