"""Verb `show`: figures of what a kernel does, drawn from the addresses that one of its blocks executes in the emulator.

    figure      | shows
    ------------+---------------------------------------------------------------------------------------------------------
    footprint   | what a block, a warp and a lane touch of each tensor
    threads     | which thread touches which element of a tensor
    registers   | which outputs one thread holds (only where a thread has several)
    sectors     | one global request of a warp: the 32-byte sectors it moves and the bytes in them that lanes asked for
    copies      | one cp.async of a warp: where its sectors go in shared memory, and which are fetched twice
    banks       | one shared request of a warp, for each kind of it: the banks, wavefront by wavefront
    rhythm      | the order of a warp's memory requests

In a notebook: common/figures/accesses.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import terminal
from common.figures import accesses, layout
from common.figures.accesses import FIGURES
from common.results import plot
from common.stage import Stage
from common.verbs import options
from cudaemu.errors import UserError, pick

EXAMPLES = ("threads --block 1", "banks --warp 1 --dtype {dtype} --output figures", "rhythm --output mine.svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "figure", nargs="?", metavar="FIGURE", help=f"one of {', '.join(FIGURES)} (default: all that apply)"
    )
    parser.add_argument("--tensor", metavar="NAME", help="only figures of this tensor")
    parser.add_argument(
        "--block", type=int, default=0, metavar="N", help="which block of the grid (default: %(default)s)"
    )
    parser.add_argument(
        "--warp", type=int, default=0, metavar="N", help="which warp of the block (default: %(default)s)"
    )
    parser.add_argument(
        "--lane", type=int, default=0, metavar="N", help="the lane to mark where one is (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("figures"),
        metavar="PATH",
        help="a directory, or a file ending in .png or .svg (default: %(default)s)",
    )
    parser.add_argument("--svg", action="store_true", help="in a directory: write .svg instead of .png")
    options.add_kernel(parser)
    options.add_sizes(parser)
    options.add_seed(parser)


def run(stage: Stage, args: argparse.Namespace) -> int:
    names = FIGURES if args.figure is None else (pick(args.figure, FIGURES, "figure", "show"),)
    kernel = options.kernel(stage, args)
    default = stage.spec.figure_shape(kernel.multiples, kernel.variants)
    shapes = options.shapes(kernel, args, [default], "emulator")
    if len(shapes) > 1:
        raise UserError("--sizes must be one size for show")
    if not 0 <= args.lane < layout.WARP:
        raise UserError(f"--lane must be from 0 to {layout.WARP - 1}, got {args.lane}")
    for name, number in (("block", args.block), ("warp", args.warp)):
        if number not in range(1 << 31):
            raise UserError(f"--{name} must be a whole number from 0 on, got {number}")
    one_file = args.output.suffix in (".png", ".svg")
    if not one_file and args.output.suffix.lower() in plot.SUFFIXES:
        raise UserError(f"--output must be a folder, or a file that ends in .png or .svg, got {args.output}")
    with terminal.progress(f"{kernel.label}: running block {args.block} in the emulator"):
        traced = accesses.run(kernel, shapes[0], block=args.block, seed=args.seed)
    drawn = 0
    prefix = kernel.label.split(" (")[0].replace(" ", "-")
    with terminal.progress("drawing") as update:
        for stem, picture in traced.all(names, args.tensor, args.warp, args.lane):
            update(f"drawing {stem}")
            drawn += 1
            if one_file and drawn > 1:
                raise UserError(
                    f"there are several such figures: name one, with --tensor if need be, or a directory "
                    f"instead of {args.output}"
                )
            path = args.output if one_file else args.output / f"{prefix}-{stem}.{'svg' if args.svg else 'png'}"
            terminal.out.print(str(plot.save(picture, path)), markup=False, soft_wrap=True)
    if not drawn:
        raise UserError(
            f"{kernel.label} has nothing to draw for '{args.figure}'"
            + (f" of {args.tensor}" if args.tensor else "")
            + (f" in warp {args.warp} of block {args.block}" if args.warp or args.block else "")
        )
    return 0
