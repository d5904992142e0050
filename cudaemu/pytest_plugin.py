"""For pytest: a project's tests of kernels of Triton, Numba, CuPy, on its GPU or, with `--cudaemu`, on the emulator.

With the option a test fails if the sanitizer finds anything in a kernel that it launched, and the report says what. The
fixture `cudaemu_reports` has the reports of the test's launches; without the option it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from cudaemu.errors import UserError

if TYPE_CHECKING:
    from cudaemu.report import Report

_DEVICES = pytest.StashKey[list[Any]]()  # the modules that play a device
_TOLD = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cudaemu")
    group.addoption("--cudaemu", action="store_true", help="run CUDA kernels on the emulator, without a GPU")
    group.addoption("--cudaemu-arch", default="9.0", metavar="X.Y", help="its compute capability (default: 9.0)")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--cudaemu"):
        return
    from cudaemu import driver

    config.stash[_DEVICES], config.stash[_TOLD] = [driver], ["cudaemu: the CUDA driver"]
    try:
        from cudaemu import triton

        config.stash[_DEVICES].append(triton)
        config.stash[_TOLD].append("cudaemu: Triton's driver")
    except ImportError:  # Triton or torch is not installed
        pass
    except UserError as error:
        config.stash[_TOLD].append(f"cudaemu: not Triton's driver: {error}")
    try:
        for device in config.stash[_DEVICES]:
            device.use(arch=config.getoption("--cudaemu-arch"))
    except UserError as error:
        raise pytest.UsageError(f"--cudaemu: {error}") from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    return config.stash.get(_TOLD, [])


class _Reports(Sequence["Report"]):
    """Those of several devices, as they are now."""

    def __init__(self, devices: list[Any]) -> None:
        self.devices = devices

    def __len__(self) -> int:
        return sum(len(device.reports) for device in self.devices)

    def __getitem__(self, at: Any) -> Any:
        return [report for device in self.devices for report in device.reports][at]


@pytest.fixture
def cudaemu_reports(request: pytest.FixtureRequest) -> Sequence[Report]:
    """A report of each launch of the test so far, with the option --cudaemu."""
    return _Reports(request.config.stash.get(_DEVICES, []))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    devices = item.config.stash.get(_DEVICES, [])
    for device in devices:
        device.clear()
    outcome: Any = yield
    for device in devices:
        if outcome.excinfo is None and (found := device.report()).findings:
            outcome.force_exception(AssertionError(f"the sanitizer's findings:\n{found}"))
