"""What a kernel executes and moves, as the emulator counts it: derived figures, and how counters change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.stage import Kernel
from cudaemu.units import TENSOR_UNITS

if TYPE_CHECKING:
    from cudaemu import Report

Counts = Mapping[str, int]

SECTOR = 32  # bytes
TENSOR_INSTRUCTIONS = tuple(f"instructions.{unit.category}" for unit in TENSOR_UNITS)


def _ratio(above: str, *below: str) -> Callable[[Counts], float | None]:
    """above / (sum of below), None if that sum is 0."""

    def value(counts: Counts) -> float | None:
        total = sum(counts.get(name, 0) for name in below)
        return counts.get(above, 0) / total if total else None

    return value


def _global_bytes(counts: Counts) -> int:
    sectors = ("global_load_sectors", "global_store_sectors", "cp_async_sectors")
    return SECTOR * sum(counts.get(name, 0) for name in sectors)


# What people read from counters: name -> (value, its meaning)
DERIVED: dict[str, tuple[Callable[[Counts], float | None], str]] = {
    "sectors per global load": (
        _ratio("global_load_sectors", "global_load_requests"),
        "32 lanes that read 2, 4, 16 bytes side by side touch 2, 4, 16",
    ),
    "sectors per global store": (_ratio("global_store_sectors", "global_store_requests"), "likewise"),
    "sectors per cp.async": (
        _ratio("cp_async_sectors", "cp_async_requests"),
        "16 with 16 bytes per lane; more if halves of a sector part",
    ),
    "wavefronts per shared load": (
        _ratio("shared_load_wavefronts", "shared_load_requests"),
        "one per 128 bytes without conflicts: ldmatrix.x4 4",
    ),
    "wavefronts per shared store": (_ratio("shared_store_wavefronts", "shared_store_requests"), "likewise"),
    "conflicts per shared load": (_ratio("shared_load_conflicts", "shared_load_requests"), "0 is best"),
    "conflicts per shared store": (_ratio("shared_store_conflicts", "shared_store_requests"), "0 is best"),
    "shared loads per FMA": (_ratio("shared_load_requests", "instructions.fma"), "per warp instruction"),
    "shared loads per tensor instruction": (
        _ratio("shared_load_requests", *TENSOR_INSTRUCTIONS),
        "per warp instruction",
    ),
    "global bytes moved": (_global_bytes, "32 per sector, loads and stores, before any cache"),
}


def derive(counts: Counts) -> dict[str, float]:
    """The derived figures that these counters give."""
    values = {name: value(counts) for name, (value, _) in DERIVED.items()}
    if any(counts.get(name, 0) for name in TENSOR_INSTRUCTIONS):
        values["shared loads per FMA"] = None
    return {name: value for name, value in values.items() if value is not None}


def emulate(kernel: Kernel, shape: Sequence[int], seed: int = 0, **options: Any) -> Report:
    """Run `kernel` in the emulator on random inputs with counters and sanitizer; CheckFailed if it finds something."""
    kernel.check_shape(*shape)
    spec = kernel.stage.spec
    inputs = spec.inputs(tuple(shape), kernel.dtype, kernel.variants, seed=seed)
    outputs = spec.outputs(tuple(shape), kernel.dtype, kernel.variants)
    report = kernel.emulate(inputs, outputs, **options)
    report.raise_if_findings()
    return report


def number(value: float | None) -> str:
    """1234567 -> "1,234,567"; 2.5 -> "2.5"; None -> "–"."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def change(before: float | None, after: float | None) -> str:
    """How a counter moved: "÷ 32", "× 1.5", "=", "→ 0", "new"."""
    if before is None or after is None or (before == 0 and after == 0):
        return ""
    if before == after:
        return "="
    if before == 0:
        return "new"
    if after == 0:
        return "→ 0"
    return f"× {after / before:.3g}" if after > before else f"÷ {before / after:.3g}"


def rows(counts: Sequence[Counts], about: Sequence[str] = ()) -> list[tuple[str, list[float | None], bool]]:
    """(name, value per column, whether the stage is about it): counters, then derived figures; no all-zero rows."""
    names = sorted(dict.fromkeys(name for column in counts for name in column), key=_order)
    derived = [derive(column) for column in counts]
    table: list[tuple[str, list[float | None], bool]] = []
    for name in names:
        table.append((name, [column.get(name, 0) for column in counts], name in about))
    for name in DERIVED:
        table.append((name, [column.get(name) for column in derived], False))
    return [row for row in table if any(row[1])]


def _order(name: str) -> tuple[bool, str]:
    """Sorts instructions, by kind, before all else, which keeps its order."""
    counts_instructions = name.startswith("instructions")
    return not counts_instructions, name if counts_instructions else ""


# Names for a column that is narrow.
SHORT = {
    "global_load_requests": "global loads",
    "global_load_sectors": "load sectors",
    "global_load_bytes": "bytes loaded",
    "global_store_requests": "global stores",
    "global_store_sectors": "store sectors",
    "shared_load_requests": "shared loads",
    "shared_load_wavefronts": "wavefronts",
    "shared_load_conflicts": "bank conflicts",
    "shared_store_requests": "shared stores",
    "shared_store_wavefronts": "store wavefr.",
    "cp_async_sectors": "copied sectors",
    "bulk_load_bytes": "TMA bytes",
    "instructions": "instructions",
    **{name: name.removeprefix("instructions.") for name in TENSOR_INSTRUCTIONS},
    "tensor_flops": "tensor FLOP",
    "instructions.fma": "FMA",
    "instructions.ldmatrix": "ldmatrix",
    "instructions.cp.async": "cp.async",
    "instructions.shuffle": "shuffles",
    "instructions.barrier": "barriers",
    "instructions.integer": "integer",
    "instructions.float": "float",
    "instructions.load.global": "global loads",
    "instructions.store.shared": "shared stores",
}


def short(value: int) -> str:
    """1234567 -> "1.23M", 65536 -> "65.5k", 12 -> "12"."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return str(value)
