"""The command line: `python -m kernels.NN_name VERB` for one stage, `python -m kernels VERB` for the whole ladder.

A verb is a module with two functions, imported when it is called for:
    add_arguments(parser)           its options, for which this module has the common ones
    run(stage, args) -> int         the exit status
and, where it has more to say about itself, EXAMPLES (command lines after the program's name, for --help) and
run_ladder(stages, args) -> int (all stages at once; otherwise `run` is called for one after the other).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.table import Table
from rich.text import Text

from common import terminal
from common.errors import CheckFailed, UserError
from common.stage import Kernel, Stage, macros, pick

VERBS = {
    "test": ("common.check", "is the result right, and does the kernel keep the rules? (GPU and emulator)"),
    "bench": ("common.bench", "how fast is it, beside the library and the stage before? (without a GPU: counters)"),
    "count": ("common.count", "what does it execute and move, beside the stage before? (emulator)"),
    "show": ("common.show", "draw which thread touches what (emulator)"),
    "diff": ("common.diff", "what changed since the stage before?"),
    "resources": ("common.resources", "registers, spills, shared memory, occupancy (compiler)"),
    "sass": ("common.sass", "the machine code that the GPU runs (compiler)"),
    "profile": ("common.profile", "the hardware's own counters (GPU with ncu)"),
}
LADDER_VERBS = ("list", "test", "bench")

# What the emulator does in a few minutes on two cores; beyond it a size is refused.
EMULATOR_FLOPS = 2 * 1024**3


def main(package: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 when all is well, 1 for a wrong kernel, 2 for what the user can mend."""
    try:
        status = _dispatch(package, list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except UserError as error:
        terminal.err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        status = 2
    except CheckFailed as failure:
        terminal.err.print(str(failure), markup=False, soft_wrap=True)
        status = 1
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    raise SystemExit(status)


def _dispatch(package: str, argv: list[str]) -> int:
    import kernels

    program = f"python -m {package}"
    stages = kernels.ladder() if package == "kernels" else [kernels.load(package.rpartition(".")[2])]
    ladder = package == "kernels"
    if not argv or argv[0] in ("-h", "--help"):
        _overview(program, stages, ladder)
        return 0
    verb = pick(argv[0], LADDER_VERBS if ladder else tuple(VERBS), "verb", program)
    if verb == "list":
        _Parser(prog=f"{program} list", description="The stages of the course.").parse_args(argv[1:])
        terminal.out.print(_list(stages))
        return 0
    name, summary = VERBS[verb]
    module = importlib.import_module(name)
    examples = "".join(f"\n  {program} {verb} {words}".rstrip() for words in ("", *getattr(module, "EXAMPLES", ())))
    parser = _Parser(
        prog=f"{program} {verb}",
        description=f"{verb}: {summary}",
        epilog=f"examples:{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if ladder:
        parser.add_argument("stages", nargs="*", metavar="STAGE", help="only these, such as 01 03 (default: all)")
    module.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    if not ladder:
        return module.run(stages[0], args)
    if getattr(args, "source", None):
        raise UserError("--source is a file of one stage: python -m kernels.NN_name " + verb)
    chosen = [kernels.load(text) for text in args.stages] or stages
    if hasattr(module, "run_ladder"):
        return module.run_ladder(chosen, args)
    return max(module.run(stage, args) for stage in chosen)


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints end like all others."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}\nSee {self.prog} --help")


def _overview(program: str, stages: list[Stage], ladder: bool) -> None:
    out = terminal.out
    if ladder:
        out.print(_list(stages))
        out.print(f"\n{program} list | test | bench [STAGE ...]   for all stages or some", markup=False)
        out.print("python -m kernels.NN_name VERB               for one stage; its verbs:", markup=False)
    else:
        (stage,) = stages
        out.print(f"Stage {stage.name}", style="bold", markup=False)
        out.print(f"{stage.idea}\n", markup=False)
        out.print(f"takes: {stage.limits}\nsource: {_relative(stage.source)}", markup=False)
        declared = macros(stage.source)
        for name, values in stage.variants.items():
            choices = " | ".join(map(str, values))
            out.print(f"variant {name} = {choices} (default {declared[name].default})", markup=False)
            out.print(f"    {declared[name].help}", markup=False)
        out.print(f"\n{program} VERB [--help]", markup=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for verb, (_, summary) in VERBS.items():
        table.add_row(f"  {verb}", summary)
    out.print(table)
    out.print(f"\nStart with:  python -m {stages[0].package} test", markup=False)


def _list(stages: list[Stage]) -> Table:
    table = Table("stage", "idea", "takes", box=None, pad_edge=False, header_style="bold")
    for stage in stages:
        table.add_row(stage.name, stage.idea, stage.limits)
    return table


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# Options that several verbs share, and what they mean.


def add_kernel_arguments(parser: argparse.ArgumentParser, source: bool = True) -> None:
    """--dtype, --variant and, if `source`, --source: which kernel of the stage."""
    parser.add_argument("--dtype", metavar="TYPE[,TYPE]", help="element types: fp16, bf16, fp32, or all")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a macro of kernel.cu; may be repeated (the stage without a verb lists its variants)",
    )
    if source:
        parser.add_argument("--source", type=Path, metavar="FILE.cu", help="your own version of the stage's kernel.cu")


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """--sizes: which shapes of the problem."""
    parser.add_argument(
        "--sizes", nargs="+", metavar="SIZE", help="one or more sizes, such as 1024 or, axis by axis, 512x256x1024"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device: where to run."""
    parser.add_argument(
        "--device", choices=("auto", "gpu", "emulator"), default="auto", help="default: the GPU if there is one"
    )


def add_seed(parser: argparse.ArgumentParser) -> None:
    """--seed: of the random inputs."""
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default: %(default)s)")


def dtypes(stage: Stage, args: argparse.Namespace) -> list[str] | None:
    """The dtypes that --dtype names, or None if it was not given."""
    if args.dtype == "all":
        return list(stage.dtypes)
    return args.dtype and [pick(word, stage.dtypes, "dtype", stage.name) for word in args.dtype.split(",")]


def variants(args: argparse.Namespace) -> dict[str, int]:
    """What --variant NAME=VALUE, repeated, says; `Stage.kernel` checks the names and values."""
    chosen = {}
    for text in args.variant:
        name, equals, value = text.partition("=")
        try:
            chosen[name.strip()] = int(value)
        except ValueError:
            raise UserError(f"--variant takes NAME=VALUE with a whole number, such as STAGES=3, not '{text}'") from None
    return chosen


def kernel(stage: Stage, args: argparse.Namespace) -> Kernel:
    """The one kernel that --dtype, --variant and --source select."""
    chosen = dtypes(stage, args) or [None]
    if len(chosen) > 1:
        raise UserError(f"one dtype at a time here, not {args.dtype}")
    return stage.kernel(chosen[0], variants(args), getattr(args, "source", None))


def kernels(stage: Stage, args: argparse.Namespace) -> list[Kernel]:
    """The kernels that --dtype, --variant and --source select: one per dtype, the stage's first dtype by default."""
    chosen = dtypes(stage, args) or [None]
    return [stage.kernel(dtype, variants(args), getattr(args, "source", None)) for dtype in chosen]


def shapes(
    kernel: Kernel, args: argparse.Namespace, default: Sequence[tuple[int, ...]], device: str
) -> list[tuple[int, ...]]:
    """The shapes that --sizes names, or `default`; UserError for one that the kernel, or the emulator, cannot take."""
    spec = kernel.stage.spec
    chosen = [spec.parse(word) for text in args.sizes for word in text.split(",")] if args.sizes else list(default)
    for shape in chosen:
        kernel.check_shape(*shape)
        if device == "emulator" and not emulable(kernel, shape):
            hint = ", ".join(map(spec.format, spec.emulator_shapes))
            raise UserError(f"{spec.format(shape)} would keep the emulator busy for hours; try --sizes {hint}")
    return chosen


def emulable(kernel: Kernel, shape: tuple[int, ...]) -> bool:
    """Whether the emulator gets through that shape in minutes."""
    return kernel.stage.spec.flops(shape, kernel.variants) <= EMULATOR_FLOPS


def device(stage: Stage, args: argparse.Namespace) -> str:
    """ "gpu" or "emulator": what --device says; by default the GPU if it can run the stage. Says so when it cannot."""
    from common import gpu

    if args.device == "emulator":
        return "emulator"
    reason = gpu.unfit(stage)
    if reason is None:
        return "gpu"
    if args.device == "gpu":
        raise UserError(f"--device gpu: {reason}")
    gpu.announce(stage)
    return "emulator"
