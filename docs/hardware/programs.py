"""A program compiled for a GPU: the examples, the probes of this folder, the broken kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cudaemu.compiler import toolchain
from cudaemu.hardware import Arch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.cu"))


def needed(example: Path) -> str:
    """The compute capability that an example needs: its first lines say it, if it is more than 8.0."""
    said = re.search(r"Needs compute capability (\d+\.\d+a?)", example.read_text())
    return said[1] if said else "8.0"


def executable(source: Path, out: Path, arch: str, default: str = "native", flags: Sequence[str] = ()) -> Path:
    """Compile a program to `out`: for compute capability `arch` if only exactly that will do ("9.0a"), for nvcc's
    -arch=`default` otherwise. ToolFailed, with what nvcc said, if it refuses the source."""
    nvcc, exact = toolchain.find_nvcc(), Arch.of(arch)
    gpu = f"-gencode=arch=compute_{exact.nvcc},code=sm_{exact.nvcc}" if exact.exact else f"-arch={default}"
    link = [f"-L{nvcc.lib}", f"-Xlinker=-rpath={nvcc.lib}"]
    toolchain.run([nvcc.path, "-ccbin", toolchain.find_cxx(), "-std=c++17", *flags, gpu, source, *link, "-o", out])
    return out
