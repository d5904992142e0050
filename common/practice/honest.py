"""Who does the work? Checks a source whose result is right: its kernels must have done the work, from their inputs.

The host code of a launcher is part of an exercise, and not to be trusted. It is called three times in one process, the
third time at the first shape with other inputs: a launcher that keeps an answer gives the old one. Then the launches of
the third call run again on inputs that the host code has never had, and without it: what the host has computed, read or
written is no answer to those. A program that checks itself runs with the starter's host code (check.py), unless the
task is to repair that: then all else must stay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from common import accuracy
from common.practice.exercises import Exercise
from common.problem import Shape
from common.stage import Kernel
from cudaemu import cpp
from cudaemu.compiler import toolchain

LOOK_FLOPS = 128**3 // 2  # of the shapes at which launches are repeated, about
MOVABLE = re.compile(r"\bcuda(Free\w*|Memset\w*|\w+Synchronize)\([^;{}]*\);")
LIBRARY = re.compile(r"^(void )?(cub|thrust|cutlass|cublas\w*|cudnn\w*)::")


def read(source: Path, exercise: Exercise) -> str:
    """What is wrong with what the source names, before any of it is compiled or runs; "" if nothing is.

    It may include only headers of CUDA and C++."""
    if foreign := toolchain.foreign_files(source):
        return f"only headers of CUDA and C++ may be included, got {foreign[0].name}"
    if repairs_host(exercise) and fixed(toolchain.read(source)) != fixed(exercise.start):
        return "all but where memory is freed or set, and where the host waits, must stay as it is in the starter"
    return ""


def repairs_host(exercise: Exercise) -> bool:
    """Whether a program's bug is in what its host code calls, and in what order."""
    return exercise.stage is None and exercise.patch.first("Repair") == "host"


def fixed(text: str) -> str:
    """The code of a program without blanks and without calls that a repair may move."""
    return "".join(MOVABLE.sub("", cpp.without_comments(text)).split())


def look(exercise: Exercise, kernel: Kernel, shapes: Sequence[Shape], seed: int) -> str:
    """What the launcher has left to others, in words; "" if its kernels do the work at two of these shapes."""
    stage = kernel.stage
    of = {shape: stage.spec.flops(shape, kernel.variants) for shape in shapes}
    near = sorted(of, key=lambda shape: abs(math.log(of[shape] / LOOK_FLOPS)))
    chosen = near[0], near[min(1, len(near) - 1)], near[0], near[0]
    instances = [accuracy.make(kernel, shape, seed=seed + 1 + n) for n, shape in enumerate(chosen)]
    outputs = [instance.outputs() for instance in instances]
    *called, repeated = [(instance.inputs, filled) for instance, filled in zip(instances, outputs)]
    report = kernel.emulate(
        *called[0], again=called[1:], repeat=repeated, arch=exercise.arch or stage.arch, sanitize=False,
        refused_is_error=False,
    )  # fmt: skip
    if report.status:
        return f"called three times in one process, it ends with CUDA error {report.status}: {report.error}"
    if not report.launches:
        return "the launcher launches no kernel"
    if all(LIBRARY.match(launch.kernel) for launch in report.launches):
        return f"the launcher launches only a library's kernels: {report.launches[0].kernel}"
    says = [
        f"called three times in one process with other inputs, the {n} result" for n in ("first", "second", "third")
    ]
    says.append("its kernels, launched once more on other inputs without the host code, do not compute it: the result")
    for instance, filled, said in zip(instances, outputs, says):
        told = list(instance.overwritten().values())
        told += [
            f"{each.wrong:,} of {each.total:,} elements of {each.name}"
            for each in instance.judge(filled)
            if not each.ok
        ]
        if told:
            return f"{said}, {stage.spec.format(instance.shape)}, is wrong: {'; '.join(told)}"
    return ""
