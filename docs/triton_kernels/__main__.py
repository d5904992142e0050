"""Public Triton kernels in the emulator, unchanged, each compared with torch on the CPU.

pip install triton liger-kernel fla-core
python -m docs.triton_kernels                   # all that is installed: a table
python -m docs.triton_kernels liger --only rope # one package, one kernel
python -m docs.triton_kernels --path mamba=FOLDER --path vllm=FOLDER ...   # checkouts, or unpacked wheels

A case is a function that yields pairs: what the kernel gave, what torch gives. It passes if all agree (the error's norm
over that of torch's result is at most the case's tolerance) and the sanitizer found nothing.

Where the kernels come from (--path; nothing of it is in this repository):

tutorials          triton-lang/triton-cpu@910ba2e9, python/tutorials: Triton's own
gluon              intel/intel-xpu-backend-for-triton@6c164993, python/tutorials/gluon: Triton's own
flash-attention    Dao-AILab/flash-attention@0251105a, flash_attn/flash_attn_triton.py and flash_attn/ops/triton/
mamba              state-spaces/mamba@e9594ce1, mamba_ssm/ops/triton/
vllm               pip download --no-deps vllm (0.33.0), the wheel unpacked: its *.py
sglang             pip download --no-deps sglang (0.5.23), the same
deepseek           deepseek-ai/DeepSeek-V3@9b4e9788, inference/kernel.py
stk                stanford-futuredata/stk@73631376, stk/backend/triton_kernels.py, MegaBlocks' products
xformers           facebookresearch/xformers@ca6d2aa0, xformers/ops/_triton/
torchao            pip download --no-deps torchao (0.18.0)
bitsandbytes       pip download --no-deps bitsandbytes (0.50.2), bitsandbytes/backends/triton/
unsloth            unslothai/unsloth@015bdef0, unsloth/kernels/
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from pathlib import Path

import torch

from docs.triton_kernels.cases import CASES, FOLDERS, Case, NotHere

os.environ.setdefault("FLA_TILELANG", "0")
MODULES = ("liger", "fla", "tutorials", "gluon", "training", "mamba", "serving", "quantized")


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help="default: all")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--path", action="append", default=[], metavar="NAME=FOLDER", help="a checkout")
    parser.add_argument("--arch", default="9.0")
    args = parser.parse_args()
    FOLDERS.update({name: Path(where) for name, _, where in (each.partition("=") for each in args.path)})
    import cudaemu.triton as device

    device.use(arch=args.arch)
    for module in MODULES:
        importlib.import_module(f"docs.triton_kernels.{module}")
    failures = 0
    for each in CASES:
        if (args.packages and each.package not in args.packages) or args.only not in each.name:
            continue
        device.reports.clear()
        torch.manual_seed(0)
        start = time.process_time()
        try:
            error, told = run(each)
        except NotHere:
            continue
        found = [one for one in device.report().findings if not each.fault or each.fault not in str(one)]
        known = len(device.report().findings) - len(found)
        if found:
            told += f" {len(found)} findings"
            if os.environ.get("VERBOSE"):
                print(*found, sep="\n")
        failures += bool(told)
        fault = "; a fault of its own is found" if known else ""
        seconds = time.process_time() - start
        print(
            f"| {each.package} | {each.name} | {len(device.reports)} | {error:.0e} | {seconds:.0f} s "
            f"| {told.strip() or 'right' + fault} |",
            flush=True,
        )
    return failures


if __name__ == "__main__":
    sys.exit(main())
