"""CuTe DSL on the emulator, where it is installed, and what it needs of torch and of the driver."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from cudaemu.memory import Arena  # noqa: E402
from cudaemu.torch_cuda import Lent, Storages  # noqa: E402

SCRIPT = """
import torch
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def shift(x: cute.Tensor, y: cute.Tensor):
    tidx, _, _ = cute.arch.thread_idx()
    shared = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(64), 16)
    shared[tidx] = x[tidx]
    BARRIER
    y[tidx] = shared[(tidx + 32) % 64]  # here

@cute.jit
def go(x: cute.Tensor, y: cute.Tensor):
    shift(x, y).launch(grid=(1, 1, 1), block=(64, 1, 1))

x, y = torch.randn(64, device="cuda"), torch.zeros(64, device="cuda")
go(from_dlpack(x), from_dlpack(y))
assert (y == x.roll(32)).all() or not BARRIER_IS_THERE
"""


@pytest.fixture
def lent():
    arena = Arena()
    yield Lent(arena, Storages())
    arena.close()


def test_a_tensors_memory_is_the_devices_while_it_lives(lent):
    x = torch.zeros(4, 3)
    capsule = lent.add("x", x.t()).__dlpack__(stream=-1)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    there, device = (ctypes.c_uint64 * 2).from_address(pointer(capsule, b"dltensor"))
    assert (there, device) == (x.data_ptr(), 2)  # kDLCUDA
    assert lent.arena.describe(x.data_ptr() + 4) == "the storage of x[1]"
    address = x.data_ptr()
    del x, capsule
    lent.renew()
    assert not lent.arena.allocations and lent.arena.describe(address).endswith("which was freed")


def test_what_was_never_written_counts_as_such_until_torch_writes_it(lent):
    x = torch.empty(4)
    lent.storages.is_new(x)
    lent.add("x", x)
    (allocation,) = lent.arena.allocations
    assert allocation.unwritten(slice(None)).all()
    x += 1
    lent.renew()
    assert not allocation.unwritten(slice(None)).any()


def test_memory_whose_address_was_asked_for(lent):
    x = torch.zeros(4)
    lent.storages.asked(x)
    lent.renew()
    assert [(each.base, each.size) for each in lent.arena.allocations] == [(x.data_ptr(), 16)]


@pytest.mark.full
@pytest.mark.parametrize("barrier", [True, False])
def test_a_kernel_of_cute_dsl(tmp_path, barrier):
    """Its tensors are torch's on the CPU, its findings at the line of Python."""
    pytest.importorskip("cutlass.cute")
    script = tmp_path / "script.py"
    text = SCRIPT.replace("BARRIER_IS_THERE", str(barrier)).replace(
        "BARRIER", "cute.arch.sync_threads()" if barrier else "pass"
    )
    script.write_text(text)
    command = [sys.executable, "-m", "cudaemu", "python", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == (0 if barrier else 99), done.stderr
    if not barrier:
        line = text[: text.index("# here")].count("\n") + 1
        assert re.search(rf"uninitialised shared read: .*\n +at script.py:{line}, ", done.stderr), done.stderr
