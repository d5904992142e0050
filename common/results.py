"""Recorded runs (docs/results/*.json) and everything generated from them.

A run is one JSON file: what was run, where and when, and one row per thing measured. README.md and docs/*.md hold
no figure of their own: between `<!-- results:NAME ARGUMENTS -->` and `<!-- /results -->` stands what this module
makes of the recorded runs.

    python -m common.results            write the tables and plots anew
    python -m common.results --check    exit status 1 if one of them is not what the recorded runs say

    results:ladder DTYPE [SIZE …]       TFLOP/s of every stage; step and share of the library at the last size
    results:stage STAGE [DTYPE …]       one stage at every size recorded, with its spread
    results:variants STAGE DTYPE [SIZE] one stage's variants side by side
    results:limits                      the measured ceilings
    results:profile STAGE [DTYPE]       the emulator's counters beside ncu's
    results:plot DTYPE [SIZE …]         the ladder as a figure (docs/results/ladder-DTYPE.svg)
    results:runs                        the runs themselves: file, GPU, software, date, command
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
SCHEMA = 1
KINDS = ("bench", "ceiling", "profile")
FIGURES = (".png", ".svg", ".pdf")  # what a plot can be saved as


# --- one run ---------------------------------------------------------------------------------------------------------


def metadata(kind: str) -> dict:
    """The head of a run: schema, kind, command, date, commit, machine and software. `rows` starts empty."""
    import torch

    gpu = driver = None
    if torch.cuda.is_available():
        from common import nvml

        gpu, driver = torch.cuda.get_device_name(), nvml.driver_version()
    commit, dirty = _commit()
    return {
        "schema": SCHEMA,
        "kind": kind,
        "command": _command(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "gpu": gpu,
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rows": [],
    }


def _command() -> str:
    """The command line as one would type it: `python -m kernels.03_thread_tile bench …`."""
    words = list(sys.orig_argv)
    return shlex.join(["python", *words[1:]]) if words else ""


def _commit() -> tuple[str, bool | None]:
    """(commit, whether tracked files differ from it); KERNELS_COMMIT stands in where the tree has no .git."""
    if given := os.environ.get("KERNELS_COMMIT"):
        return given.removesuffix("-dirty"), given.endswith("-dirty")
    try:
        git = ["git", "-C", str(ROOT)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True,
                                text=True, check=True).stdout
        return commit, bool(status.strip())
    except (OSError, subprocess.CalledProcessError):
        return "unknown", None


_HEAD = {"schema": int, "kind": str, "command": str, "date": str, "commit": str, "rows": list}
_ROW = {
    "bench": {"role": str, "name": str, "problem": str, "dtype": str, "shape": dict, "ms": dict,
              "tflops": (int, float)},
    "ceiling": {"name": str, "dtype": str, "operands": str, "tflops": (int, float), "ms": dict},
    "profile": {"name": str, "problem": str, "dtype": str, "shape": dict, "counters": dict, "metrics": dict},
}


def validate(run: object, where: str = "run") -> dict:
    """`run` itself if it has the schema's fields with their types; UserError naming the field otherwise."""

    def require(value: object, fields: dict, place: str) -> None:
        if not isinstance(value, dict):
            raise UserError(f"{where}: {place} is not a JSON object")
        for name, kind in fields.items():
            if name not in value:
                raise UserError(f"{where}: {place} lacks '{name}'")
            if not isinstance(value[name], kind) or isinstance(value[name], bool):
                raise UserError(f"{where}: {place}: '{name}' has the wrong type ({type(value[name]).__name__})")

    require(run, _HEAD, "the run")
    if run["schema"] != SCHEMA:
        raise UserError(f"{where}: schema {run['schema']}, this version reads {SCHEMA}")
    if run["kind"] not in KINDS:
        raise UserError(f"{where}: unknown kind '{run['kind']}', expected one of {', '.join(KINDS)}")
    try:
        datetime.fromisoformat(run["date"])
    except ValueError:
        raise UserError(f"{where}: '{run['date']}' is no ISO date") from None
    for index, row in enumerate(run["rows"]):
        require(row, _ROW[run["kind"]], f"row {index}")
        if "ms" in row:
            require(row["ms"], dict.fromkeys(("median", "p20", "p80", "n"), (int, float)), f"row {index}, ms")
    return run


