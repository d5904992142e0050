"""Device memory without a device: guarded allocations in a range of addresses of their own, and the table of them.

An arena is one range of addresses that nothing else in this process uses, backed by a file in memory. The process that
runs the host code maps the same file (process.py, host/): its device pointers are these addresses, at which it
finds nothing but managed and pinned memory. Every allocation has a red zone on either side; the engine checks each
access against the table of allocations, and because of the red zones an access that misses one by less than RED_ZONE
bytes cannot land in another. Each byte has a mark, which says whether it was ever written. Marks are in the second half
of the file, so that the stand-in runtime can update them when it copies; the mark before an allocation's first says
that all of it is written, and then the others are not used.

What is new holds POISON. Memory of cudaMalloc that is LARGE gets that in parts, each when it is first touched: whoever
reads or writes it, here, in the machine or in the stand-in runtime, looks at the part's state before. So memory that
nobody touches takes neither time nor room. States lie among the marks, before the one of the whole, where the red zone
needs none: that of part n is n + 1 bytes before it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cudaemu.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    Array = Tensor | np.ndarray

RED_ZONE = 1 << 20  # bytes; never touched, so never backed by memory
ALIGNMENT = 512  # bytes, as cudaMalloc and torch align
PAGE = 4096
LARGE, PART = 16 << 20, 1 << 18  # bytes; PART is also in vm/access.cpp and host/allocations.h
SETTLED, NEW = 0, 1  # states of a part; while one is filled, it is 2
POISON = 0xFF  # what uninitialised memory holds: NaN in every floating type

# Addresses that no Linux process has anything at: above what is loaded low, below the heap, libraries and stacks.
FIRST_ADDRESS, ARENA_BYTES, ARENAS = 1 << 44, 1 << 38, 256
RESERVE = 256 << 20  # bytes of the machine's memory that are not the device's

NEAR_NULL = 1 << 16  # bytes around address 0 at which nothing lies: what is there was made of a null pointer

_NONE = np.empty(0, np.uint8)  # the bytes of memory that is gone


@dataclass(eq=False)
class Allocation:
    """Device memory of one tensor, of one cudaMalloc or of one module variable."""

    name: str
    base: int
    size: int
    array: Array | None = None  # what was copied in, and is copied back
    mapped: bool = False  # managed, pinned or this process's: host memory as well
    variable: bool = False  # of the module: it stays from run to run, and the engine enters it by itself
    data: np.ndarray = field(default_factory=lambda: _NONE, repr=False)  # uint8: the bytes, while the arena lives
    # Of all of it, then of each byte: 0 = never written, of a variable never.
    marks: np.ndarray = field(default_factory=lambda: _NONE, repr=False)
    called: Callable[[], str] | None = field(default=None, repr=False)  # a better name, found only when it is wanted

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape) if self.array is not None else (self.size,)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        if self.array is None:
            return 1
        return self.array.itemsize if isinstance(self.array, np.ndarray) else self.array.element_size()

    def unwritten(self, where: slice) -> np.ndarray:
        """Which of these bytes were never written."""
        if not len(self.marks):
            return np.zeros(len(self.data[where]), bool)
        none_written: np.ndarray = (self.marks[1:][where] == 0) & (self.marks[0] == 0)
        return none_written

    def describe(self, address: int) -> str:
        """What lies at an address in or around this allocation: "C[3, 17]", "8 bytes past the end of C"."""
        if self.called is not None:
            self.name, self.called = self.called(), None
        offset = address - self.base
        if offset < 0:
            return f"{-offset} bytes before the start of {self.name}"
        if offset >= self.size:
            past = offset - self.size
            return f"{past} bytes past the end of {self.name}" if past else f"just past the end of {self.name}"
        if self.array is None or not self.shape:
            return f"{self.name} + {offset} bytes" if self.array is None else self.name
        index = np.unravel_index(offset // self.itemsize, self.shape)
        return f"{self.name}[{', '.join(map(str, index))}]"


class AddressMap:
    """The allocations of a run, by address, and what was freed."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.freed: deque[Allocation] = deque(maxlen=256)
        self.host: int | None = None  # the process whose memory is the host's, while it runs

    def find(self, address: int) -> Allocation | None:
        """The allocation that an address lies in."""
        return next((a for a in self.allocations if a.base <= address < a.base + a.size), None)

    def nearest(self, address: int) -> Allocation | None:
        """The allocation that an address lies in or, within the red zone, next to."""
        by_distance = [(max(a.base - address, address - a.base - a.size, 0), a) for a in self.allocations]
        near = [(distance, i) for i, (distance, _) in enumerate(by_distance) if distance < RED_ZONE]
        return self.allocations[min(near)[1]] if near else None

    def describe(self, address: int) -> str:
        """An address in words."""
        if address < NEAR_NULL:
            return f"a null pointer + {address} bytes" if address else "a null pointer"
        if (before := (1 << 64) - address) <= NEAR_NULL:
            return f"{before} bytes before a null pointer"
        for allocation in self.freed:
            if allocation.base <= address < allocation.base + allocation.size and self.find(address) is None:
                return f"{allocation.describe(address)}, which was freed"
        near = self.nearest(address)
        if near is None:
            device = FIRST_ADDRESS <= address < FIRST_ADDRESS + ARENAS * ARENA_BYTES
            if not device and self.host and _mapped(address, 1, self.host):
                return f"address {address:#x}, which is host memory (a kernel needs that of cudaMalloc or the like)"
            return f"address {address:#x}" + (", far from every tensor" if device else " (not the device's)")
        return near.describe(address)

    def snapshot(self) -> AddressMap:
        """The same without the memory, which does not outlive the run."""
        copy = AddressMap()
        copy.allocations = [replace(a, data=_NONE, marks=_NONE) for a in self.allocations]
        copy.freed.extend(self.freed)
        return copy


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_READ_WRITE, _SHARED, _REPLACE, _FIXED, _NO_RESERVE, _REMOVE = (
    3,
    0x01,
    0x10,
    0x100000,
    0x4000,
    9,
)  # <sys/mman.h>; Linux has them alike

