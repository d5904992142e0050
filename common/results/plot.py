"""Recorded runs as figures: the ladder, TFLOP/s over size, and the roofline, TFLOP/s over FLOP per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.results.bound import DEVICE_MEMORY, L2, LINE, SHARED, Bound, Need, rates
from common.results.runs import Record, sizes
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PEER_MARKERS = "s^Dv"
SUFFIXES = (".png", ".svg", ".pdf")  # what a plot can be saved as


def plot(records: Sequence[Record], title: str) -> Figure:
    """TFLOP/s over size with the band from the 20th to the 80th percentile; limits dashed, peers dotted."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    place = {name: x for x, name in enumerate(sizes(list(records)))}
    lines: dict[str, list[Record]] = {}
    several = len({record.row["dtype"] for record in records}) > 1
    for record in records:
        row = record.row
        label = row["name"] if row["role"] == "peer" or row.get("default") else row["label"]
        lines.setdefault(f"{label} {row['dtype']}" if several else label, []).append(record)
    peers = 0
    own = [label for label, points in lines.items() if points[0].row["role"] != "peer"]
    colours = dict(zip(own, colormaps["turbo"]([(i + 0.5) / len(own) for i in range(len(own))])))
    for label, points in lines.items():
        points.sort(key=lambda r: place[r.row["size"]])
        x, rows = [place[p.row["size"]] for p in points], [p.row for p in points]
        style: dict[str, Any] = {"marker": "o", "color": colours.get(label)}
        if rows[0]["role"] == "peer":
            style = {"linestyle": ":", "color": "black", "marker": PEER_MARKERS[peers % len(PEER_MARKERS)]}
            peers += 1
        (line,) = axes.plot(x, [row["tflops"] for row in rows], label=label, **style)
        slow, fast = ([row["tflops"] * row["ms"]["median"] / row["ms"][p] for row in rows] for p in ("p80", "p20"))
        axes.fill_between(x, slow, fast, color=line.get_color(), alpha=0.2, linewidth=0)
    limits = {record.row["limit"]: record.limit for record in records if record.limit}
    for limit in limits.values():
        axes.axhline(limit["tflops"], linestyle="--", color="gray", linewidth=1)
        text = f"{limit['name']}: {limit['tflops']:.0f} at the highest clock"
        axes.annotate(text, (0, limit["tflops"]), fontsize=8, color="gray", va="bottom")
    axes.set_xticks(range(len(place)), list(place))
    axes.set(xlabel="size", ylabel="TFLOP/s", title=title)
    speeds = [record.row["tflops"] for record in records]
    if max(speeds) > 20 * min(speeds):  # a whole ladder
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="y", which="both", alpha=0.25)
    else:
        axes.set_ylim(0)
    figure.legend(loc="outside right center", fontsize=8, frameon=False, reverse=True)
    return figure


def roofline(bounds: Sequence[Bound], title: str) -> Figure:
    """Measured TFLOP/s of kernels of one GPU over FLOP per byte, and what is attainable.

    A kernel has a point per level of memory, for the bytes that ncu counted there: each must lie below that level's
    slope, and the one that lies next to its slope is the level that binds."""
    from common.figures.draw import GRID, HUES, INK, picture, styled

    ceilings = bounds[0].ceilings
    clocks = ceilings["sms"] * ceilings["highest_mhz"] * 1e6  # of all SMs together, per second
    flat = {
        row["name"]: row["per_clock"]["value"] * clocks / 1e12
        for key, row in rates(ceilings).items()
        if key in {bound.record.row["limit"] for bound in bounds} and "per_clock" in row
    }
    levels = {SHARED: "o", L2: "s", DEVICE_MEMORY: "^"}
    with styled():
        figure = picture(10, 5.2, title)
        axes = figure.subplots()
        slopes: dict[str, float] = {}  # bytes per second
        places: list[list[tuple[float, float]]] = []
        labels: list[tuple[float, float, list[str]]] = []
        for bound in bounds:
            row = bound.record.row
            flop, speed = row["tflops"] * row["ms"]["median"] * 1e9, row["tflops"]
            points = []
            for hue, (level, marker) in enumerate(levels.items()):
                need = next((each for each in bound.needs if each.resource == level), None)
                if need is None:
                    continue
                slopes[level] = need.rate if need.per_second else need.rate * LINE * clocks
                points.append((flop / _bytes(need, bound), speed))
                axes.plot(*points[-1], marker, color=HUES[hue], markeredgecolor=INK, markeredgewidth=0.5, zorder=3)
            points.sort()
            axes.plot(*zip(*points), color=GRID, zorder=1)
            places.append(points)
            x = points[0][0]
            same = (one for one in labels if max(abs(math.log(x / one[0])), abs(math.log(speed / one[1]))) < 0.1)
            near = next(same, None)  # marks that lie upon each other share a label
            if near:
                labels.remove(near)
            left_most, _, numbers = near or (x, speed, [])
            labels.append((min(x, left_most), speed, [*numbers, row["name"].partition("_")[0]]))
        for x, y, numbers in labels:
            style: dict[str, Any] = {"xytext": (-6, 0), "textcoords": "offset points", "ha": "right", "va": "center"}
            axes.annotate(", ".join(numbers), (x, y), **style)
        left = min(x for points in places for x, _ in points) / 3
        right = max(x for points in places for x, _ in points) * 3
        top = max(flat.values(), default=max(bound.record.row["tflops"] for bound in bounds))
        for level, rate in slopes.items():
            end = top * 1e12 / rate  # the ridge
            label = f"{level}: {rate / 1e12:.3g} TB/s, ridge {end:.0f} FLOP/byte"
            xs = [left, min(end, right)]
            axes.plot(
                xs, [x * rate / 1e12 for x in xs], color=HUES[list(levels).index(level)], linewidth=2, label=label
            )
        for name, value in flat.items():
            axes.axhline(value, color=INK, linewidth=1, linestyle="--")
            axes.annotate(f"{name}: {value:.0f}", (right, value), fontsize=8, va="bottom", ha="right")
        slow = min(bound.record.row["tflops"] for bound in bounds)
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(slow / 2, top * 2))
        axes.set(xlabel="FLOP per byte that the level delivers", ylabel="TFLOP/s")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.grid(color=GRID, linewidth=0.5, zorder=0)
        figure.legend(loc="outside lower left", ncols=3)
    return figure


def _bytes(need: Need, bound: Bound) -> float:
    """What a level delivered; of device memory as ncu counted it, for its need is each input and output once."""
    metrics = bound.profile.row["metrics"]
    if need.resource == DEVICE_MEMORY and "device memory read" in metrics:
        return float(metrics["device memory read"] + metrics["device memory written"])
    return need.count if need.unit == "byte" else need.count * LINE


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
