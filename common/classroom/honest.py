"""Who does the work? Checks a launcher whose result is right: its kernels must have done the work, anew in each call.

It is called twice in one process, with other inputs: a launcher that keeps an answer gives the old one. Of both calls
together the counters must show the work: kernels that were launched, outputs that threads have stored, and as many
multiplications as the problem has.
"""

from __future__ import annotations

import re
from pathlib import Path

from common import accuracy
from common.practice.exercises import Exercise
from common.problem import Shape
from common.stage import Kernel
from cudaemu import Report, cpp
from cudaemu.compiler import toolchain
from cudaemu.errors import CheckFailed

HALF2_FLOPS = 4 * 32  # of an fma of a warp, at most: two halves per lane, a product and a sum each
# What a launcher does not need: it gets device memory and returns device memory.
HOST_ONLY = re.compile(
    r"\b(cudaMemcpy\w*|cudaMallocManaged|cudaMallocHost|cudaHostAlloc|cuMemcpy\w*|dlopen|dlsym|system|popen|execv\w*|"
    r"fopen|open|fork|ptrace|process_vm_\w+|syscall)\s*\("
)
MOVABLE = re.compile(r"^[ \t]*cuda(Free\w*|Memset\w*|\w+Synchronize)\([^;]*\);", re.MULTILINE)
LIBRARY = re.compile(r"^(void )?(cub|thrust|cutlass|cublas\w*|cudnn\w*)::")
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?\b(.*)$", re.MULTILINE)


def read(source: Path, exercise: Exercise) -> str:
    """What is wrong with what the source names, before any of it runs; "" if nothing is.

    A submission may include only CUDA and C++ headers, and must keep a program's own check."""
    text = toolchain.read(source)
    spliced = re.sub(r"\\[ \t]*\r?\n", "", text)  # as the preprocessor reads it: "%:" is "#", too
    for named in INCLUDE.findall(cpp.without_comments(spliced).replace("%:", "#")):
        plain = re.fullmatch(r"<([\w+][\w+./-]*)>", named.strip())
        if not plain or ".." in plain[1]:
            return f"#include {named.strip()}: only headers of CUDA and C++ may be included, as <name>"
    if exercise.stage is None:
        if _main(text) != _main(exercise.start):
            return (
                "main must stay as it is in the starter, except for where it frees or sets memory and where it waits: "
                "it checks what your kernel computes"
            )
        return ""
    if found := HOST_ONLY.search(cpp.code(text)):
        return (
            f"the host code calls {found[1]}: a launcher gets pointers to device memory and launches kernels, no more"
        )
    return ""


def _main(text: str) -> str:
    """The code of main and what follows it, without blanks and without calls that a repair may move."""
    _, found, rest = cpp.code(text).partition("int main(")
    return "".join(MOVABLE.sub("", rest).split()) if found else ""


def look(exercise: Exercise, kernel: Kernel, first: Shape, second: Shape, seed: int) -> str:
    """What the launcher has left to others, in words; "" if its kernels do the work at both shapes, one after the other
    in one process."""
    stage = kernel.stage
    instances = [accuracy.make(kernel, shape, seed=seed + n) for n, shape in enumerate((first, second))]
    outputs = [instance.outputs() for instance in instances]
    calls = [(instance.inputs, filled) for instance, filled in zip(instances, outputs)]
    report = kernel.emulate(
        *calls[0], again=calls[1:], arch=exercise.arch or stage.arch, sanitize=False, refused_is_error=False
    )
    if report.status:
        return f"called twice in one process, it ends with CUDA error {report.status}: {report.error}"
    for instance, filled, which in zip(instances, outputs, ("first", "second")):
        try:
            accuracy.verify(kernel, instance, filled)
        except CheckFailed as error:
            shape = stage.spec.format(instance.shape)
            return f"called twice in one process with other inputs, the {which} result, {shape}, is wrong: {error}"
    return _work(report, kernel, (first, second))


def _work(report: Report, kernel: Kernel, shapes: tuple[Shape, ...]) -> str:
    """The work that the kernels have not done."""
    spec, counters = kernel.stage.spec, report.counters
    if not report.launches:
        return "the launcher launches no kernel"
    if all(LIBRARY.match(launch.kernel) for launch in report.launches):
        return f"the launcher launches only a library's kernels: {report.launches[0].kernel}"
    outputs = sum(
        each.nbytes for shape in shapes for each in spec.outputs(shape, kernel.dtype, kernel.variants, "meta")
    )
    stored = counters.global_store_bytes + counters.bulk_store_bytes
    if stored < outputs:
        return f"the kernels store {stored:,} bytes, the outputs have {outputs:,}: something else has written them"
    flops = sum(spec.flops(shape, kernel.variants) for shape in shapes)
    kinds = ("fma", "float", "half")
    done = counters.tensor_flops + HALF2_FLOPS * sum(counters[f"instructions.{kind}"] for kind in kinds)
    if 2 * done < flops:
        return f"the kernels compute at most {done:,} FLOP, the problem has {flops:,}: the result comes from elsewhere"
    return ""
