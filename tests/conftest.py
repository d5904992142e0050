"""A run of the tests: which of them, in which order, how an interrupt ends it, and what it says at its end.

What tests share is in fixtures.py; the tiers are described in tiers.py."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # there is a process of the tests for each core
pytest_plugins = ["tests.fixtures"]

_IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # a process of xdist, one of several


# ---- which tests, and in which order ---------------------------------------------------------------------------------

LONG = ("test_kernels.py", "test_notebooks.py")  # files with tests of half a minute
LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="the I-th of N parts of the tests, for N machines: 1/4")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    if not _IN_WORKER:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends a run like Ctrl-C


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests first: what is left when a process has no more to do is short."""
    items.sort(key=lambda item: item.path.name not in LONG)
    if shard := config.getoption("--shard"):
        number, _, parts = shard.partition("/")
        if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
            raise pytest.UsageError(f"--shard must be I/N with 1 <= I <= N, got {shard}")
        items[:] = items[int(number) - 1 :: int(parts)]
    seen: Counter[object] = Counter()
    for item in items:
        if marker := item.get_closest_marker("core"):
            if seen[of := getattr(item, "function", item)] % marker.kwargs["every"]:
                item.add_marker(pytest.mark.full)
            seen[of] += 1
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish() -> None:
    """What is there now, torch above all, stays: the collector, which comes often where PTX is read, leaves it out."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        tier = "gpu" if item.get_closest_marker("gpu") else "full" if item.get_closest_marker("full") else "other"
        item.config.stash[LEFT_OUT][tier] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _IN_WORKER:
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of xdist leaves out the same tests."""
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


# ---- an interrupt ----------------------------------------------------------------------------------------------------

PATIENCE = 3.0  # seconds: what has not ended by then is killed


def pytest_keyboard_interrupt() -> None:
    """All that the run has started ends with it, also if the interrupt was sent to this process alone: xdist would wait
    for the tests that its processes run, and those for their compilers."""
    if not _IN_WORKER:
        for process in _children(os.getpid()):
            _send(signal.SIGINT, process)
        Thread(target=_kill_the_rest).start()


def _kill_the_rest() -> None:
    started = set(_descendants(os.getpid()))  # whose parent has ended is not found any more
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and any(Path(f"/proc/{process}").exists() for process in started):
        time.sleep(0.1)
        started.update(_descendants(os.getpid()))
    for process in started:
        _send(signal.SIGKILL, process)


def _send(number: signal.Signals, process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _children(process: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{process}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]
    return []


def _descendants(process: int) -> Iterator[int]:
    for child in _children(process):
        yield child
        yield from _descendants(child)


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


def _processors() -> float:
    """Seconds that processors have worked for this process and for those that it has waited for."""
    return sum(os.times()[:4])


# ---- what is said at the end -----------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The files of tests that took most, and all of them; what was left out, and how to run it."""
    spent: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        for name, value in getattr(report, "user_properties", ()):
            spent[report.nodeid.partition("::")[0]] += value if name == SPENT else 0.0
    if spent.total() > 10:
        terminalreporter.write_sep("=", f"{spent.total():.0f} {SPENT}")
        for file, seconds in spent.most_common(12):
            terminalreporter.write_line(f"{seconds:6.0f}  {file}")
    left_out = config.stash[LEFT_OUT]
    commands = {"full": "`make test-all` runs them", "gpu": "need a GPU, `make test-gpu`"}
    said = [f"{left_out[tier]:,} {command}" for tier, command in commands.items() if left_out[tier]]
    if said:
        terminalreporter.write_line(f"Left out: {'; '.join(said)}")