def save(run: dict, path: Path | str) -> Path:
    """Write a validated run; UserError where the file cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(validate(run, str(path)), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


def load(path: Path | str) -> dict:
    """Read and validate one run; UserError names the file and what is wrong with it."""
    try:
        return validate(json.loads(Path(path).read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from None


# --- all recorded runs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One row and the run it stands in: ratios are only ever taken within a run."""

    run: dict
    row: dict

    @property
    def key(self) -> tuple:
        """Two records with the same key measure the same thing; the newer one counts."""
        row = self.row
        return (row["problem"], row["name"], row["dtype"], _items(row.get("variants")), _items(row["shape"]))

    def beside(self, **fields) -> Record | None:
        """The row of this run, at the same dtype and shape, that has these fields."""
        for row in self.run["rows"]:
            same = all(row.get(k) == self.row[k] for k in ("problem", "dtype", "shape"))
            if same and all(row.get(k) == v for k, v in fields.items()):
                return Record(self.run, row)
        return None

    def times(self, other: Record | None) -> float | None:
        """How many times as fast as `other` this is."""
        return other and self.row["tflops"] / other.row["tflops"]

    @property
    def previous(self) -> Record | None:
        """The stage before this one, with its default variants, in the same run."""
        return self.beside(name=self.row["previous"], default=True) if self.row.get("previous") else None

    @property
    def first(self) -> Record | None:
        """The first stage of the part, with its default variants, in the same run."""
        return self.beside(name=self.row["first"], default=True) if self.row.get("first") else None

    @property
    def peer(self) -> Record | None:
        """The library, in the same run: its fastest kernel where there are several."""
        peers = [Record(self.run, r) for r in self.run["rows"] if r["role"] == "peer"
                 and all(r.get(k) == self.row[k] for k in ("problem", "dtype", "shape"))]
        return max(peers, key=lambda p: p.row["tflops"], default=None)

    @property
    def limit(self) -> dict | None:
        """{"name", "tflops"} of the unit that does this row's arithmetic, as measured on that GPU."""
        return self.run.get("limits", {}).get(self.row.get("limit"))

    @property
    def source(self) -> str:
        """GPU and date: "NVIDIA H200, 2026-11-21"."""
        return f"{self.run['gpu']}, {self.run['date'][:10]}"


def _items(mapping: dict | None) -> tuple:
    return tuple(sorted((mapping or {}).items()))


def runs(directory: Path | None = None, kind: str | None = None) -> list[dict]:
    """Every run recorded in `directory` (default docs/results), newest first, with its file's name as "file"."""
    found = [load(path) | {"file": path.name} for path in sorted((directory or RESULTS).glob("*.json"))]
    return sorted((r for r in found if kind in (None, r["kind"])), key=lambda r: r["date"], reverse=True)


def recorded(directory: Path | None = None, kind: str = "bench", **fields) -> list[Record]:
    """The newest record of each thing measured whose row has these fields, in ladder order.

    Only the project's own kernels: rows of a reader's `--source` are left out. fields: name="03_thread_tile",
    dtype="fp16", default=True, …
    """
    newest: dict[tuple, Record] = {}
    for run in runs(directory, kind):
        for row in run["rows"]:
            if row.get("source") is None and all(row.get(k) == v for k, v in fields.items()):
                record = Record(run, row)
                known = newest.setdefault(record.key, record)
                comparison = known.row.get("role") in ("previous", "first") and row["role"] == "stage"
                same = kind == "bench" and row["role"] == known.row["role"]
                # Neither a comparison nor a quick run displaces one that was made for this and took its time.
                if comparison or (same and row["ms"]["n"] > 2 * known.row["ms"]["n"]):
                    newest[record.key] = record
    return sorted(newest.values(), key=lambda r: (r.row.get("number") or 0, r.row["name"], work(r.row["shape"])))


