"""Another release of CUDA's compilers than the environment's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError


def from_pip(release: str) -> Path:
    """The toolkit of a release, "13.0", installed into the cache once. Without a network the test is skipped."""
    (nvcc,) = _installed(f"cuda-toolkit[nvcc,cccl]=={release}.*").glob("nvidia/cu*/bin/nvcc")
    return nvcc.parents[1]


def headers_from_pip(cuda: str) -> Path:
    """Where pip puts the headers of an older CUDA, "12": a folder named nvidia. Installed once, too."""
    return _installed(f"nvidia-cuda-runtime-cu{cuda}", f"nvidia-cuda-cccl-cu{cuda}") / "nvidia"


def _installed(*packages: str) -> Path:
    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        toolchain.run([*pip, "--target", folder, *packages])

    try:
        return cache.get("nvcc", ["pip", *packages], install)
    except UserError as error:
        if re.search(r"NewConnectionError|Max retries|Temporary failure|Network is unreachable|Connection", str(error)):
            pytest.skip(f"no network to install {packages[0]} from pip: {str(error).splitlines()[-1]}")
        raise
