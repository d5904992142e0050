"""Options that several verbs share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.practice import patches
from common.stage import Kernel, Stage
from cudaemu import hardware
from cudaemu.compiler.toolchain import read
from cudaemu.errors import UserError, pick
from cudaemu.units import FMA

# What the emulator takes on two cores, seconds per floating-point operation of the problem, by tensor cores or FMA: a
# warp instruction is 4096 of them or 64, and comes with others. Rough: used only to refuse sizes.
SECONDS_PER_FLOP, SECONDS_PER_FLOP_BY_FMA = 4e-10, 2e-9
PATIENCE = 600  # seconds in the emulator; beyond them a size is refused
BYTES_PER_BYTE = 10  # of tensors: the emulator's copy and its marks, a copy to compare with, references in fp64
GIBI = 1 << 30
TRIALS = "trials"  # the folder of a stage's changes that were tried


def add_kernel(parser: argparse.ArgumentParser, source: bool = True) -> None:
    """--dtype, --variant and, if `source`, --source or --trial: which kernel of the stage."""
    parser.add_argument("--dtype", metavar="TYPE[,TYPE]", help="element types, such as fp16,bf16, or all of the stage")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a macro of kernel.cu; may be repeated (the stage without a verb lists its variants)",
    )
    if source:
        own = parser.add_mutually_exclusive_group()
        own.add_argument("--source", type=Path, metavar="FILE.cu", help="your own version of the stage's kernel.cu")
        own.add_argument("--trial", metavar="NAME", help="kernel.cu with a change that was tried: trials/NAME.patch")


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


def add_arch(parser: argparse.ArgumentParser) -> None:
    """--arch: for which GPUs to compile."""
    names = ", ".join(f"{gpu.arch} ({gpu.devices})" for gpu in hardware.GPUS)
    parser.add_argument("--arch", nargs="+", metavar="X.Y", help=f"compute capabilities: {names}")


def add_seed(parser: argparse.ArgumentParser) -> None:
    """--seed: of the random inputs."""
    parser.add_argument("--seed", type=seed, default=0, help="seed of the random inputs (default: %(default)s)")


def seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 2**64
    if not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be a whole number of 64 bits, got '{text}'")
    return value


def dtypes(stage: Stage, args: argparse.Namespace) -> list[str] | None:
    """The dtypes that --dtype names, or None if it was not given."""
    if args.dtype == "all":
        return list(stage.dtypes)
    if args.dtype is None:
        return None
    return [pick(word, stage.dtypes, "dtype", stage.name) for word in args.dtype.split(",")]


def variants(args: argparse.Namespace) -> dict[str, int]:
    """What --variant NAME=VALUE, repeated, says; `Stage.kernel` checks the names and values."""
    chosen = {}
    for text in args.variant:
        name, _, value = text.partition("=")
        try:
            chosen[name.strip()] = int(value)
        except ValueError:
            raise UserError(
                f"--variant must be NAME=VALUE with a whole number, such as STAGES=3, got '{text}'"
            ) from None
    return chosen


def trials(stage: Stage) -> dict[str, patches.Patch]:
    """Changes of the stage's kernel.cu that were tried and timed, by their names; each says in a line what it is."""
    found = sorted((stage.directory / TRIALS).glob("*.patch"))
    return {path.stem: patches.read(path, required=("Trial",)) for path in found}


def write_trial(stage: Stage, name: str) -> Path:
    """The file that --trial stands for: the stage's kernel.cu with that change. UserError if there is no such trial, or
    if the change does not fit the file."""
    from common.figures import accesses

    known = trials(stage)
    patch = known[pick(name, tuple(known), "trial", stage.name)]
    try:
        changed = patch.apply(stage.source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"trials/{error}") from None
    return accesses.write(changed, f"{name}.cu")


def named(kernels: Sequence[Kernel], args: argparse.Namespace) -> list[Kernel]:
    """The kernels, as kernels of the trial that --trial names, if it does."""
    trial = getattr(args, "trial", None)
    return [replace(each, trial=f"{TRIALS}/{trial}.patch") for each in kernels] if trial else list(kernels)