def work(shape: dict) -> int:
    """Product of a shape's axes, to sort sizes by."""
    product = 1
    for extent in shape.values():
        product *= int(extent)
    return product


def size_name(shape: dict) -> str:
    """{"M": 4096, "N": 4096, "K": 4096} -> "4096"; unequal axes -> "512×256×1024"."""
    extents = [str(v) for v in shape.values()]
    return extents[0] if len(set(extents)) == 1 else "×".join(extents)


def variants_name(variants: dict | None) -> str:
    """{"COALESCED": 0} -> "COALESCED=0"."""
    return " ".join(f"{k}={v}" for k, v in (variants or {}).items())


# --- figures ---------------------------------------------------------------------------------------------------------


def plot(rows: Sequence[dict], limits: dict, title: str):
    """Lines of TFLOP/s over size, one per contender, with its 20–80 % band; measured limits dashed. -> Figure"""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    sizes = sorted({size_name(r["shape"]): work(r["shape"]) for r in rows}.items(), key=lambda item: item[1])
    place = {name: x for x, (name, _) in enumerate(sizes)}
    lines: dict[str, list[dict]] = {}
    several = len({row["dtype"] for row in rows}) > 1
    for row in rows:
        label = row["label"]
        lines.setdefault(f"{label} {row['dtype']}" if several and row["role"] == "peer" else label, []).append(row)
    for label, points in lines.items():
        points.sort(key=lambda r: work(r["shape"]))
        x = [place[size_name(p["shape"])] for p in points]
        style = {"linestyle": ":", "color": "black"} if points[0]["role"] == "peer" else {}
        line, = axes.plot(x, [p["tflops"] for p in points], marker="o", label=label, **style)
        axes.fill_between(x, [p["tflops"] * p["ms"]["median"] / p["ms"]["p80"] for p in points],
                          [p["tflops"] * p["ms"]["median"] / p["ms"]["p20"] for p in points],
                          color=line.get_color(), alpha=0.2, linewidth=0)
    for name in sorted({r["limit"] for r in rows if r.get("limit") in limits}):
        axes.axhline(limits[name]["tflops"], linestyle="--", color="gray", linewidth=1)
        axes.annotate(f"{limits[name]['name']}: {limits[name]['tflops']:.0f}", (0, limits[name]["tflops"]),
                      fontsize=8, color="gray", va="bottom")
    axes.set_xticks(range(len(sizes)), [name for name, _ in sizes])
    axes.set(xlabel="size", ylabel="TFLOP/s", title=title)
    speeds = [row["tflops"] for row in rows]
    if max(speeds) > 20 * min(speeds):  # a whole ladder
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(axis="y", which="both", alpha=0.25)
    else:
        axes.set_ylim(0)
    axes.legend(fontsize=8)
    return figure


def save_figure(figure, path: Path | str, digest: str | None = None) -> Path:
    """Write a figure as the suffix says (.png, .svg, .pdf); the same figure gives the same .svg."""
    import matplotlib

    path = Path(path)
    if path.suffix not in FIGURES:
        raise UserError(f"cannot draw {path}: the name must end in {', '.join(FIGURES)}")
    extra = {"metadata": {"Date": None, "Description": digest}} if path.suffix == ".svg" else {"dpi": 150}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "gpu-kernels-course"}):
            figure.savefig(path, **extra)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path


# --- tables between markers ------------------------------------------------------------------------------------------

TABLES: dict[str, Callable[..., str]] = {}


