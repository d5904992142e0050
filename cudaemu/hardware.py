"""Compute capabilities and their GPUs: which code runs where, what a multiprocessor (SM) has, what fits on it.

Limits are those of the CUDA C++ programming guide, "Technical specifications per compute capability". Occupancy follows
cuda_occupancy.h, which the CUDA toolkit carries and the tests compile to compare with: warps get registers in units of
256, on the quarter of the SM they live on; a block's shared memory counts in units of 128 bytes, with 1 KB more for the
system; and the SM holds a fixed number of blocks and of warps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cudaemu.errors import BadOption, UserError


@dataclass(frozen=True, order=True)
class Arch:
    """A compute capability: 8.0; or, with instructions that no other has, 9.0a: of one alone; 10.0f: of a family, which
    is a major number."""

    major: int
    minor: int
    suffix: str = ""  # "a", "f" or nothing

    @classmethod
    def of(cls, value: str | Arch | tuple[int, int]) -> Arch:
        """From "9.0a" as people write it, "90a" as nvcc does, or (9, 0). UserError for anything else."""
        if isinstance(value, Arch):
            return value
        text = ".".join(map(str, value)) if isinstance(value, tuple) else str(value)
        found = re.fullmatch(r"(\d+)\.?(\d)([af]?)", text, re.ASCII)
        if found is None:
            raise BadOption(f"a compute capability must be written like 8.0, 90 or 9.0a, got '{text}'")
        return cls(int(found[1]), int(found[2]), found[3])

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def nvcc(self) -> str:
        """nvcc's spelling: "80", "90a", "100f"."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def exact(self) -> bool:
        """Whether one compute capability alone runs its code."""
        return self.suffix == "a"

    def runs_on(self, gpu: str | Arch) -> bool:
        """Whether code for this compute capability runs on a GPU of another: newer ones run it, unless it is exact, or
        they are of another family than it is for."""
        here = Arch.of(gpu)
        own, other = (self.major, self.minor), (here.major, here.minor)
        return own == other if self.exact else own <= other and (not self.suffix or self.major == here.major)


@dataclass(frozen=True)
class Gpu:
    """One compute capability, and the largest part that has it."""

    arch: Arch
    devices: str  # the largest part first
    shared_kb: int  # shared memory per SM; a block can have 1 KB less
    warps: int  # resident warps per SM
    blocks: int  # resident blocks per SM
    sms: int  # multiprocessors of the first of `devices`
    l2_mb: int  # and its L2 cache

    registers = 65536  # 32-bit registers per SM
    quarters = 4  # each with its own scheduler and a quarter of the registers
    register_unit = 256  # registers given to a warp are a multiple of this
    shared_unit = 128  # bytes of shared memory given to a block are a multiple of this
    shared_system = 1024  # bytes per block that the system takes
    threads_per_block = 1024
    registers_per_thread = 255

    @property
    def shared_per_block(self) -> int:
        """Bytes of shared memory that a block can have if its launcher asks for them."""
        return self.shared_kb * 1024 - self.shared_system


GPUS = (
    Gpu(Arch(8, 0), "A100", shared_kb=164, warps=64, blocks=32, sms=108, l2_mb=40),
    Gpu(Arch(8, 6), "RTX 3090", shared_kb=100, warps=48, blocks=16, sms=82, l2_mb=6),
    Gpu(Arch(8, 9), "RTX 4090, L40S", shared_kb=100, warps=48, blocks=24, sms=128, l2_mb=72),
    Gpu(Arch(9, 0), "H200, H100", shared_kb=228, warps=64, blocks=32, sms=132, l2_mb=60),
    Gpu(Arch(10, 0), "B200", shared_kb=228, warps=64, blocks=32, sms=148, l2_mb=126),
    Gpu(Arch(12, 0), "RTX 5090", shared_kb=100, warps=48, blocks=24, sms=170, l2_mb=96),
)

_SUFFIXES = {"a": (9, 0), "f": (10, 0)}  # from which compute capability on there are targets of that kind


