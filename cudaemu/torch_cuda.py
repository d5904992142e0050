"""PyTorch without a GPU, for programs that ask for one: "cuda" is the CPU, and `torch.cuda` answers for the GPU that is
emulated.

A mode of torch's own (TorchFunctionMode) sees each call: where it names a CUDA device, the tensor is made on the CPU,
and tensors say that they are on a GPU (`device`, `is_cuda`). What `torch.empty` gives is not zeros but
NaNs, and its bytes count as never written until a kernel or an operation of torch writes them: `storages` knows which.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from cudaemu.hardware import Gpu
from cudaemu.memory import POISON, Allocation, Arena, available_memory, total_memory

_EMPTY = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.empty_permuted,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
}
_OUTSIDE = {torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__, torch.Tensor.data.__get__}  # type: ignore[attr-defined]
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
_SAID: dict[Any, Callable[[torch.Tensor], Any]] = {  # of a tensor on the CPU
    torch.Tensor.is_cuda.__get__: lambda _: True,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda _: False,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: lambda _: GPU,
    torch.Tensor.get_device: lambda _: 0,
}
DLPACK_CUDA, DLPACK_DEVICE = 2, 8  # kDLCUDA; bytes before a DLTensor's device
_ALL_WRITTEN = np.empty(0, np.uint8)


class Storages:
    """Memory of torch's that is not all written yet, and memory whose address a program has asked for."""

    def __init__(self) -> None:
        self._unwritten: dict[int, tuple[StorageWeakRef, np.ndarray]] = {}  # by address
        self._asked: dict[int, tuple[StorageWeakRef, int]] = {}  # by address: and how many bytes
        self._most = 64

    def is_new(self, tensor: torch.Tensor) -> None:
        """The tensor's memory was allocated just now, and never written."""
        if len(self._unwritten) > self._most:
            self._forget()
        storage = tensor.untyped_storage()
        self._unwritten[storage.data_ptr()] = StorageWeakRef(storage), np.zeros(1 + storage.nbytes(), np.uint8)

    def written(self, tensor: torch.Tensor) -> None:
        """Something that is neither torch nor a kernel may write to it."""
        self._unwritten.pop(tensor.untyped_storage().data_ptr(), None)

    def marks(self, tensor: torch.Tensor) -> np.ndarray:
        """For all of its memory and for each byte, whether it was ever written; empty if all was: Allocation.marks."""
        storage = tensor.untyped_storage()
        found = self._unwritten.get(storage.data_ptr())
        if found is None:
            return _ALL_WRITTEN
        reference, marks = found
        gone = reference.expired() or len(marks) != 1 + storage.nbytes()
        if gone or marks[0] or tensor.is_inference() or tensor._version:  # torch has written to it
            del self._unwritten[storage.data_ptr()]
            return _ALL_WRITTEN
        return marks

    def asked(self, tensor: torch.Tensor) -> None:
        """A program wants to know where it lies."""
        storage = tensor.untyped_storage()
        if len(self._asked) > 1024:
            self._asked = {at: each for at, each in self._asked.items() if not each[0].expired()}
        self._asked[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()

    def all_asked(self) -> dict[int, tuple[StorageWeakRef, int]]:
        """By address: the memory whose address a program has asked for, and how many bytes."""
        return {at: (each, size) for at, (each, size) in self._asked.items() if size and not each.expired()}

    def named_in(self, addresses: Iterable[int]) -> dict[int, int]:
        """Address and bytes of the memory that these addresses, whatever they are, may lie in."""
        alive = {at: size for at, (_, size) in self.all_asked().items()}
        return {at: size for each in addresses for at, size in alive.items() if at <= each < at + size}

    def _forget(self) -> None:
        gone = [at for at, (reference, marks) in self._unwritten.items() if reference.expired() or marks[0]]
        for at in gone:
            del self._unwritten[at]
        self._most = max(64, 2 * len(self._unwritten))


class _Calls(TorchFunctionMode):
    """Sees what a program calls."""

    def __init__(self, storages: Storages) -> None:
        super().__init__()
        self.storages = storages

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if (said := _SAID.get(func)) and args[0].device == CPU:
            return said(args[0])
        given = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **given)
        if func is torch.Tensor.cuda:
            return args[0].clone()
        if func is torch.Tensor.data_ptr:
            self.storages.asked(args[0])
        elif func in _OUTSIDE and args[0].layout == torch.strided and args[0].device == CPU:
            self.storages.written(args[0])
        moved = False
        if given:
            for name in ("device", "device_type", "other"):
                if is_cuda(given.get(name)):
                    given[name], moved = CPU, True
            if given.get("pin_memory"):
                given["pin_memory"] = False
        if any(map(is_cuda, args[:2])):
            args, moved = [CPU if is_cuda(each) else each for each in args], True
        if func in (torch.Tensor.pin_memory, torch.Tensor.is_pinned):
            return args[0] if func is torch.Tensor.pin_memory else False
        if func is torch.Tensor.record_stream:
            return None
        result = func(*args, **given)
        if moved and func is torch.Tensor.to and result is args[0]:
            return result.clone()  # another memory, as the GPU's is
        if func in _EMPTY and isinstance(result, torch.Tensor) and "out" not in given:
            self._poison(result)
        return result

    def _poison(self, tensor: torch.Tensor) -> None:
        plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and type(tensor) is torch.Tensor
        if plain and tensor.untyped_storage().nbytes():
            storage = tensor.untyped_storage()
            with torch.no_grad():
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(POISON)
            self.storages.is_new(tensor)


