"""What NVML (the library of nvidia-smi) says about a GPU: driver, SM clock and what limits it, power. Nothing is set.

Asked by NVIDIA's package nvidia-ml-py; without it, or without a driver, nothing is known, and runs lack these fields.
Its SM clock is a set-point that is read every few milliseconds: stamps.py measures the clock of a launch."""

from __future__ import annotations

import statistics
import threading
from functools import lru_cache
from typing import Any, NamedTuple

try:
    import pynvml
except ImportError:
    pynvml = None

CLOCK_SM = 1  # nvmlClockType_t
MILLI = 1000
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


@lru_cache
def _ready() -> bool:
    """Whether there are the package and a driver."""
    if pynvml is None:
        return False
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _ask(function: str, *arguments: Any) -> Any:
    """What that function of NVML answers; None if it does not, or nobody is there to ask."""
    if not _ready() or None in arguments:
        return None
    try:
        return getattr(pynvml, function)(*arguments)
    except (AttributeError, pynvml.NVMLError):  # a package or a driver of before there was that function
        return None


def driver_version() -> str | None:
    """The driver's version ("580.159.04"), None without a driver."""
    version: str | None = _ask("nvmlSystemGetDriverVersion")
    return version


class Device:
    """One GPU, found by its UUID (torch.cuda.get_device_properties().uuid, with or without "GPU-")."""

    def __init__(self, uuid: str):
        self.handle = _ask("nvmlDeviceGetHandleByUUID", uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def sm_clock(self) -> float | None:
        """SM clock now, MHz."""
        return _float(_ask("nvmlDeviceGetClockInfo", self.handle, CLOCK_SM))

    def highest_sm_clock(self) -> float | None:
        """The highest SM clock that the GPU allows, MHz."""
        return _float(_ask("nvmlDeviceGetMaxClockInfo", self.handle, CLOCK_SM))

    def reasons(self) -> tuple[str, ...] | None:
        """Why the driver holds the clocks below the highest now: of REASONS; None if it does not say."""
        for name in ("Event", "Throttle"):  # drivers before R535 have the second name only
            if (bits := _ask(f"nvmlDeviceGetCurrentClocks{name}Reasons", self.handle)) is not None:
                return tuple(reason for bit, reason in REASONS.items() if bits & bit)
        return None

    def power_limit(self) -> float | None:
        """The power that the driver holds the GPU to, W: on an average, which single readings may exceed."""
        return _float(_ask("nvmlDeviceGetEnforcedPowerLimit", self.handle), MILLI)

    def power(self) -> float | None:
        """Power drawn now, W."""
        for field in _ask("nvmlDeviceGetFieldValues", self.handle, [POWER_INSTANT]) or ():
            if field.nvmlReturn == 0:
                return _float(field.value.uiVal, MILLI)
        return _float(_ask("nvmlDeviceGetPowerUsage", self.handle), MILLI)


def _float(value: int | None, units: int = 1) -> float | None:
    return None if value is None else value / units


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

    def summary(self, tag: object = None) -> dict[str, Any]:
        mine = [each for each in self.samples if tag is None or each.tag is tag]
        result: dict[str, dict[str, Any]] = {}
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
