"""What NVML (the library of nvidia-smi) says about a GPU: driver, SM clock and what limits it, power. Nothing is set.

Its SM clock is a set-point that is read every few milliseconds: stamps.py measures the clock of a launch."""

from __future__ import annotations

import ctypes
import statistics
import threading
from functools import lru_cache
from typing import Any, NamedTuple

CLOCK_SM = 1  # nvmlClockType_t
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, mW; nvmlDeviceGetPowerUsage is a one-second average since Ampere
REASONS = {  # bits of nvmlDeviceGetCurrentClocksEventReasons
    0x1: "idle",
    0x2: "applications clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; `value` is a union of 8 bytes."""

    _fields_ = [
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    ]


@lru_cache
def _library() -> ctypes.CDLL | None:
    """libnvidia-ml, initialised; None where there is no driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def driver_version() -> str | None:
    """The driver's version ("580.159.04"), None without a driver."""
    library, text = _library(), ctypes.create_string_buffer(96)
    if library is None or library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(96)) != 0:
        return None
    return text.value.decode()


class Device:
    """One GPU, found by its UUID (torch.cuda.get_device_properties().uuid, with or without "GPU-")."""

    def __init__(self, uuid: str):
        self.library, self.handle = _library(), ctypes.c_void_p()
        name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        found = self.library and self.library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self.handle)) == 0
        if not found:
            self.library = None

    def sm_clock(self) -> float | None:
        """SM clock now, MHz."""
        value = ctypes.c_uint()
        if self.library and self.library.nvmlDeviceGetClockInfo(self.handle, CLOCK_SM, ctypes.byref(value)) == 0:
            return float(value.value)
        return None

    def highest_sm_clock(self) -> float | None:
        """The highest SM clock that the GPU allows, MHz."""
        value = ctypes.c_uint()
        if self.library and self.library.nvmlDeviceGetMaxClockInfo(self.handle, CLOCK_SM, ctypes.byref(value)) == 0:
            return float(value.value)
        return None

    def reasons(self) -> tuple[str, ...] | None:
        """Why the driver holds the clocks below the highest now: of REASONS; None if it does not say."""
        if not self.library:
            return None
        bits = ctypes.c_ulonglong()
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            function = getattr(self.library, name, None)  # drivers before R535 have the second name only
            if function and function(self.handle, ctypes.byref(bits)) == 0:
                return tuple(reason for bit, reason in REASONS.items() if bits.value & bit)
        return None

    def power_limit(self) -> float | None:
        """The power that the driver holds the GPU to, W: on an average, which single readings may exceed."""
        value = ctypes.c_uint()
        if self.library and self.library.nvmlDeviceGetEnforcedPowerLimit(self.handle, ctypes.byref(value)) == 0:
            return value.value / 1000.0
        return None

    def power(self) -> float | None:
        """Power drawn now, W."""
        if not self.library:
            return None
        field = _FieldValue(field=POWER_INSTANT)
        if self.library.nvmlDeviceGetFieldValues(self.handle, 1, ctypes.byref(field)) == 0 and field.status == 0:
            return (field.value & 0xFFFFFFFF) / 1000.0
        value = ctypes.c_uint()
        if self.library.nvmlDeviceGetPowerUsage(self.handle, ctypes.byref(value)) == 0:
            return value.value / 1000.0
        return None


def current() -> Device:
    """torch's current GPU."""
    import torch

    return Device(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))


class Sample(NamedTuple):
    """What NVML said at one moment; None for what it does not know."""

    tag: object
    sm_mhz: float | None
    power_w: float | None
    reasons: tuple[str, ...] | None


class Monitor:
    """Samples clock, power and what limits the clock in a thread while a `with` block runs; `.tag` is what is running.

    After the block, `summary(tag)` gives {"sm_mhz": {median, min, max, n}, "power_w": {…}, "limited_by": {reason: share
    of the samples}} of that tag (None: of all), without the keys for which there is no sample.
    """

    def __init__(self, device: Any, period: float = 0.02):
        self.device, self.period = device, period
        self.tag: object = None
        self.samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def _poll(self) -> None:
        device = self.device
        while not self._stop.wait(self.period):
            self.samples.append(Sample(self.tag, device.sm_clock(), device.power(), device.reasons()))

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self, tag: object = None) -> dict:
        mine = [each for each in self.samples if tag is None or each.tag is tag]
        result: dict[str, dict] = {}
        for key in ("sm_mhz", "power_w"):
            if values := [value for each in mine if (value := getattr(each, key)) is not None]:
                result[key] = {
                    "median": round(statistics.median(values), 1),
                    "min": round(min(values), 1),
                    "max": round(max(values), 1),
                    "n": len(values),
                }
        if known := [each.reasons for each in mine if each.reasons is not None]:
            seen = [reason for reason in REASONS.values() if any(reason in each for each in known)]
            result["limited_by"] = {name: round(sum(name in each for each in known) / len(known), 2) for name in seen}
        return result