def kernel(stage: Stage, args: argparse.Namespace) -> Kernel:
    """The one kernel that --dtype, --variant and --source or --trial select."""
    chosen = kernels(stage, args)
    if len(chosen) > 1:
        raise UserError(f"--dtype must be one dtype here, got {args.dtype}")
    return chosen[0]


def kernels(stage: Stage, args: argparse.Namespace) -> list[Kernel]:
    """The kernels that --dtype, --variant and --source or --trial select: one per dtype, by default the stage's
    first."""
    chosen: Sequence[str | None] = dtypes(stage, args) or [None]
    return named([stage.kernel(dtype, variants(args), getattr(args, "source", None)) for dtype in chosen], args)


def sources(stage: Stage, args: argparse.Namespace) -> list[Stage]:
    """The stage and what its folder has besides, each with its own source; of --source those whose launcher is in it,
    or the stage."""
    every, source = [stage, *stage.besides], getattr(args, "source", None)
    if source is None:
        return every
    text = read(Path(source))
    return [each for each in every if re.search(rf"\b{each.symbol}\b", text)] or [stage]


def all_kernels(stage: Stage, args: argparse.Namespace) -> list[Kernel]:
    """`kernels`, and those of the stage's other sources, with the variants that these have."""
    found = []
    for each in sources(stage, args):
        mine = [text for text in args.variant if each is stage or text.partition("=")[0].strip() in each.variants]
        found += kernels(each, argparse.Namespace(**{**vars(args), "variant": mine}))
    return found


def shapes(
    kernel: Kernel, args: argparse.Namespace, default: Sequence[tuple[int, ...]], device: str
) -> list[tuple[int, ...]]:
    """The shapes that --sizes names, or `default`; UserError for one that the kernel, or the emulator, cannot take."""
    spec = kernel.stage.spec
    if not args.sizes:
        return list(default)
    chosen = [spec.parse(word, kernel.variants) for text in args.sizes for word in text.split(",")]
    for shape in chosen:
        kernel.check_shape(*shape)
        if device == "emulator" and (reason := too_much(kernel, shape)):
            hint = ", ".join(map(spec.format, spec.emulator_shapes(kernel.variants)))
            raise UserError(f"{spec.format(shape)} {reason}; try --sizes {hint}")
    return chosen


def too_much(kernel: Kernel, shape: tuple[int, ...]) -> str | None:
    """Why that shape is too much for the emulator, by estimated time and memory; None if it is not."""
    spec = kernel.stage.spec
    seconds = spec.flops(shape, kernel.variants) * (
        SECONDS_PER_FLOP_BY_FMA if kernel.stage.unit == FMA.name else SECONDS_PER_FLOP
    )
    if seconds > PATIENCE:
        return f"would keep the emulator busy for about {seconds / 60:,.0f} minutes"
    needed = spec.bytes(shape, kernel.dtype, kernel.variants) * BYTES_PER_BYTE
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > have / 2:
        return (
            f"would take the emulator about {needed / GIBI:,.0f} GiB of memory, and this machine has {have / GIBI:.0f}"
        )
    return None


def check_writable(*paths: Path | None) -> None:
    """UserError for a file that cannot be written, before the run that would end so. Folders are made when it is."""
    for path in filter(None, paths):
        folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
        if path.is_dir():
            raise UserError(f"cannot write {path}: it is a folder")
        if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise UserError(f"cannot write {path}: {folder} is no folder that you may write to")


def emulable(kernel: Kernel, shape: tuple[int, ...]) -> bool:
    """Whether the emulator can run that shape in minutes."""
    return too_much(kernel, shape) is None


def device(stage: Stage, args: argparse.Namespace) -> str:
    """ "gpu" or "emulator": what --device says; by default the GPU if it can run the stage. Says so when it cannot."""
    if args.device == "emulator":
        return "emulator"
    reason = stage.unfit
    if reason is None:
        return "gpu"
    if args.device == "gpu":
        raise UserError(f"--device gpu: {reason}")
    stage.announce()
    return "emulator"
