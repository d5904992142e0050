"""Clock and power, sampled beside a run."""

from __future__ import annotations

import pytest
import torch

from common.measure import nvml


def test_the_monitor_keeps_the_samples_of_each_tag_apart():
    class Device:
        clock = 1000.0

        def sm_clock(self):
            return self.clock

        def power(self):
            return None

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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_clock_and_power_can_be_read_on_the_gpu():
    device = nvml.current()
    assert nvml.driver_version()
    assert 100 < device.sm_clock() < 5000
    assert 1 < device.power() < 2000