def allocation(given: Sequence[tuple[str, torch.Tensor]], storages: Storages) -> Allocation:
    """The memory of tensors that have one storage, by their names."""
    marks = [storages.marks(tensor) for _, tensor in given][-1]
    name, tensor = given[0]
    storage = tensor.untyped_storage()
    names = list(dict.fromkeys(name for name, _ in given))
    whole = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == storage.nbytes()
    if not whole:
        tensor = torch.empty(storage.nbytes() // tensor.element_size(), dtype=tensor.dtype, device="meta")
    shape = tensor.detach().to("meta") if whole else tensor
    label = " and ".join(names) if whole else f"the storage of {' and '.join(names)}"
    return Allocation(label, storage.data_ptr(), storage.nbytes(), shape, mapped=True, marks=marks)


class OnGpu:
    """A tensor that says, in DLPack, that it is on a GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_CUDA, 0

    def __dlpack__(self, **_: object) -> object:
        with torch._C.DisableTorchFunction():
            capsule = self.tensor.__dlpack__()
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_int32.from_address(address(capsule, b"dltensor") + DLPACK_DEVICE).value = DLPACK_CUDA
        return capsule


@dataclass
class _Lent:
    tensor: weakref.ref[torch.Tensor] | None
    storage: StorageWeakRef
    allocation: Allocation


class Lent:
    """Memory of torch's that kernels of another package may touch: it lies in the arena while it lives. That of tensors
    that the package was given, and that of which the program has asked for the address."""

    def __init__(self, arena: Arena, storages: Storages) -> None:
        self.arena, self.storages = arena, storages
        self._all: dict[int, _Lent] = {}  # by address

    def add(self, name: str, tensor: torch.Tensor) -> OnGpu:
        """A tensor, to be handed on in its place."""
        storage = tensor.untyped_storage()
        if storage.nbytes():
            made = allocation([(name, tensor)], self.storages)
            self._enter(_Lent(weakref.ref(tensor), StorageWeakRef(storage), made))
        return OnGpu(tensor)

    def renew(self) -> None:
        """A kernel begins: what is gone is no memory any more, and what torch has written is written."""
        for lent in [each for each in self._all.values() if each.storage.expired()]:
            self._leave(lent.allocation.base)
        for address, (storage, size) in self.storages.all_asked().items():
            if address not in self._all:
                made = Allocation(f"memory at {address:#x}", address, size, mapped=True)
                self._enter(_Lent(None, storage, made))
        for lent in self._all.values():
            tensor = lent.tensor() if lent.tensor is not None else None
            marks = _ALL_WRITTEN if tensor is None else self.storages.marks(tensor)
            if marks is not lent.allocation.marks:
                lent.allocation.marks = marks
                self.arena.version += 1

    def _enter(self, lent: _Lent) -> None:
        self._leave(lent.allocation.base)
        self._all[lent.allocation.base] = lent
        self.arena.enter(lent.allocation)

    def _leave(self, address: int) -> None:
        if gone := self._all.pop(address, None):
            self.arena.leave(gone.allocation)


def is_cuda(value: object) -> bool:
    """Whether it names a CUDA device."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


class _Generator(torch.Generator):
    """Of random numbers on either device."""

    def __new__(cls, device: Any = CPU) -> _Generator:
        return super().__new__(cls, CPU if is_cuda(device) else device)  # type: ignore[call-arg]


def _on_the_cpu(start: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """DeviceContext.__init__, of `with torch.device("cuda")`: this mode comes after all others, ours too."""
    return lambda self, device: start(self, CPU if is_cuda(device) else device)


class _Nothing:
    """What can be entered, called and waited for: a stream, a guard, a range; nothing happens."""

    cuda_stream = stream_id = device_index = 0
    device = CPU

    def __init__(self, *_: object, **__: object) -> None:
        self.at = 0.0

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def synchronize(self) -> None:
        """All is done already."""

    wait_stream = wait_event = wait = record_stream = lambda self, *_, **__: None

    def query(self) -> bool:
        return True


class _Event(_Nothing):
    """An event, with this machine's clock: how long the emulator took."""

    def record(self, *_: object) -> None:
        self.at = time.perf_counter()

    def record_event(self, *_: object) -> _Event:
        self.record()
        return self

    def elapsed_time(self, end: _Event) -> float:
        return max(1e3 * (end.at - self.at), 1e-3)


class _Stream(_Nothing):
    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event


def answers(gpu: Gpu) -> dict[str, Any]:
    """What takes the place of torch.cuda's functions."""
    major, minor = gpu.arch.major, gpu.arch.minor
    name = f"emulated {gpu.devices.partition(',')[0]}"
    stream = _Stream()
    properties = SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        total_memory=total_memory(),
        multi_processor_count=gpu.sms,
        warp_size=32,
        regs_per_multiprocessor=gpu.registers,
        max_threads_per_multi_processor=32 * gpu.warps,
        max_threads_per_block=gpu.threads_per_block,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=gpu.shared_per_block,
        shared_memory_per_multiprocessor=gpu.shared_kb << 10,
        L2_cache_size=gpu.l2_mb << 20,
        is_integrated=False,
        gcnArchName="",
    )

    def always(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    return {
        "is_available": always(True),
        "is_initialized": always(True),
        "init": always(None),
        "_lazy_init": always(None),
        "device_count": always(1),
        "current_device": always(0),
        "set_device": always(None),
        "_exchange_device": always(0),
        "_maybe_exchange_device": always(0),
        "device": _Nothing,
        "device_of": _Nothing,
        "_DeviceGuard": _Nothing,
        "get_device_properties": always(properties),
        "get_device_capability": always((major, minor)),
        "get_device_name": always(name),
        "get_arch_list": always([f"sm_{major}{minor}"]),
        "is_bf16_supported": always(True),
        "is_current_stream_capturing": always(False),
        "can_device_access_peer": always(False),
        "synchronize": always(None),
        "ipc_collect": always(None),
        "empty_cache": always(None),
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": _Event,
        "stream": _Nothing,
        "set_stream": always(None),
        "current_stream": always(stream),
        "default_stream": always(stream),
        "manual_seed": always(None),
        "manual_seed_all": always(None),
        "mem_get_info": lambda *_: (available_memory(), total_memory()),
        "memory_stats": lambda *_: {},
        **dict.fromkeys(
            ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), always(0)
        ),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"), always(None)),
    }


class Cuda:
    """torch's CUDA devices, played by the CPU from `start` to `stop`."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.storages = gpu, Storages()
        self._mode = _Calls(self.storages)
        self._before: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        for name, value in answers(self.gpu).items():
            self._put(torch.cuda, name, value)
        # `Tensor.backward` is a call that the mode sees, and within a call there is no mode.
        self._put(torch, "Generator", _Generator)
        self._put(DeviceContext, "__init__", _on_the_cpu(DeviceContext.__init__))
        self._put(torch.autograd, "_engine_run_backward", self._seen(torch.autograd.graph._engine_run_backward))
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value) if value is not None else delattr(owner, name)
        self._before.clear()

    def _put(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name, None)))
        setattr(owner, name, value)

    def _seen(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*args: Any, **kwargs: Any) -> Any:
            with self._mode:
                return run(*args, **kwargs)

        return seen


_running: list[Cuda] = []


def start(gpu: Gpu) -> Cuda:
    """The CPU as this GPU. What runs already goes on, with what it knows of torch's memory; as another GPU it ends."""
    if not _running or _running[0].gpu != gpu:
        stop()
        _running.append(Cuda(gpu))
        _running[0].start()
    return _running[0]


def stop() -> None:
    """torch has no GPU again."""
    while _running:
        _running.pop().stop()