def check_target(target: str, gpu: Gpu) -> None:
    """UserError unless a GPU has every architecture that a module of PTX names in its `.target`.

    As PTX ISA has it ("PTX Module Directives: .target"), and ptxas, which is in the driver, too."""
    named = re.findall(r"\b(?:sm|compute)_(\w+)", target)
    if not named:
        raise UserError("it has no .target, which every module of PTX has")
    own = gpu.arch.major, gpu.arch.minor
    for name in named:
        arch = Arch.of(name) if re.fullmatch(r"\d{2,3}[af]?", name) else None
        there = arch and (not arch.suffix or (arch.major, arch.minor) >= _SUFFIXES[arch.suffix])
        if not arch or not there or not arch.runs_on(gpu.arch):
            has = [f"sm_{gpu.arch.nvcc}{suffix}" for suffix, first in _SUFFIXES.items() if own >= first]
            most = f"{', '.join([*has, 'sm_' + gpu.arch.nvcc])} or older"
            raise UserError(f".target must be one that compute capability {gpu.arch} has ({most}), got sm_{name}")


SLICE = 14  # multiprocessors of the least that an A100 can be divided into (MIG 1g.5gb): small shapes fill it


def select(archs: Sequence[str | Arch] | None) -> tuple[Gpu, ...]:
    """The GPUs of these compute capabilities ("8.6" or "86"; None: all). UserError for one that is not in GPUS."""
    return GPUS if not archs else tuple(model(arch) for arch in archs)


def model(arch: str | Arch) -> Gpu:
    """The GPU with the limits of a compute capability; that of 9.0 for "9.0a". UserError for one not in GPUS."""
    wanted = Arch.of(arch)
    for gpu in GPUS:
        if (gpu.arch.major, gpu.arch.minor) == (wanted.major, wanted.minor):
            return gpu
    raise BadOption(f"the compute capability must be one of {', '.join(str(gpu.arch) for gpu in GPUS)}, got '{arch}'")


@dataclass(frozen=True)
class Occupancy:
    """How many blocks an SM holds, its share of warps, and which resources limit it."""

    blocks: int
    warps: int
    share: float
    limiters: tuple[str, ...]


@lru_cache(maxsize=1024)
def occupancy(gpu: Gpu, threads: int, registers: int | None, shared: int) -> Occupancy:
    """Theoretical occupancy of blocks of `threads` threads, `registers` per thread, `shared` bytes (static + dynamic).

    `registers`: None if they are not known; then they limit nothing. 0 blocks, and the reason as the limiter, if a
    single block does not fit.
    """
    warps = -(-threads // 32)
    limits = {} if registers is None else {"registers": _by_registers(gpu, warps, registers)}
    limits |= {
        "shared memory": gpu.shared_kb * 1024 // round_up(shared + gpu.shared_system, gpu.shared_unit),
        "warps": gpu.warps // warps,
        "blocks": gpu.blocks,
    }
    if threads > gpu.threads_per_block:
        limits["threads per block"] = 0
    blocks = min(limits.values())
    limiters = tuple(name for name, limit in limits.items() if limit == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / gpu.warps, limiters)


def _by_registers(gpu: Gpu, warps: int, registers: int) -> int:
    """Blocks of `warps` warps for which an SM's registers last."""
    per_warp = round_up(registers * 32, gpu.register_unit)
    room = gpu.registers // gpu.quarters // per_warp * gpu.quarters  # warps
    # The launch check counts a block's warps as if each quarter held as many of them as the fullest one.
    fits = registers <= gpu.registers_per_thread and per_warp * round_up(warps, gpu.quarters) <= gpu.registers
    return room // warps if fits else 0


def shared_room(gpu: Gpu, blocks: int) -> int:
    """The most bytes of shared memory (static + dynamic) with which an SM holds this many blocks."""
    each = gpu.shared_kb * 1024 // blocks // gpu.shared_unit * gpu.shared_unit - gpu.shared_system
    return max(0, min(each, gpu.shared_per_block))


def round_up(value: int, unit: int) -> int:
    """The next multiple of `unit`."""
    return -(-value // unit) * unit
