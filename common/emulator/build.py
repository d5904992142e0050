"""A kernel source compiled for the emulator: its host code against the stand-in runtime, its device code as PTX."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.compiler import toolchain
from common.errors import UserError

RUNTIME = Path(__file__).with_name("runtime.cpp")


@dataclass(frozen=True)
class Build:
    """A kernel source compiled for the emulator: the host code as a shared object, the device code as PTX."""

    so: Path
    ptx: str


def compile_host(
    source: Path, defines: Mapping[str, str] | None = None, arch: str = "80", nvcc: toolchain.Nvcc | None = None
) -> Build:
    """Compile a kernel for the emulator: its host code, linked to the stand-in runtime, and its PTX for compute_`arch`.

    UserError with the compiler's own message if it does not compile."""
    nvcc, cxx, source = nvcc or toolchain.find_nvcc(), toolchain.find_cxx(), source.resolve()
    flags = ["-O3", "-lineinfo", "-std=c++17", *toolchain.define_flags(defines)]
    flags += ["-gencode", f"arch=compute_{arch},code=compute_{arch}", "-shared", "-Xcompiler", "-fPIC", "--cudart=none"]
    runtime = toolchain.compile_cxx(RUNTIME, ["-c", "-O1", "-std=c++17", "-fPIC", f"-I{nvcc.include}"], "runtime.o")

    def build(out: Path) -> None:
        # The stand-in's symbols stay inside: a process may well have the real runtime loaded.
        (out / "hide").write_text("{ local: cuda*; __cuda*; };\n")
        keep = ["--keep", "--keep-dir", out]
        link = [runtime, "-Xlinker", f"--version-script={out / 'hide'},-z,defs"]
        try:
            toolchain.run([nvcc.path, "-ccbin", cxx, *flags, *keep, source, *link, "-o", out / "kernel.so"])
        except UserError as error:
            if missing := sorted(set(re.findall(r"undefined reference to `(\w+)'", str(error)))):
                raise UserError(f"{source} calls {', '.join(missing)}, which the emulator does not have") from error
            raise
        (ptx,) = out.glob("*.ptx")
        ptx.rename(out / "kernel.ptx")
        for path in out.iterdir():
            if path.name not in ("kernel.so", "kernel.ptx"):
                path.unlink()

    out = toolchain.cached("kernel", [source, *toolchain.source_texts(source), nvcc.path, nvcc.release, runtime, *flags], build)
    return Build(out / "kernel.so", (out / "kernel.ptx").read_text())


