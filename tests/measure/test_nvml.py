"""Clock and power, sampled beside a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from common.measure import nvml


def test_the_monitor_keeps_the_samples_of_each_tag_apart():
    class Device:
        clock = 1000.0

        def sm_clock(self):
            return self.clock

        def power(self):
            return None

        def reasons(self):
            return ("power cap", "sync boost") if self.clock < 1900 else ()

    device = Device()
    with nvml.Monitor(device, period=0.001) as monitor:
        for tag, clock in (("one", 1500.0), ("two", 1900.0)):
            monitor.tag, device.clock = tag, clock
            seen = len(monitor.samples)
            while len(monitor.samples) < seen + 5:
                pass
    assert monitor.summary("two")["sm_mhz"]["median"] == 1900.0
    assert monitor.summary("one")["sm_mhz"]["median"] == 1500.0
    assert monitor.summary()["sm_mhz"]["min"] <= 1500.0
    assert "power_w" not in monitor.summary()
    assert monitor.summary("one")["limited_by"] == {"power cap": 1.0, "sync boost": 1.0}
    assert monitor.summary("two")["limited_by"] == {} and 0 < monitor.summary()["limited_by"]["power cap"] < 1


class NVMLError(Exception):
    """As pynvml raises it."""


@pytest.fixture
def driver(monkeypatch):
    """driver(name=answer, …): a driver with these functions of pynvml; an answer may be an error."""

    def install(**functions):
        nvml._ready.cache_clear()

        def made(answer):
            def function(*arguments):
                asked.append(arguments)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            return function

        known = {"nvmlInit": None, "nvmlDeviceGetHandleByUUID": "handle"} | functions
        module = SimpleNamespace(NVMLError=NVMLError, **{name: made(answer) for name, answer in known.items()})
        monkeypatch.setattr(nvml, "pynvml", module)
        return asked

    asked: list[tuple] = []
    yield install
    nvml._ready.cache_clear()


@pytest.mark.parametrize("names", [("Event", "Throttle"), ("Throttle",)], ids=["new driver", "old driver"])
@pytest.mark.parametrize("missing", [None, NVMLError()], ids=["not in the package", "not in the driver"])
def test_reasons_are_the_bits_that_the_driver_sets(driver, names, missing):
    driver(**{f"nvmlDeviceGetCurrentClocks{name}Reasons": 0x4 | 0x40 for name in names})
    if missing and "Event" not in names:
        driver(nvmlDeviceGetCurrentClocksEventReasons=missing, nvmlDeviceGetCurrentClocksThrottleReasons=0x4 | 0x40)
    assert nvml.Device("none").reasons() == ("power cap", "hardware thermal slowdown")
    driver(nvmlDeviceGetCurrentClocksEventReasons=0)
    assert nvml.Device("none").reasons() == ()
    driver()
    assert nvml.Device("none").reasons() is None


def test_clock_and_power_are_in_mhz_and_watts(driver):
    now = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=612_345))
    asked = driver(
        nvmlSystemGetDriverVersion="580.1",
        nvmlDeviceGetClockInfo=1755,
        nvmlDeviceGetMaxClockInfo=1980,
        nvmlDeviceGetEnforcedPowerLimit=700_000,
        nvmlDeviceGetFieldValues=[now],
        nvmlDeviceGetPowerUsage=500_000,
    )
    device = nvml.Device("1234")
    assert ("GPU-1234",) in asked and nvml.Device("GPU-1234").handle == "handle" and ("GPU-GPU-1234",) not in asked
    assert nvml.driver_version() == "580.1"
    answers = device.sm_clock(), device.highest_sm_clock(), device.power_limit(), device.power()
    assert answers == pytest.approx((1755.0, 1980.0, 700.0, 612.345)) and all(type(each) is float for each in answers)
    assert ("handle", nvml.CLOCK_SM) in asked and ("handle", [nvml.POWER_INSTANT]) in asked
    now.nvmlReturn = 3  # not supported: the average then
    assert device.power() == pytest.approx(500.0)


@pytest.mark.parametrize("absent", ["package", "driver", "GPU"])
def test_nothing_is_known_where_there_is_nobody_to_ask(driver, monkeypatch, absent):
    """And nothing fails: runs lack what it says."""
    every = {f"nvml{name}": 1 for name in ("DeviceGetClockInfo", "DeviceGetPowerUsage", "DeviceGetMaxClockInfo")}
    no = {"driver": "nvmlInit", "GPU": "nvmlDeviceGetHandleByUUID"}.get(absent, "nvmlNothing")
    driver(**{**every, no: NVMLError()})
    if absent == "package":
        monkeypatch.setattr(nvml, "pynvml", None)
    device = nvml.Device("1234")
    assert device.sm_clock() is device.highest_sm_clock() is device.power() is device.power_limit() is None
    assert device.reasons() is None and nvml.driver_version() is None
    with nvml.Monitor(device, period=0.001) as monitor:
        while len(monitor.samples) < 3:
            pass
    assert monitor.summary() == {}


@pytest.mark.gpu
def test_clock_and_power_can_be_read_on_the_gpu():
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    device = nvml.current()
    assert nvml.driver_version()
    assert 100 < device.sm_clock() < 5000
    assert 1 < device.power() < 2000 and 1 < device.power_limit() < 2000
    assert set(device.reasons()) <= set(nvml.REASONS.values())
