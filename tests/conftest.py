"""A whole run of the tests: which come first, and what it says at its end. What they share is in fixtures.py."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # there is a process of the tests for each core
pytest_plugins = ["tests.fixtures"]


# ---- where the time goes: in seconds of processors, which do not depend on what else runs ----------------------------

SPENT = "processor seconds"
STARTED = pytest.StashKey[float]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[STARTED] = _processors()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    now = _processors()
    outcome.get_result().user_properties.append((SPENT, now - item.stash[STARTED]))
    item.stash[STARTED] = now


LONG = ("test_kernels.py", "test_notebooks.py")  # files with tests of half a minute


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: what is left when a process has no more to do is short."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The files of tests that took most, and all of them."""
    spent: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        for name, value in getattr(report, "user_properties", ()):
            spent[report.nodeid.partition("::")[0]] += value if name == SPENT else 0.0
    if spent.total() > 10:
        terminalreporter.write_sep("=", f"{spent.total():.0f} {SPENT}")
        for file, seconds in spent.most_common(12):
            terminalreporter.write_line(f"{seconds:6.0f}  {file}")


def _processors() -> float:
    """Seconds that processors have worked for this process and for those that it has waited for."""
    return sum(os.times()[:4])
