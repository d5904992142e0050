"""Run unchanged CUDA sources without a GPU: their host code, their kernels, the hardware's counters and a sanitizer.

nvcc compiles a source to host code and PTX (build). The host code runs in a process of its own (host, host/*.cpp)
against a stand-in CUDA runtime; its requests come here, to a session with the device's memory (session, memory), which
hands each launch to the engine (engine, vm/): a virtual machine that executes the PTX of all threads. What comes back
is a `Report`.

`run` calls a launcher (`prepare` compiles beforehand what it needs), `load` gives kernels and launchers of a source by
their names, `program` runs a whole program with its main (`python -m cudaemu` from the command line), `run_ptx`
launches a kernel of a PTX text.
"""

from __future__ import annotations

from cudaemu.calls import executable_lines, prepare, program, run, run_ptx
from cudaemu.library import Library, load
from cudaemu.options import Options
from cudaemu.process import HostFinding
from cudaemu.report import METRICS, Counters, Finding, Launch, Report, Trace

__version__ = "0.2.0"

__all__ = [
    "METRICS",
    "Counters",
    "Finding",
    "HostFinding",
    "Launch",
    "Library",
    "Options",
    "Report",
    "Trace",
    "__version__",
    "executable_lines",
    "load",
    "prepare",
    "program",
    "run",
    "run_ptx",
]
