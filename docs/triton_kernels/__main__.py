"""Public Triton kernels in the emulator, unchanged, each compared with torch on the CPU.

pip install triton liger-kernel fla-core
python -m docs.triton_kernels                   # all that is installed: a table
python -m docs.triton_kernels liger --only rope # one package, one kernel
python -m docs.triton_kernels --path mamba=FOLDER --path vllm=FOLDER ...   # checkouts, or unpacked wheels

A case is a function that yields pairs: what the kernel gave, what torch gives. It passes if all agree (the error's norm
over that of torch's result is at most the case's tolerance) and the sanitizer found nothing.

Where the kernels come from, ORIGINS says; nothing of it is in this repository. Packages of pip: `pip install`, or, of
those that need fifty others, `pip download --no-deps` and the wheel unpacked.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from docs.triton_kernels.cases import CASES, FOLDERS, Case, NotHere

os.environ.setdefault("FLA_TILELANG", "0")
TABLE = Path(__file__).resolve().parents[1] / "triton.md"
ORIGINS = {  # package or repository@commit, path
    "liger": "liger-kernel 0.8.5",
    "fla": "fla-core 0.6.0",
    "tutorials": "tutorials: triton-lang/triton-cpu@910ba2e9, python/tutorials",
    "gluon": "Gluon: intel/intel-xpu-backend-for-triton@6c164993, python/tutorials/gluon",
    "flash-attention": "Dao-AILab/flash-attention@0251105a, flash_attn/ops/triton",
    "unsloth": "unslothai/unsloth@015bdef0, unsloth/kernels",
    "xformers": "facebookresearch/xformers@ca6d2aa0, xformers/ops/_triton",
    "stk": "stanford-futuredata/stk@73631376 (MegaBlocks), stk/backend/triton_kernels.py",
    "cut-cross-entropy": "cut-cross-entropy 25.1.1",
    "mamba": "state-spaces/mamba@e9594ce1, mamba_ssm/ops/triton",
    "vllm": "vllm 0.33.0",
    "sglang": "sglang 0.5.23, sglang/kernels/ops",
    "deepseek": "deepseek-ai/DeepSeek-V3@9b4e9788, inference/kernel.py",
    "torchao": "torchao 0.18.0",
    "bitsandbytes": "bitsandbytes 0.50.2, backends/triton",
    "flaggems": "flag-gems 5.0.2",
}
MODULES = ("liger", "fla", "tutorials", "gluon", "training", "mamba", "serving", "quantized", "flaggems")


def run(each: Case) -> tuple[float, str]:
    """The largest error, and what is wrong with the case; nothing if it passes."""
    import cudaemu

    error, told = 0.0, ""
    try:
        for got, expected in each.run():
            got, expected = got.detach().double(), expected.detach().double()
            error = max(error, float((got - expected).norm() / expected.norm().clamp(min=1e-30)))
            if got.shape != expected.shape or not torch.isfinite(got).all():
                error = float("inf")
    except NotHere:
        raise
    except (Exception, cudaemu.CheckFailed) as problem:
        told = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        if os.environ.get("VERBOSE"):
            traceback.print_exc()
    if not told and not error <= each.tolerance:
        told = "differs"
    return error, told


@dataclass
class Result:
    name: str
    launches: int
    error: float
    told: str  # what is wrong
    known: bool  # the sanitizer found what the case says is the kernel's own fault


def result_of(each: Case) -> Result:
    import cudaemu.triton as device

    device.reports.clear()
    torch.manual_seed(0)
    error, told = run(each)
    found = device.report().findings
    left = [one for one in found if not each.fault or each.fault not in str(one)]
    if left:
        told += f" {len(left)} findings"
        if os.environ.get("VERBOSE"):
            print(*left, sep="\n")
    return Result(each.name, len(device.reports), error, told.strip(), len(left) < len(found))


def row(package: str, results: Sequence[Result]) -> str:
    """Of the table in docs/triton.md."""
    right = [each for each in results if not each.told]
    names = ", ".join(f"{each.name}{' (a fault of its own is found)' * each.known}" for each in right)
    wrong = "".join(f"; {each.name}: {each.told}" for each in results if each.told)
    launches, error = sum(each.launches for each in results), max(each.error for each in right)
    return f"| {ORIGINS[package]} | {len(right)} of {len(results)}: {names}{wrong} | {launches} | {error:.0e} |"


def write(rows: Mapping[str, str]) -> None:
    """Put rows into the table, each in place of the earlier one of its package."""
    text = TABLE.read_text(encoding="utf-8")
    for package, made in rows.items():
        origin = ORIGINS[package].partition(" ")[0]
        lines = text.splitlines(keepends=True)
        at = [n for n, line in enumerate(lines) if line.startswith(f"| {origin} ")]
        head = next(n for n, line in enumerate(lines) if line.startswith("| package |"))
        end = next(n for n in range(head, len(lines)) if not lines[n].startswith("|"))
        if at:
            lines[at[0]] = f"{made}\n"
        else:
            lines.insert(end, f"{made}\n")
        text = "".join(lines)
    TABLE.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help="default: all")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--path", action="append", default=[], metavar="NAME=FOLDER", help="a checkout")
    parser.add_argument("--arch", default="9.0")
    parser.add_argument("--write", action="store_true", help="put the results into the table of docs/triton.md")
    args = parser.parse_args()
    FOLDERS.update({name: Path(where) for name, _, where in (each.partition("=") for each in args.path)})
    import cudaemu.triton as device

    device.use(arch=args.arch)
    for module in MODULES:
        importlib.import_module(f"docs.triton_kernels.{module}")
    results: dict[str, list[Result]] = {}
    for each in CASES:
        if (args.packages and each.package not in args.packages) or args.only not in each.name:
            continue
        start = time.process_time()
        try:
            made = result_of(each)
        except NotHere:
            continue
        results.setdefault(each.package, []).append(made)
        seconds = time.process_time() - start
        said = made.told or "right" + "; a fault of its own is found" * made.known
        print(
            f"| {each.package} | {each.name} | {made.launches} | {made.error:.0e} | {seconds:.0f} s | {said} |",
            flush=True,
        )
    if args.write:
        write({package: row(package, made) for package, made in results.items()})
    return sum(bool(one.told) for made in results.values() for one in made)


if __name__ == "__main__":
    sys.exit(main())
