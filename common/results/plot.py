"""The ladder as a figure: lines of TFLOP/s over size, one per contender, with the measured limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError
from common.results.runs import Record, sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")  # what a plot can be saved as


def plot(records: Sequence[Record], title: str) -> Figure:
    """TFLOP/s over size with the band from the 20th to the 80th percentile; limits dashed, peers dotted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    place = {name: x for x, name in enumerate(sizes(list(records)))}
    lines: dict[str, list[Record]] = {}
    several = len({record.row["dtype"] for record in records}) > 1
    for record in records:
        row = record.row
        label = row["name"] if row["role"] == "peer" or row.get("default") else row["label"]
        lines.setdefault(f"{label} {row['dtype']}" if several else label, []).append(record)
    for label, points in lines.items():
        points.sort(key=lambda r: place[r.row["size"]])
        x, rows = [place[p.row["size"]] for p in points], [p.row for p in points]
        style: dict[str, Any] = {"linestyle": ":", "color": "black"} if rows[0]["role"] == "peer" else {}
        (line,) = axes.plot(x, [row["tflops"] for row in rows], marker="o", label=label, **style)
        slow, fast = ([row["tflops"] * row["ms"]["median"] / row["ms"][p] for row in rows] for p in ("p80", "p20"))
        axes.fill_between(x, slow, fast, color=line.get_color(), alpha=0.2, linewidth=0)
    limits = {record.row["limit"]: record.limit for record in records if record.limit}
    for limit in limits.values():
        axes.axhline(limit["tflops"], linestyle="--", color="gray", linewidth=1)
        text = f"{limit['name']}: {limit['tflops']:.0f}"
        axes.annotate(text, (0, limit["tflops"]), fontsize=8, color="gray", va="bottom")
    axes.set_xticks(range(len(place)), list(place))
    axes.set(xlabel="size", ylabel="TFLOP/s", title=title)
    speeds = [record.row["tflops"] for record in records]
    if max(speeds) > 20 * min(speeds):  # a whole ladder
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(axis="y", which="both", alpha=0.25)
    else:
        axes.set_ylim(0)
    axes.legend(fontsize=8)
    return figure


def save(figure: Figure, path: Path | str, digest: str | None = None) -> Path:
    """Write a figure as the suffix says (.png, .svg, .pdf); the same figure gives the same .svg.

    UserError for another suffix, or where the file cannot be written."""
    import matplotlib

    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"cannot draw {path}: the name must end in {', '.join(SUFFIXES)}")
    extra = {"metadata": {"Date": None, "Description": digest}} if path.suffix == ".svg" else {"dpi": 150}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "gpu-kernels-course"}):
            figure.savefig(path, **extra)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path
