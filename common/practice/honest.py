"""Who does the work? Checks a launcher whose result is right: its kernels must have done the work, anew in each call.

A second source includes the first, word for word, and calls its launcher twice in one process, with other inputs: a
launcher that keeps an answer gives the old one. Of both calls together the counters must show the work: kernels that
were launched, outputs that threads have stored, and as many multiplications as the problem has.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cudaemu
from common import accuracy
from common.practice.exercises import Exercise
from common.problem import Shape
from common.stage import Kernel
from cudaemu import Report, cpp
from cudaemu.compiler import toolchain
from cudaemu.errors import CheckFailed, UserError
from cudaemu.hardware import Arch

TWICE = "graded_twice"
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


def look(source: Path, exercise: Exercise, kernel: Kernel, first: Shape, second: Shape, seed: int) -> str:
    """What the launcher has left to others, in words; "" if its kernels do the work at both shapes, one after the other
    in one process. UserError if the source cannot be called so."""
    stage = kernel.stage
    declared = cpp.exported(cpp.code(toolchain.read(source)), stage.symbol) or []
    instances = [accuracy.make(kernel, shape, seed=seed + n) for n, shape in enumerate((first, second))]
    outputs = [instance.outputs() for instance in instances]
    values: dict[str, object] = {}
    for n, (instance, filled) in enumerate(zip(instances, outputs)):
        given = {**kernel.arguments(instance.inputs, filled), "stream": None}
        values |= {f"{name}_{n}": value for name, value in given.items()}
    filled_names = [f"{name}_{n}" for name in stage.spec.output_names(kernel.variants) for n in (0, 1)]
    with tempfile.TemporaryDirectory() as folder:
        wrapper = Path(folder) / "twice.cu"
        wrapper.write_text(_twice(source, stage.symbol, declared), encoding="utf-8")
        arch = Arch.of(exercise.arch or stage.arch)
        report = cudaemu.run(
            wrapper, TWICE, list(values.values()), names=list(values), outputs=filled_names, defines=kernel.defines,
            arch=arch, compiled_for=stage.target(arch), sanitize=False,
        )  # fmt: skip
    if report.status:
        return f"called twice in one process, it ends with CUDA error {report.status}: {report.error}"
    for instance, filled, which in zip(instances, outputs, ("first", "second")):
        try:
            accuracy.verify(kernel, instance, filled)
        except CheckFailed as error:
            shape = stage.spec.format(instance.shape)
            return f"called twice in one process with other inputs, the {which} result, {shape}, is wrong: {error}"
    return _work(report, kernel, (first, second))


def _twice(source: Path, symbol: str, declared: Sequence[tuple[str, str]]) -> str:
    """A source with a launcher that calls the submission's launcher twice."""
    if not declared:
        raise UserError(f"{source} does not export {symbol}")
    parameters = ", ".join(f"{kind} {name}_{n}" for n in (0, 1) for kind, name in declared)
    calls = [f"{symbol}({', '.join(f'{name}_{n}' for _, name in declared)})" for n in (0, 1)]
    return (
        f'#include "{source.resolve()}"\nextern "C" cudaError_t {TWICE}({parameters}) {{\n'
        f"  const cudaError_t error = {calls[0]};\n  return error != cudaSuccess ? error : {calls[1]};\n}}\n"
    )


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
