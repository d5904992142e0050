"""Sources of the tests, as files that stay: what is compiled from them is found in the cache the next time."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cudaemu.compiler import cache

if TYPE_CHECKING:
    from docs.hardware.suite import Broken

HARDWARE = Path(__file__).parents[2] / "docs" / "hardware"  # what a GPU said, and the programs that asked


def source(text: str, name: str, suffix: str = ".cu") -> Path:
    """A file NAME.cu with this text, in a folder of the cache that is named by the text's hash: the same text under the
    same name is the same file, and is compiled once."""
    folder = cache.folder() / "tests" / hashlib.sha256(text.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}{suffix}"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    return path


def broken_source(broken: Broken) -> Path:
    """The text of a broken kernel, under the name of the kernel before: an exercise's beginning is the same file."""
    return source(broken.text, Path(broken.source).stem)


def launchers(text: str) -> list[str]:
    """The names of what LAUNCHER(name) and launch_name define in a source."""
    found = re.findall(r"(?:\bLAUNCHER\(|cudaError_t launch_)(\w+)", text)
    return [name for name in dict.fromkeys(found) if name != "name"]  # "name": of the macro


def with_one_launcher(text: str) -> str:
    """A source with one more launcher, `launch_number`: it takes another's place among `launchers`, and its arguments.

    A source is compiled anew for each launcher that is called, so that tests of many kernels call this one."""
    parameters = re.search(r"launch_##name\(([^)]*)\)", text)[1]
    passed = ", ".join(re.findall(r"\w+(?=,|$)", parameters))
    cases = "".join(f"    case {n}: return launch_{name}({passed});\n" for n, name in enumerate(launchers(text)))
    return f"""{text}
extern "C" cudaError_t launch_number(int number, {parameters}) {{
  switch (number) {{
{cases}  }}
  return cudaErrorInvalidValue;
}}
"""
