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


@pytest.mark.parametrize("names", [("Event", "Throttle"), ("Throttle",)], ids=["new driver", "old driver"])
def test_reasons_are_the_bits_that_the_driver_sets(names):
    def function(handle, bits):
        bits._obj.value = 0x4 | 0x40
        return 0

    device = nvml.Device("none")
    device.library = SimpleNamespace(**{f"nvmlDeviceGetCurrentClocks{name}Reasons": function for name in names})
    assert device.reasons() == ("power cap", "hardware thermal slowdown")
    device.library = SimpleNamespace()
    assert device.reasons() is None


@pytest.mark.gpu
def test_clock_and_power_can_be_read_on_the_gpu():
    device = nvml.current()
    assert nvml.driver_version()
    assert 100 < device.sm_clock() < 5000
    assert 1 < device.power() < 2000 and 1 < device.power_limit() < 2000
    assert set(device.reasons()) <= set(nvml.REASONS.values())
