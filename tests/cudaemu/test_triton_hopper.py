"""Triton on an emulated Hopper GPU: what its kernels have that others have not, each by a kernel that uses it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", "3.9", reason="Triton 3.9 or newer is not installed: pip install triton (a gigabyte)")

import triton  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from cudaemu import CheckFailed  # noqa: E402
from cudaemu import triton as device  # noqa: E402
from tests.cudaemu import triton_hopper as hopper  # noqa: E402

pytestmark = pytest.mark.full
device.stop()  # other tests are run beside these


@pytest.fixture(autouse=True)
def emulator():
    device.use()
    device.reports.clear()
    torch.manual_seed(0)
    triton.set_allocator(lambda size, _alignment, _stream: torch.empty(size, dtype=torch.int8))
    yield
    device.stop()


def close(got, expected):
    assert torch.allclose(got.float(), expected.float(), atol=2e-2, rtol=2e-2)
    assert not device.report().findings, device.report()


def matrices(m: int, n: int, k: int):
    a, b = torch.randn(m, k).half(), torch.randn(n, k).half()
    return a, b, torch.zeros(m, n).half()


@pytest.mark.parametrize("specialize", [False, True])
def test_warp_specialisation(specialize):
    a, b, c = matrices(192, 128, 128)
    hopper.product[(2,)](a, b, c, 192, 128, 128, SPECIALIZE=specialize, B=64)
    close(c, a.float() @ b.float().T)
    (launch,) = device.reports[-1].launches
    assert (launch.block[0] > 128) is specialize, launch.block
    assert launch.counters["bulk_load_bytes"] == 6 * 2 * 2 * 64 * 64 * 2


@pytest.mark.parametrize("ctas", [1, 2])
def test_descriptors_of_the_host_and_clusters(ctas):
    a, b, c = matrices(128, 192, 128)
    described = (TensorDescriptor.from_tensor(each, [64, 64]) for each in (a, b, c))
    hopper.product_of_described[(2, 3)](*described, 128, B=64, num_ctas=ctas)
    close(c, a.float() @ b.float().T)
    (launch,) = device.reports[-1].launches
    assert launch.grid == (2 * ctas, 3, 1)


def test_a_print_of_the_device(capsys):
    hopper.printed[(1,)](torch.arange(8, dtype=torch.int32) * 11, 8, B=128)
    out = capsys.readouterr().out
    assert "x is" in out and "77" in out and len(out.splitlines()) == 128, out


def test_an_assertion_of_the_device(capsys):
    x = torch.arange(39, dtype=torch.int32)
    hopper.asserted[(1,)](x, 39, B=64, debug=True)
    close(x, torch.arange(1, 40))
    with pytest.raises(CheckFailed, match="too large"):
        hopper.asserted[(1,)](x + 1, 39, B=64, debug=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.float16, torch.bfloat16])
def test_atomics(dtype):
    x = torch.randint(1, 50, (100,), dtype=torch.int32)
    sums, greatest = torch.zeros(4, dtype=dtype), torch.zeros(3)
    least, bits = torch.full((3,), 99, dtype=torch.int32), torch.tensor([0, 0, -1, 0], dtype=torch.int32)
    tickets = torch.zeros(10, dtype=torch.int32)
    hopper.counted[(4,)](x, sums, greatest, least, bits, tickets, 100, B=32)
    report = device.report()
    assert not report.findings, report
    expected = torch.zeros(4).index_add(0, (x % 4).long(), x.float())
    assert torch.allclose(sums.float(), expected, rtol=2e-2)
    assert greatest.tolist() == [x[n::3].max() for n in range(3)]
    assert least.tolist() == [x[n::3].min() for n in range(3)]
    ored, xored, anded = 0, 0, -1
    for value in x.tolist():
        ored, xored, anded = ored | 1 << value % 31, xored ^ value, anded & (value | 7)
    assert bits[:3].tolist() == [ored, xored, anded]
    assert tickets.tolist() == [4, 1, 1, 1, 1, 0, 0, 0, 4, 0]


def gluon_arguments(k: int):
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    def described(tensor, shape):
        return TensorDescriptor.from_tensor(tensor, shape, gl.NVMMASharedLayout.get_default_for(shape, gl.float16))

    a, b, c = torch.randn(64, k).half(), torch.randn(k, 32).half(), torch.zeros(64, 32).half()
    return (a, b, c), (described(a, [64, 32]), described(b, [32, 32]), described(c, [64, 32]))


def test_gluon():
    (a, b, c), described = gluon_arguments(160)
    hopper.in_two_parts[(1,)](*described, 160, B=32, WAITS=True, num_warps=4)
    close(c, a.float() @ b.float())
    assert device.reports[-1].counters["wgmma_bytes"]


def test_a_wait_that_is_missing_in_gluon_is_found_at_its_line():
    _, described = gluon_arguments(160)
    hopper.in_two_parts[(1,)](*described, 160, B=32, WAITS=False, num_warps=4)
    found = device.report().findings
    assert {each.kind for each in found} >= {"copy in flight"}, device.report()
    assert any(each.file == hopper.__file__ for each in found), device.report()