def table(name: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register what fills `<!-- results:NAME … -->`."""

    def register(function: Callable[..., str]) -> Callable[..., str]:
        TABLES[name] = function
        return function

    return register


def _markdown(head: Sequence[str], body: Iterable[Sequence[object]], records: Sequence[Record] = ()) -> str:
    """A table whose first column is left-aligned, and the runs it comes from."""
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join("–" if cell is None else str(cell) for cell in row) + " |" for row in body]
    sources = dict.fromkeys(
        f"{r.run['gpu']}, driver {r.run['driver']}, CUDA {r.run['cuda']}, torch {r.run['torch']}, "
        f"{r.run['date'][:10]}, [{r.run['file']}]" for r in records)
    return "\n".join(lines + ([""] + [f"Recorded: {source}." for source in sources] if sources else []))


def _number(value: float | None, form: str = "{:.2f}") -> str | None:
    return None if value is None else form.format(value)


def tflops(value: float) -> str:
    """Three significant figures: 0.36, 5.24, 51.2, 652."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _ladder(dtype: str, sizes: Sequence[str]) -> tuple[list[Record], list[str], list[Record]]:
    """The stages (default variants), the sizes to show, and the peers of that run."""
    def climbed(run: dict) -> int:
        return len({row["name"] for row in run["rows"] if row["dtype"] == dtype and row.get("default")})

    # One run, so that all were timed in turns: the newest of those that climb highest.
    run = max(runs(kind="bench"), key=lambda run: (climbed(run), run["date"]), default={"rows": []})
    records = [Record(run, row) for row in run["rows"] if row["dtype"] == dtype and row.get("source") is None]
    stages = [r for r in records if r.row.get("default") and r.row["role"] != "peer"]
    shown = list(sizes) or [n for n, _ in sorted({(size_name(r.row["shape"]), work(r.row["shape"])) for r in stages},
                                                 key=lambda item: item[1])]
    stages = [r for r in stages if size_name(r.row["shape"]) in shown]
    peers = [r for r in records if r.row["role"] == "peer" and size_name(r.row["shape"]) in shown]
    return stages, shown, peers


@table("ladder")
def ladder_table(dtype: str, *sizes: str) -> str:
    """TFLOP/s of every stage at each size; × the previous stage and share of the library at the last one."""
    stages, shown, peers = _ladder(dtype, sizes)
    if not stages:
        return "*No run recorded yet.*"
    last = shown[-1]
    head = ["stage", *shown, f"× previous ({last})", f"% of library ({last})", f"% of limit ({last})"]
    body = []
    for name in dict.fromkeys(r.row["name"] for r in stages + peers):
        at = {size_name(r.row["shape"]): r for r in stages + peers if r.row["name"] == name}
        record = at.get(last)
        own = record is not None and record.row["role"] != "peer"
        body.append([
            name, *(tflops(at[s].row["tflops"]) if s in at else None for s in shown),
            _number(record.times(record.previous) if own else None),
            _number(record.times(record.peer) if own else None, "{:.1%}"),
            _number(record.row["tflops"] / record.limit["tflops"] if own and record.limit else None, "{:.1%}")])
    return _markdown(head, body, stages)


@table("stage")
def stage_table(name: str, *dtypes: str) -> str:
    """One stage, default variants, at every size and dtype recorded."""
    records = [r for r in recorded(name=name, default=True) if not dtypes or r.row["dtype"] in dtypes]
    if not records:
        return "*No run recorded yet.*"
    head = ["dtype, size", "ms", "20–80 %", "TFLOP/s", "× previous", "% of library", "% of limit", "SM clock"]
    body = [[
        f"{r.row['dtype']}, {size_name(r.row['shape'])}", f"{r.row['ms']['median']:.3f}",
        f"{r.row['ms']['p20']:.3f}–{r.row['ms']['p80']:.3f}", tflops(r.row["tflops"]),
        _number(r.times(r.previous)), _number(r.times(r.peer), "{:.1%}"),
        _number(r.row["tflops"] / r.limit["tflops"] if r.limit else None, "{:.1%}"),
        _number(r.row.get("sm_mhz", {}).get("median"), "{:.0f} MHz")] for r in records]
    return _markdown(head, body, records)


@table("share")
def share_table(name: str, dtype: str, *sizes: str) -> str:
    """A stage's share of the library in every run but the quick ones, default variants: how far runs differ."""
    body, means = [], []
    for run in reversed(runs(kind="bench")):
        if "--quick" in run["command"]:
            continue
        rows = [row for row in run["rows"] if row["name"] == name and row["dtype"] == dtype and row.get("default")
                and row.get("source") is None and row["role"] == "stage"]
        at = {size_name(row["shape"]): Record(run, row) for row in rows}
        shares = [at[size].times(at[size].peer) for size in sizes if size in at]
        if len(shares) < len(sizes) or None in shares:
            continue
        means.append(statistics.geometric_mean(shares))
        body.append([f"[{run['file']}], {at[sizes[0]].row['ms']['n']} samples", *(f"{share:.3f}" for share in shares),
                     f"{means[-1]:.3f}"])
    if not body:
        return "*No run recorded yet.*"
    body.append(["median of the runs", *[None] * len(sizes), f"**{statistics.median(means):.3f}**"])
    return _markdown(["run", *sizes, "geometric mean"], body)


@table("variants")
def variants_table(name: str, dtype: str, size: str | None = None) -> str:
    """One stage's variants at one size (default: the largest that all of them have)."""
    records = recorded(name=name, dtype=dtype)
    if not records:
        return "*No run recorded yet.*"
    by_size: dict[str, list[Record]] = {}
    for r in records:
        by_size.setdefault(size_name(r.row["shape"]), []).append(r)
    if size is None:
        size = max(by_size, key=lambda s: (len(by_size[s]), work(by_size[s][0].row["shape"])))
    records = by_size.get(size, [])
    default = next((r.row["variants"] for r in records if r.row["default"]), {})

    def label(row: dict) -> str:
        if row["default"]:
            return f"`{variants_name(default)}` (default)" if len(default) <= 2 else "(all defaults)"
        changed = {macro: value for macro, value in row["variants"].items() if default.get(macro) != value}
        return f"`{variants_name(changed)}`"

    body = [[label(r.row), f"{r.row['ms']['median']:.3f}", tflops(r.row["tflops"]), _number(r.times(r.peer), "{:.1%}")]
            for r in records]
    return _markdown([f"variant, {dtype} {size}", "ms", "TFLOP/s", "% of library"], body, records)


@table("limits")
def limits_table() -> str:
    """The ceilings measured on each GPU, newest run of each."""
    newest: dict[tuple, Record] = {}
    for run in runs(kind="ceiling"):
        for row in run["rows"]:
            newest.setdefault((run["gpu"], row["name"]), Record(run, row))
    if not newest:
        return "*No run recorded yet.*"
    body = []
    for r in newest.values():
        held = r.row.get("sustained", {})
        body.append([r.row["name"], r.row["operands"], tflops(r.row["tflops"]), _number(held.get("tflops"), "{:.0f}"),
                     _number(held.get("sm_mhz", {}).get("median"), "{:.0f} MHz"),
                     _number(held.get("power_w", {}).get("median"), "{:.0f} W")])
    head = ["what", "operands from", "TFLOP/s", "sustained", "SM clock, sustained", "power, sustained"]
    return _markdown(head, body, list(newest.values()))


@table("profile")
def profile_table(name: str, dtype: str = "fp16") -> str:
    """What the emulator counted beside what ncu counted for the same launch."""
    records = recorded(kind="profile", name=name, dtype=dtype, default=True)
    if not records:
        return "*No run recorded yet.*"
    body = [[f"{key}, {size_name(r.row['shape'])}", f"{c['emulator']:,}", f"{c['ncu']:,}", f"`{c['metric']}`"]
            for r in records for key, c in r.row["counters"].items() if c.get("emulator") is not None]
    return _markdown(["counter, size", "emulator", "ncu", "metric"], body, records)


@table("plot")
def plot_link(dtype: str, *sizes: str) -> str:
    """A figure of the ladder; `regenerate` draws it."""
    stages, _, _ = _ladder(dtype, sizes)
    if not stages:
        return "*No run recorded yet.*"
    return f"![TFLOP/s of the stages, {dtype}](FIGURES/ladder-{dtype}.svg)"


@table("runs")
def runs_table() -> str:
    """Every recorded run."""
    found = runs()
    if not found:
        return "*No run recorded yet.*"
    body = [[f"[{r['file']}]", r["kind"], r["gpu"], r["date"][:10],
             r["commit"][:10] + (" + changes" if r.get("dirty") else ""), f"`{r['command']}`"] for r in found]
    return _markdown(["run", "kind", "GPU", "date", "commit", "command"], body)


_MARKER = re.compile(r"(?P<open><!-- results:(?P<words>[^\n]*?) -->\n)(?P<body>.*?)(?P<close><!-- /results -->)", re.S)


def fill(text: str, document: Path) -> tuple[str, list[tuple[str, ...]]]:
    """`text` with every marked region made anew, and the figures it refers to as (dtype, *sizes).

    UserError for a marker that names no table, has the wrong arguments, or is not closed.
    """
    figures: list[tuple[str, ...]] = []
    if text.count("<!-- results:") != len(_MARKER.findall(text)):
        raise UserError(f"{document}: a results marker is not closed by <!-- /results -->")

    def region(match: re.Match) -> str:
        name, *arguments = match["words"].split()
        if name not in TABLES:
            raise UserError(f"{document}: unknown table '{name}', there are {', '.join(sorted(TABLES))}")
        try:
            body = TABLES[name](*arguments)
        except TypeError:
            raise UserError(f"{document}: 'results:{match['words']}' has the wrong number of arguments") from None
        if name == "plot" and "FIGURES/" in body:
            figures.append(tuple(arguments))
        here = Path(os.path.relpath(RESULTS, document.parent)).as_posix()
        body = re.sub(r"\[([\w.-]+\.json)\]", rf"[\1]({here}/\1)", body).replace("FIGURES/", f"{here}/")
        return f"{match['open']}{body}\n{match['close']}"

    return _MARKER.sub(region, text), figures


def documents() -> list[Path]:
    """The files that may hold markers."""
    return [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if p.exists()]


def _figure(dtype: str, *sizes: str) -> tuple[Path, list[dict], dict, str]:
    """(path, rows, limits, digest of the data) of one ladder figure."""
    stages, _, peers = _ladder(dtype, sizes)
    rows = [r.row | {"label": r.row["name"]} for r in stages + peers]
    bounds = {key: value for r in reversed(stages) for key, value in r.run.get("limits", {}).items()}
    digest = hashlib.sha256(json.dumps([rows, bounds], sort_keys=True).encode()).hexdigest()[:16]
    return RESULTS / f"ladder-{dtype}.svg", rows, bounds, digest


def regenerate(check: bool = False) -> list[Path]:
    """Bring documents and figures up to date; the paths that were not (with check: only say which, write nothing)."""
    stale = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        filled, figures = fill(text, document)
        if filled != text:
            stale.append(document)
            if not check:
                document.write_text(filled, encoding="utf-8")
        for arguments in figures:
            path, rows, bounds, digest = _figure(*arguments)
            if path.exists() and digest in path.read_text(encoding="utf-8"):
                continue
            stale.append(path)
            if not check:
                save_figure(plot(rows, bounds, f"{arguments[0]}, recorded"), path, digest)
    return stale


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m common.results", description="Write the tables and plots in "
                                     "README.md and docs/ anew from the recorded runs in docs/results/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something is out of date")
    options = parser.parse_args(arguments)
    try:
        stale = regenerate(options.check)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in stale:
        print(f"{'out of date' if options.check else 'written'}: {path.relative_to(ROOT)}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