_places = threading.Lock()
_free_places = list(range(ARENAS - 1, -1, -1))


class Arena(AddressMap):
    """All allocations of a run, and the memory they lie in. `file` is the descriptor to share it by."""

    def __init__(self) -> None:
        super().__init__()
        self._place = -1
        self.file = os.memfd_create("device memory", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.file, 2 * ARENA_BYTES)
            self.base = self._map()
            self._marks_base = self._map_marks()
        except OSError as error:
            os.close(self.file)
            raise UserError(f"the emulator cannot reserve addresses for device memory: {error.strerror}") from error
        self.end = self.base + ARENA_BYTES
        self._next = self._first = self.base + PAGE  # the first page is for the process that runs the host code
        self._recycled: list[tuple[int, int]] = []  # address and bytes of what was freed, red zones included
        self.version = 0  # another one whenever the allocations change
        self.held: list[Allocation] | None = None  # what is freed from now on, if its memory has to stay

    def _map(self) -> int:
        for _ in range(ARENAS):
            with _places:
                if not _free_places:
                    break
                place = _free_places.pop()
            address = FIRST_ADDRESS + place * ARENA_BYTES
            mapped = _libc.mmap(address, ARENA_BYTES, _READ_WRITE, _SHARED | _FIXED | _NO_RESERVE, self.file, 0)
            if mapped == address:
                self._place = place
                return address
            if mapped not in (None, ctypes.c_void_p(-1).value):  # a Linux kernel that takes the address as a mere hint
                _libc.munmap(mapped, ARENA_BYTES)
        raise OSError(ctypes.get_errno(), "no range of addresses is free (many runs at once, or ulimit -v)")

    def _map_marks(self) -> int:
        mapped: int | None = _libc.mmap(None, ARENA_BYTES, _READ_WRITE, _SHARED | _NO_RESERVE, self.file, ARENA_BYTES)
        if mapped is None or mapped == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "no range of addresses is free (many runs at once, or ulimit -v)")
        return mapped

    def part(self) -> None:
        """Keep the memory and its contents, in a file that no other process has: what the host code's process, or one
        that it has left, maps from now on is another's. What was held is an allocation again."""
        self.allocations += self.held or []
        self.held = None
        self.version += 1
        kept = [(each, each.data.copy(), each.marks.copy()) for each in self.allocations if len(each.data)]
        old, self.file = self.file, os.memfd_create("device memory", os.MFD_CLOEXEC)
        os.ftruncate(self.file, 2 * ARENA_BYTES)
        for address, offset in ((self.base, 0), (self._marks_base, ARENA_BYTES)):
            flags = _SHARED | _REPLACE | _NO_RESERVE
            if _libc.mmap(address, ARENA_BYTES, _READ_WRITE, flags, self.file, offset) != address:
                raise OSError(ctypes.get_errno(), "the memory cannot be mapped again")
        os.close(old)
        for each, data, marks in kept:
            each.data[:], each.marks[:] = data, marks

    def close(self) -> None:
        """Give the memory and the addresses back."""
        if self._place >= 0:
            _libc.munmap(self.base, ARENA_BYTES)
            _libc.munmap(self._marks_base, ARENA_BYTES)
            os.close(self.file)
            with _places:
                _free_places.append(self._place)
            self._place = -1

    def __del__(self) -> None:
        if getattr(self, "_place", -1) >= 0 and not sys.is_finalizing():
            self.close()

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.end

    def place(self, name: str, size: int, align: int) -> int:
        """Room for a variable of the module, which stays when the arena is cleared: its address."""
        address = self._take(size, max(align, PAGE))
        self._first = self._next
        if not address:
            raise UserError(f"{name} must fit into the emulator's memory, got {size:,} bytes")
        data, marks = self._views(address, size, True)
        self.enter(Allocation(name, address, size, variable=True, data=data, marks=marks))
        return address

    def zero(self, address: int, size: int) -> None:
        """Fill a variable of the module, which begins a page, with zeros: whole pages by taking them away."""
        whole = size // PAGE * PAGE
        if whole:
            _libc.madvise(address, whole, _REMOVE)
        ctypes.memset(address + whole, 0, size - whole)

    def allocate(self, name: str, size: int, offset: int = 0, initialised: bool = False) -> Allocation | None:
        """`size` bytes of memory that start `offset` bytes after the beginning of a page; None if there is not enough.

        Uninitialised memory is POISON. `initialised` memory is zeros, page-aligned, and counts as written."""
        if size > self.available():
            return None
        address = self._take(size + offset, PAGE)
        if not address:
            return None
        address += offset
        data, marks = self._views(address, size, initialised)
        if not initialised and size < LARGE:
            data[:] = POISON
        elif not initialised:
            self._states(address, size)[:] = NEW
        allocation = Allocation(name, address, size, data=data, marks=marks)
        self.enter(allocation)
        return allocation

    def available(self) -> int:
        """Bytes that are left of the device's memory: what was allocated and not yet touched is not."""
        large = (a for a in self.allocations if a.size >= LARGE and not a.variable and a.base in self)
        return available_memory() - PART * sum(np.count_nonzero(self._states(a.base, a.size)) for a in large)

    def bytes_of(self, allocation: Allocation, offset: int, size: int) -> np.ndarray:
        """Some of an allocation's bytes, now that they are wanted."""
        states = self._states(allocation.base, allocation.size)[::-1]
        for part in range(offset // PART, -(-(offset + size) // PART)):
            if states[part] == NEW:
                allocation.data[part * PART : (part + 1) * PART] = POISON
                states[part] = SETTLED
        return allocation.data[offset : offset + size]

    def _states(self, address: int, size: int) -> np.ndarray:
        """Of an allocation's parts, the last one's first."""
        parts = -(-size // PART)
        return _bytes(self._marks_base + address - self.base - 1 - parts, parts)

    def free(self, allocation: Allocation) -> None:
        """Give an allocation's memory back. Its address is not used again before all others have been."""
        self.allocations.remove(allocation)
        self.version += 1
        if self.held is not None:
            self.held.append(allocation)
            return
        allocation.data = allocation.marks = _NONE
        self.freed.append(allocation)
        first = (allocation.base - RED_ZONE) // PAGE * PAGE
        bytes_ = -(-(allocation.base + allocation.size + RED_ZONE - first) // PAGE) * PAGE
        self._forget(first, bytes_)
        self._recycled.append((first, bytes_))

    def enter(self, allocation: Allocation) -> None:
        """Add an allocation, wherever it lies."""
        self.allocations.append(allocation)
        self.version += 1

    def leave(self, allocation: Allocation) -> None:
        """Forget an allocation of memory that is not the arena's."""
        self.allocations.remove(allocation)
        allocation.data = allocation.marks = _NONE
        self.freed.append(allocation)
        self.version += 1

    def clear(self) -> None:
        """Free everything but the module's variables, and forget it."""
        kept, first = [a for a in self.allocations if a.variable], self._first
        if self._next > first:
            self._forget(first, self._next - first)
        self.allocations, self._recycled, self._next, self.held = kept, [], first, None
        self.freed.clear()
        self.version += 1

    def upload(self, name: str, array: Array, initialised: bool = True) -> Allocation:
        """Copy a CPU tensor or a NumPy array in. One that is passed twice is one allocation; a view keeps its
        misalignment.

        ValueError if it is not on the CPU or not contiguous."""
        _check_place(name, array)
        address = _address(array)
        if isinstance(array, np.ndarray):
            owner = array
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            start = address - owner.ctypes.data  # where NumPy put the owner is chance
        else:
            start = int(array.storage_offset()) * array.element_size()
        data = raw_bytes(array)
        for known in self.allocations:
            same = known.array is not None and _address(known.array) == address
            if same and known.size >= data.size > 0:
                return known
        allocation = self.allocate(name, data.size, start % ALIGNMENT)
        if allocation is None:
            raise UserError(f"{name} has {data.size:,} bytes, and this machine has {self.available():,} for it")
        allocation.array = array
        self._states(allocation.base, data.size)[:] = SETTLED
        allocation.data[:] = data
        allocation.marks[0] = initialised
        return allocation

    def share(self, name: str, memory: Array | tuple[int, int]) -> Allocation:
        """Memory of this process, where it is: an array, a CPU tensor, or an address and how many bytes. It counts as
        written. UserError if it cannot be read and written, ValueError if an array is not contiguous or not on the
        CPU."""
        if isinstance(memory, tuple):
            if not _mapped(*memory, os.getpid()):
                address, size = memory
                raise UserError(f"{name} must be memory to read and write, got {size:,} bytes at {address:#x}")
            allocation = Allocation(name, *memory)
        else:
            _check_place(name, memory)
            if isinstance(memory, np.ndarray) and not memory.flags.writeable:
                raise UserError(f"{name} must be writable, got a read-only array")
            data = raw_bytes(memory)
            allocation = Allocation(name, _address(memory), data.size, memory, data=data)
        allocation.mapped = True
        self.enter(allocation)
        return allocation

    def download(self) -> None:
        """Copy every tensor and array back, but those that stayed where they are or cannot be written. UserError if
        memory that several share was written: each of them is a copy of its own here."""
        given = [a for a in self.allocations if a.array is not None and a.size and not a.mapped]
        for one, other in itertools.combinations(given, 2):
            if _overlap(one, other) and (_changed(one) or _changed(other)):
                raise UserError(
                    f"{one.name} and {other.name} overlap in memory, and the kernel has written to them: the emulator "
                    "copies each separately; pass one array for both, or a copy of one"
                )
        for allocation in self.allocations:
            array = None if allocation.mapped else allocation.array
            if array is not None and not (isinstance(array, np.ndarray) and not array.flags.writeable):
                raw_bytes(array)[:] = allocation.data

    def _take(self, size: int, align: int) -> int:
        """The address of `size` bytes with red zones around them; 0 if there is none."""
        need = 2 * RED_ZONE + size + align
        start = self._next
        if start + need > self.end:
            fits = next((piece for piece in self._recycled if piece[1] >= need), None)
            if fits is None:
                return 0
            self._recycled.remove(fits)
            start = fits[0]
        else:
            self._next = -(-(start + need - align) // PAGE) * PAGE
        return -(-(start + RED_ZONE) // align) * align

    def _views(self, address: int, size: int, written: bool) -> tuple[np.ndarray, np.ndarray]:
        """The bytes there, and their marks."""
        marks = _bytes(self._marks_base + address - self.base - 1, 1 + size)
        marks[0] = written
        return _bytes(address, size), marks

    def _forget(self, address: int, size: int) -> None:
        """Zero memory and release its pages."""
        _libc.madvise(address, size, _REMOVE)
        _libc.madvise(self._marks_base + address - self.base, size, _REMOVE)


def _bytes(address: int, size: int) -> np.ndarray:
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


def _check_place(name: str, array: Array) -> None:
    """UserError if an array or a tensor cannot be accessed as plain bytes."""
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous:
            raise UserError(f"{name} must be a contiguous array")
        return
    import torch

    if array.is_nested or array.layout != torch.strided:
        raise UserError(f"{name} must be a dense tensor, got {'a nested one' if array.is_nested else array.layout}")
    here = "cpu" in (array.device.type, array.untyped_storage().device.type if array.device.type == "cuda" else "")
    if not here or not array.is_contiguous():  # a script of Triton's says "cuda" of all that is here
        raise UserError(f"{name} must be a contiguous tensor on the CPU")
    if array.is_neg() or array.is_conj():
        raise UserError(f"{name} must have its values in memory, got a lazy view: pass a clone()")
    if array.requires_grad and torch.is_grad_enabled():
        raise UserError(
            f"{name} requires grad, which kernels do not record: pass {name}.detach(), or use torch.no_grad()"
        )
    try:
        there, size = array.data_ptr(), array.untyped_storage().nbytes()
    except RuntimeError:  # inside a transform
        there, size = 0, 0
    end = (int(array.storage_offset()) + array.numel()) * array.element_size()
    if array.numel() and not (there and size >= end):
        plain = there and type(array) in (torch.Tensor, torch.nn.Parameter)
        what = f"one whose storage was resized to {size:,} bytes" if plain else "a fake, functional or emptied one"
        raise UserError(f"{name} must be a tensor with memory of its own, got {what}")


def _mapped(address: int, size: int, process: int) -> bool:
    """Whether a process may read and write all of these bytes."""
    try:
        maps = Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # it has ended
        return False
    else:
        for line in maps:  # in order
            bounds, rights, *_ = line.split(maxsplit=2)
            first, end = (int(bound, 16) for bound in bounds.split("-"))
            if first <= address < end and rights.startswith("rw"):
                if address + size <= end:
                    return True
                address, size = end, address + size - end
    return False


def _overlap(one: Allocation, other: Allocation) -> bool:
    assert one.array is not None
    assert other.array is not None
    begins = _address(one.array), _address(other.array)
    return begins[0] < begins[1] + other.size and begins[1] < begins[0] + one.size


def _changed(allocation: Allocation) -> bool:
    """Whether an allocation's memory is no longer that of the array that was copied in, where it was written."""
    assert allocation.array is not None
    differs = allocation.data != raw_bytes(allocation.array)
    return bool((differs & ~allocation.unwritten(slice(None))).any())


def _address(array: Array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def raw_bytes(array: Array) -> np.ndarray:
    """A contiguous CPU tensor's or array's memory as uint8, shared."""
    if isinstance(array, np.ndarray):
        return array.reshape(-1).view(np.uint8)
    if not array.numel():
        return np.empty(0, np.uint8)
    import torch

    return array.detach().reshape(-1).view(torch.uint8).numpy()


def available_memory() -> int:
    """Bytes that device memory may still take: half of what the machine, or the container that this is, has free, for
    each byte has a mark."""
    return max(0, min(_meminfo("MemAvailable"), _container_memory()) - RESERVE) // 2


def total_memory() -> int:
    """Bytes of the modelled device's memory."""
    return _meminfo("MemTotal") // 2


def _container_memory() -> int:
    """Bytes that a container's limit leaves; more than any machine has if there is no limit."""
    try:
        limit, used = (
            Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current")
        )
        return int(limit) - int(used)
    except (OSError, ValueError):  # no container, an older kind, or "max"
        return 1 << 60


def _meminfo(what: str) -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES" if what == "MemAvailable" else "SC_PHYS_PAGES")
