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

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        toolchain.run([*pip, "--target", folder, f"cuda-toolkit[nvcc,cccl]=={release}.*"])

    try:
        folder = cache.get("nvcc", ["pip", release], install)
    except UserError as error:
        if re.search(r"NewConnectionError|Max retries|Temporary failure|Network is unreachable|Connection", str(error)):
            pytest.skip(f"no network to install nvcc {release} from pip: {str(error).splitlines()[-1]}")
        raise
    (nvcc,) = folder.glob("nvidia/cu*/bin/nvcc")
    return nvcc.parents[1]
