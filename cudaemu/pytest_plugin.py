"""For pytest: a project's tests of Triton kernels, on its GPU or, with `--cudaemu`, on the emulator.

With the option a test fails if the sanitizer finds anything in a kernel that it launched, and the report says what. The
fixture `cudaemu_reports` has the reports of the test's launches; without the option it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from cudaemu.errors import UserError

if TYPE_CHECKING:
    from cudaemu.report import Report


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cudaemu")
    group.addoption("--cudaemu", action="store_true", help="run Triton's kernels on the emulator, without a GPU")
    group.addoption("--cudaemu-arch", default="9.0", metavar="X.Y", help="its compute capability (default: 9.0)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cudaemu"):
        try:
            from cudaemu import triton

            triton.use(arch=config.getoption("--cudaemu-arch"))
        except (ImportError, UserError) as error:
            raise pytest.UsageError(f"--cudaemu: {error}") from error


@pytest.fixture
def cudaemu_reports(request: pytest.FixtureRequest) -> list[Report]:
    """A report of each launch of the test so far, with the option --cudaemu."""
    if not request.config.getoption("--cudaemu"):
        return []
    from cudaemu import triton

    return triton.reports


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if not item.config.getoption("--cudaemu"):
        yield
        return
    from cudaemu import triton

    triton.reports.clear()
    outcome: Any = yield
    if outcome.excinfo is None and (found := triton.report()).findings:
        outcome.force_exception(AssertionError(f"the sanitizer's findings:\n{found}"))
