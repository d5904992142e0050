"""Run unchanged CUDA sources without a GPU: host code, kernels, the hardware's counters and a sanitizer.

`program` runs a whole program with its main() (the command `cudaemu FILE.cu`), `load` makes a library of a source, with
kernels and functions to call by name, `run` calls a launcher (`prepare` compiles it beforehand), and `run_ptx` launches
a kernel of a PTX text. All of them take `Options` and return a `Report`.

How it works: nvcc compiles a source to host code and PTX (build). The host code runs in a process of its own (process,
host/*.cpp) against a stand-in CUDA runtime; its requests come here, to a session with the device's memory (session,
memory), which hands each launch to the engine (engine, vm/): a virtual machine that executes the PTX of all threads.
"""

from __future__ import annotations

from cudaemu import interrupts

interrupts.quiet_for("cudaemu")  # before the imports that take a while

from cudaemu.calls import executable_lines, prepare, program, run, run_ptx  # noqa: E402
from cudaemu.errors import CheckFailed, UserError  # noqa: E402
from cudaemu.library import Library, load  # noqa: E402
from cudaemu.options import Options  # noqa: E402
from cudaemu.process import HostFinding  # noqa: E402
from cudaemu.report import METRICS, Counters, Finding, Launch, Report, Trace  # noqa: E402
from cudaemu.timeline import Events, Span, Timeline  # noqa: E402

__version__ = "0.2.0"

__all__ = [
    "METRICS",
    "CheckFailed",
    "Counters",
    "Events",
    "Finding",
    "HostFinding",
    "Launch",
    "Library",
    "Options",
    "Report",
    "Span",
    "Timeline",
    "Trace",
    "UserError",
    "__version__",
    "executable_lines",
    "load",
    "prepare",
    "program",
    "run",
    "run_ptx",
]
