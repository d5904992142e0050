"""Gluon's tutorials for Hopper, at small sizes: TMA, wgmma, persistent and warp-specialised kernels, clusters."""

from __future__ import annotations

import sys
from typing import Any

import torch

from docs.triton_kernels.cases import Pairs, case, file, folder


def gluon(name: str) -> Any:
    where = str(folder("gluon"))
    if where not in sys.path:
        sys.path.insert(0, where)  # they import each other
    return file("gluon", f"{name}.py")


def product(name: str, function: str, *settings: Any, size: tuple[int, int, int] = (208, 128, 144)) -> Pairs:
    """A @ B by a function of a tutorial, whose tiles pass the matrices' ends."""
    m, n, k = size
    a, b, c = torch.randn(m, k).half(), torch.randn(k, n).half(), torch.empty(m, n).half()
    getattr(gluon(name), function)(a, b, c, *settings)
    yield c, a.float() @ b.float()


def add(name: str, function: str, *settings: Any) -> Pairs:
    a, b, c = torch.randn(100, 200), torch.randn(100, 200), torch.empty(100, 200)
    getattr(gluon(name), function)(a, b, c, *settings)
    yield c, a + b


@case("gluon")
def gluon_01_memcpy() -> Pairs:
    x, y = torch.randn(500), torch.empty(500)
    gluon("01-intro").memcpy(x, y, 64)
    yield y, x


@case("gluon")
def gluon_03_elementwise_add_pipelined() -> Pairs:
    yield from add("03-async-copy", "elementwise_add_pipelined", 32, 64, 2)


@case("gluon")
def gluon_04_tma_message_passing() -> Pairs:
    yield gluon("04-tma").tma_message_passing(16), torch.arange(16) + 1000


@case("gluon")
def gluon_04_elementwise_add_tma() -> Pairs:
    yield from add("04-tma", "elementwise_add_tma", 32, 64, 2)


@case("gluon", 1e-3)
def gluon_05_small_mma() -> Pairs:
    for from_registers in (False, True):
        a, b, c, d = torch.randn(64, 128).half(), torch.randn(128, 64).half(), torch.randn(64, 64), torch.empty(64, 64)
        gluon("05-wgmma").small_mma(a, b, c, d, 16, from_registers, 4)
        yield d, a.float() @ b.float() + c


@case("gluon", 1e-3)
def gluon_05_blocked_matmul() -> Pairs:
    yield from product("05-wgmma", "blocked_matmul", 64, 64, 64, False, 4)


@case("gluon", 1e-3)
def gluon_05_blocked_matmul_pipelined() -> Pairs:
    yield from product("05-wgmma", "blocked_matmul_pipelined", 64, 64, 64, 4)


@case("gluon", 1e-3)
def gluon_07_matmul_pipelined() -> Pairs:
    yield from product("07-persistence", "matmul_pipelined", 128, 64, 64, 3, 4)


@case("gluon", 1e-3)
def gluon_07_persistent_matmul() -> Pairs:
    for scheduler in gluon("07-persistence").schedulers:
        yield from product("07-persistence", "persistent_matmul", 128, 64, 64, 3, 4, scheduler)


@case("gluon", 1e-3, fault="issue_loads_stealb(")
def gluon_07_persistent_matmul_pipelined() -> Pairs:
    """The last of the loads that are peeled off has no predicate: behind the last tile it loads one that nobody waits
    for."""
    for scheduler in gluon("07-persistence").schedulers:
        yield from product("07-persistence", "persistent_matmul_pipelined", 64, 64, 64, 3, 4, scheduler)


@case("gluon")
def gluon_08_elementwise_add_warp_specialized() -> Pairs:
    yield from add("08-warp-specialization", "elementwise_add_warp_specialized", 32, 64, 2, 2, 4)


@case("gluon", 1e-5)
def gluon_14_multicta_softmax() -> Pairs:
    x = torch.randn(16, 2048)
    yield gluon("14-multicta").multicta_softmax_f32(x), x.softmax(1)


@case("gluon", fault="tma.async_store(out_desc, [0, 0], smem)")
def gluon_14_tma_multicast_copy() -> Pairs:
    """The kernel ends without waiting for its store."""
    x, y = torch.randn(128, 128).half(), torch.empty(128, 128).half()
    gluon("14-multicta").run_tma_multicast_copy(x, y)
    yield y, x
