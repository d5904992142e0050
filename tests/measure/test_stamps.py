"""The SM clock between stamps: of the SMs that left both, and without changing what it is the clock of."""

from __future__ import annotations

import random
import statistics

import pytest
import torch

import cudaemu
from common.measure import nvml, stamps, timing
from cudaemu import hardware
from cudaemu.errors import UserError


def readings(*launches: dict[int, tuple[int, int, int, int]]) -> torch.Tensor:
    """Stamps of launches: SM -> clocks and ns before, clocks and ns after."""
    made = torch.zeros(2 * len(launches), stamps.SLOTS, 2, dtype=torch.int64)
    for number, launch in enumerate(launches):
        for sm, (clocks, ns, clocks_after, ns_after) in launch.items():
            made[2 * number, sm] = torch.tensor([clocks, ns])
            made[2 * number + 1, sm] = torch.tensor([clocks_after, ns_after])
    return made


def test_clocks_and_nanoseconds_are_summed_over_sms_and_launches():
    """SMs have clocks of their own, with gaps between their numbers; one that left a single stamp has no say."""
    first = {0: (10, 1000, 310, 1200), 7: (5000, 1000, 5320, 1200)}
    second = {0: (900, 5000, 1500, 5400), 7: (0, 0, 9999, 5400)}
    assert stamps.counted(readings(first, second)) == (300 + 320 + 600, 200 + 200 + 400)


@pytest.mark.parametrize("passed", [(0, 0), (100, 0), (100, -50), (10, 1000), (9000, 1000)], ids=str)
def test_what_cannot_be_a_clock_is_refused(passed):
    clocks, ns = passed
    with pytest.raises(UserError, match="SM clock"):
        stamps.counted(readings({0: (1, 1000, 1 + clocks, 1000 + ns)}))
    with pytest.raises(UserError, match="SM clock"):
        stamps.counted(readings({}))


def test_a_stamp_has_a_clock_of_every_sm():
    """In the emulator, whose time is no time: each SM of the GPU that it stands in for, and no other, wrote both."""
    model = hardware.model("9.0")
    found = torch.zeros(stamps.SLOTS, 2, dtype=torch.int64)
    report = cudaemu.run(
        stamps.SOURCE,
        "launch_stamp",
        [found, stamps.SLOTS, model.sms, None],
        names=["readings", "slots", "sms", "stream"],
        arch=model.arch,
    )
    assert report.status == 0, report.error
    assert (found > 0).all(dim=1).nonzero().flatten().tolist() == list(range(model.sms))
    assert not report.findings


@pytest.mark.alone
@pytest.mark.gpu
def test_the_clock_is_one_that_the_gpu_can_have_and_the_timer_is_fine_enough():
    highest = nvml.current().highest_sm_clock() / 1e3
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    single = timing.sample(lambda: a @ a, 0.25, 60.0)
    clock = timing.clock([single])["ghz"]
    print(f"clock of a cuBLAS product: {clock:.3f} GHz; step of the timer: {stamps.resolution()} ns")
    assert 0.3 * highest < clock < 1.02 * highest
    assert 0 < stamps.resolution() <= 2000


@pytest.mark.alone
@pytest.mark.gpu
@pytest.mark.parametrize("size", [0, 1024, 4096], ids=["empty kernel", "short product", "long product"])
def test_stamps_do_not_change_the_time_between_the_events(size):
    """With and without stamps in turns: within 1 %, or one step of the events' timer, 0.512 µs on an H100."""
    a = torch.randn(max(size, 1), max(size, 1), device="cuda", dtype=torch.float16)
    call = (lambda: a @ a) if size else stamps.empty()
    times: dict[bool, list[float]] = {True: [], False: []}
    order = random.Random(0)
    for _ in range(12):
        for stamped in order.sample((True, False), 2):
            mark = stamps.Stamps(100).mark if stamped else lambda: None
            times[stamped] += timing.timed_runs(call, 20, 100, mark)
    with_stamps, without = (statistics.median(times[stamped]) * 1e3 for stamped in (True, False))
    print(f"{with_stamps:.2f} µs with stamps, {without:.2f} µs without")
    assert with_stamps == pytest.approx(without, rel=0.01, abs=0.52)
