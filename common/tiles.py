"""Which tile shapes of a stage are best on which GPU: what `tune` measured, here or for the recorded tiles.json.

A stage whose best tiles depend on the GPU has a file tiles.json beside its kernel.cu:
    macros     the macros that `tune` tries
    shapes     the sizes at which it does; without them, those of the problem
    measured   {compute capability: {"gpu", "capability", "date", "choices": {settings: {macro: value}}}}
What `tune` finds on a reader's own GPU is kept in the cache, by the GPU's name, and has precedence as long as kernel.cu
is unchanged. Where nothing is known, the source's defaults apply.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudaemu.compiler import cache
from cudaemu.errors import UserError

if TYPE_CHECKING:
    import torch

    from common.stage import Stage

Choice = dict[str, int]  # macro -> value


def path(stage: Stage) -> Path:
    """The stage's recorded table; a stage that has none has no tiles to choose."""
    return stage.directory / "tiles.json"


def macros(stage: Stage) -> list[str]:
    """The macros of the stage that say how large its tiles are; [] if it has no table."""
    names: list[str] = _read(path(stage)).get("macros", [])
    return names


def shapes(stage: Stage) -> list[str]:
    """The sizes at which `tune` measures this stage; [] if the table leaves that to the problem."""
    names: list[str] = _read(path(stage)).get("shapes", [])
    return names


def key(settings: Mapping[str, int]) -> str:
    """Settings as the tables name them: "HEAD_DIM=64 CAUSAL=1"."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


def choice(stage: Stage, settings: Mapping[str, int], device: torch.device | None = None) -> Choice:
    """The best values of the stage's tile macros on a GPU (default: the current one); {}: the source's defaults."""
    import torch

    from common import gpu

    tuned = _read(tuned_path(stage)).get(torch.cuda.get_device_name(device), {})
    recorded = _read(path(stage)).get("measured", {}).get(str(gpu.capability(device)), {})
    for table in (tuned, recorded):
        if key(settings) in table.get("choices", {}):
            return dict(table["choices"][key(settings)])
    return {}


def tuned_path(stage: Stage) -> Path:
    """What `tune` found on this machine's GPUs with the kernel.cu as it is now."""
    digest = hashlib.sha256(stage.source.read_bytes()).hexdigest()[:12]
    return cache.folder() / f"tiles-{stage.name}-{digest}.json"


def save(stage: Stage, entry: Mapping[str, Any], *, record: bool = False) -> Path:
    """Put one GPU's table into the user's cache or, `record`, into the stage's own file; the path of the file.

    It is replaced atomically: concurrent readers find the old one."""
    if record:
        file, table = path(stage), _read(path(stage))
        table = {**table, "measured": {**table["measured"], entry["capability"]: entry}}
    else:
        file = tuned_path(stage)
        table = {**_read(file), entry["gpu"]: entry}
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".tiles-")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(json.dumps(table, indent=2) + "\n")
    os.replace(temporary, file)
    _read.cache_clear()
    return file


@lru_cache
def _read(file: Path) -> dict[str, Any]:
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{file} must be a table of tiles, got {error}; delete it") from None
    return table if isinstance(table, dict) else {}
