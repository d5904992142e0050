"""The tables of README.md and docs/*.md.

Between `<!-- results:NAME ARGUMENTS -->` and `<!-- /results -->` stands what this module makes of the recorded runs,
and no figure of anybody's own:

    results:ladder PART DTYPE [SIZE …]      TFLOP/s of every stage; step and share of the library at the last size
    results:stage STAGE [DTYPE …]           one stage at every size of the ladder's run, with its spread
    results:variants STAGE MACRO [SIZE …]   the values of one macro side by side, all from one run
    results:share STAGE DTYPE SIZE …        a stage's share of the library in every long run: how far runs differ
    results:limits                          the measured ceilings
    results:profile STAGE                   the emulator's counters beside ncu's
    results:plot PART DTYPE [SIZE …]        the ladder as a figure
    results:runs                            the runs themselves: file, GPU, software, date, command

Further arguments: `gpu=H200` (whose runs; default: any), `NAME=VALUE` (a setting of the problem, such as HEAD_DIM=64).
The rows of a table come from one run, which stands below it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from common.errors import UserError
from common.results import plot
from common.results.runs import RESULTS, ROOT, Record, not_zero, records, runs, settings_named, sizes

NOTHING = "*No run recorded yet.*"

TABLES: dict[str, Callable[..., str]] = {}


def table(name: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register what fills `<!-- results:NAME … -->`."""

    def register(function: Callable[..., str]) -> Callable[..., str]:
        TABLES[name] = function
        return function

    return register


def markdown(head: Sequence[str], body: Iterable[Sequence[object]], sources: Sequence[Record] = ()) -> str:
    """A table whose first column is left-aligned, and the runs it comes from."""
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join("–" if cell is None else str(cell) for cell in row) + " |" for row in body]
    origins = dict.fromkeys(
        f"{r.run['gpu']}, driver {r.run['driver']}, CUDA {r.run['cuda']}, torch {r.run['torch']}, "
        f"{r.run['date'][:10]}, [{r.run['file']}]"
        for r in sources
    )
    return "\n".join(lines + ([""] + [f"Recorded: {origin}." for origin in origins] if origins else []))


def number(value: float | None, form: str = "{:.2f}") -> str | None:
    """The value in that form; None stays None."""
    return None if value is None else form.format(value)


def tflops(value: float) -> str:
    """Three significant figures: 0.36, 5.24, 51.2, 652."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ladder(part: str, dtype: str, gpu: str | None = None, **settings: int) -> list[Record]:
    """The stages (default variants) and peers of the run in which a part's ladder was climbed highest; [] if none was.

    Of several such runs the newest. A setting that is not given is 0."""

    def climbed(run: dict) -> list[Record]:
        rows = [r for r in records(run, part=part, dtype=dtype) if not_zero(r.row["settings"]) == not_zero(settings)]
        return [r for r in rows if r.row["role"] == "peer" or r.row.get("default")]

    found = [climbed(run) for run in runs(kind="bench", gpu=gpu)]
    return max(found, key=lambda rows: len({r.row["name"] for r in rows if r.row["role"] != "peer"}), default=[])


def _settings(words: Mapping[str, str]) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in words.items()}
    except ValueError:
        given = " ".join(f"{name}={value}" for name, value in words.items())
        raise UserError(f"'{given}' is no setting: NAME=VALUE with a whole number") from None


@table("ladder")
def ladder_table(part: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of every stage at each size; at the last × the previous stage, shares of library and limit."""
    found = ladder(part, dtype, gpu, **_settings(settings))
    if not found:
        return NOTHING
    shown = shown or tuple(sizes(found))
    last = shown[-1]
    peer = next((r.peer.row["name"] for r in found if r.peer), "library")
    head = ["stage", *shown, f"× previous ({last})", f"% of {peer} ({last})", f"% of limit ({last})"]
    body = []
    for name in dict.fromkeys(r.row["name"] for r in sorted(found, key=lambda r: r.row["role"] == "peer")):
        at = {r.row["size"]: r for r in found if r.row["name"] == name}
        record = at.get(last)
        own = record is not None and record.row["role"] != "peer"
        body.append(
            [
                name,
                *(tflops(at[size].row["tflops"]) if size in at else None for size in shown),
                number(record.times(record.previous) if record and own else None),
                number(record.times(record.peer) if record and own else None, "{:.1%}"),
                number(record.of_limit if record and own else None, "{:.1%}"),
            ]
        )
    return markdown(head, body, found)


@table("stage")
def stage_table(name: str, *dtypes: str, gpu: str | None = None) -> str:
    """One stage, default variants, at every size and dtype of the newest run that has its previous stage, too."""
    for run in runs(kind="bench", gpu=gpu):
        found = records(run, name=name, default=True)
        found = [r for r in found if r.row["role"] == "stage" and (not dtypes or r.row["dtype"] in dtypes)]
        if found and len({r.row["name"] for r in records(run)}) > 2:
            break
    else:
        return NOTHING
    peer = next((r.peer.row["name"] for r in found if r.peer), "library")
    head = ["dtype, size", "ms", "20–80 %", "TFLOP/s", "× previous", f"% of {peer}", "% of limit", "SM clock"]
    body = [
        [
            f"{settings_named(r.row)}, {r.row['size']}",
            f"{r.row['ms']['median']:.3f}",
            f"{r.row['ms']['p20']:.3f}–{r.row['ms']['p80']:.3f}",
            tflops(r.row["tflops"]),
            number(r.times(r.previous)),
            number(r.times(r.peer), "{:.1%}"),
            number(r.of_limit, "{:.1%}"),
            number(r.row.get("sm_mhz", {}).get("median"), "{:.0f} MHz"),
        ]
        for r in found
    ]
    return markdown(head, body, found)


def variant_records(name: str, macro: str, gpu: str | None = None) -> list[Record]:
    """The rows of one stage that differ in one macro only, from the newest run with several of its values."""
    for run in runs(kind="bench", gpu=gpu):
        found = []
        for record in records(run, name=name):
            variants, defaults = record.row.get("variants", {}), record.row.get("defaults", {})
            others = {k for k, v in variants.items() if v != defaults.get(k)} - {macro} - set(record.row["settings"])
            if macro in variants and not others:
                found.append(record)
        if len({record.row["variants"][macro] for record in found}) > 1:
            return found
    return []


@table("variants")
def variants_table(name: str, macro: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """TFLOP/s of the values of one macro, × its default; all of one run."""
    wanted = _settings(settings).items()
    found = [r for r in variant_records(name, macro, gpu) if wanted <= r.row["settings"].items()]
    if not found:
        return NOTHING
    shown = shown or tuple(sizes(found))
    head = [macro, *(f"TFLOP/s, {size}" for size in shown), *(f"× default, {size}" for size in shown)]
    cases: dict[str, dict[int, dict[str, Record]]] = {}  # what is computed, but for the macro -> value -> size
    for record in found:
        row = record.row
        others = {name: value for name, value in row["settings"].items() if name != macro}
        case = cases.setdefault(settings_named(row | {"settings": others}), {})
        case.setdefault(row["variants"][macro], {})[row["size"]] = record
    body: list[list[object]] = []
    for name, values in cases.items():
        default = found[0].row["defaults"][macro]
        for value, at in sorted(values.items()):
            rows = [at.get(size) for size in shown]
            base = values.get(default, {})
            ratios = [r.times(base.get(r.row["size"])) if r else None for r in rows]
            label = f"`{macro}={value}`" + (" (default)" if value == default else "")
            label += f", {name}" if len(cases) > 1 else ""
            body.append([label, *(r and tflops(r.row["tflops"]) for r in rows), *(number(ratio) for ratio in ratios)])
    return markdown(head, body, found)


@table("share")
def share_table(name: str, dtype: str, *shown: str, gpu: str | None = None) -> str:
    """A stage's share of the library in every run but the quick ones, default variants: how far runs differ."""
    body: list[list[object]] = []
    means = []
    for run in reversed(runs(kind="bench", gpu=gpu)):
        found = [] if "--quick" in run["command"] else records(run, name=name, dtype=dtype, default=True, role="stage")
        at = {r.row["size"]: r for r in found}
        shares = [share for size in shown if size in at and (share := at[size].times(at[size].peer))]
        if len(shares) < len(shown):
            continue
        means.append(statistics.geometric_mean(shares))
        samples = at[shown[0]].row["ms"]["n"]
        body.append([f"[{run['file']}], {samples} samples", *(f"{share:.3f}" for share in shares), f"{means[-1]:.3f}"])
    if not body:
        return NOTHING
    body.append(["median of the runs", *[None] * len(shown), f"**{statistics.median(means):.3f}**"])
    return markdown(["run", *shown, "geometric mean"], body)


@table("limits")
def limits_table(gpu: str | None = None) -> str:
    """The ceilings measured on a GPU, from the newest run that measured them."""
    run = next(iter(runs(kind="ceiling", gpu=gpu)), None)
    if run is None:
        return NOTHING
    found = [Record(run, row) for row in run["rows"]]
    body = []
    for r in found:
        held = r.row.get("sustained", {})
        body.append(
            [
                r.row["name"],
                f"{r.row['value']:,.4g} {r.row['unit']}",
                number(held.get("value"), "{:,.4g}"),
                number(held.get("sm_mhz", {}).get("median"), "{:.0f} MHz"),
                number(held.get("power_w", {}).get("median"), "{:.0f} W"),
            ]
        )
    return markdown(["what", "measured", "sustained", "SM clock, sustained", "power, sustained"], body, found)


@table("profile")
def profile_table(name: str, dtype: str = "fp16", gpu: str | None = None) -> str:
    """What the emulator counted beside what ncu counted for the same launch."""
    for run in runs(kind="profile", gpu=gpu):
        found = records(run, name=name, dtype=dtype, default=True)
        if found:
            break
    else:
        return NOTHING
    body = [
        [f"{key}, {r.row['size']}", _counted(c), f"{c['ncu']:,}", f"`{c['metric']}`"]
        for r in found
        for key, c in r.row["counters"].items()
        if c.get("emulator") is not None
    ]
    return markdown(["counter, size", "emulator", "ncu", "metric"], body, found)


def _counted(pair: Mapping) -> str:
    """The emulator's count; as ptxas merged the loads, if it did."""
    return f"{pair['code']:,} ({pair['emulator']:,} unmerged)" if "code" in pair else f"{pair['emulator']:,}"


@table("plot")
def plot_link(part: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """A figure of the ladder; `regenerate` draws it."""
    if not ladder(part, dtype, gpu, **_settings(settings)):
        return NOTHING
    return f"![TFLOP/s of the stages, {part}, {dtype}](FIGURES/{_figure_name(part, dtype, gpu, settings)})"


def _figure_name(part: str, dtype: str, gpu: str | None, settings: Mapping[str, str]) -> str:
    words = ["ladder", part, dtype, *(f"{name}{value}" for name, value in settings.items()), *([gpu] if gpu else [])]
    return "-".join(words).lower() + ".svg"


@table("runs")
def runs_table() -> str:
    """Every recorded run."""
    found = runs()
    if not found:
        return NOTHING
    body = [
        [
            f"[{r['file']}]",
            r["kind"],
            r["gpu"],
            r["date"][:10],
            r["commit"][:10] + (" + changes" if r.get("dirty") else ""),
            f"`{r['command']}`",
        ]
        for r in found
    ]
    return markdown(["run", "kind", "GPU", "date", "commit", "command"], body)


# --- documents -------------------------------------------------------------------------------------------------------

_MARKER = re.compile(r"(?P<open><!-- results:(?P<words>[^\n]*?) -->\n)(?P<body>.*?)(?P<close><!-- /results -->)", re.S)


def _arguments(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """["fp16", "gpu=H200"] -> (["fp16"], {"gpu": "H200"})."""
    pairs = [word.split("=", 1) for word in words]
    return [pair[0] for pair in pairs if len(pair) == 1], {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def fill(text: str, document: Path) -> tuple[str, list[tuple[str, ...]]]:
    """`text` with every marked region made anew, and the arguments of the plots that it refers to.

    UserError for a marker that names no table, has the wrong arguments, or is not closed.
    """
    figures: list[tuple[str, ...]] = []
    if text.count("<!-- results:") != len(_MARKER.findall(text)):
        raise UserError(f"{document}: a results marker is not closed by <!-- /results -->")

    def region(match: re.Match) -> str:
        name, *words = match["words"].split()
        if name not in TABLES:
            raise UserError(f"{document}: unknown table '{name}', there are {', '.join(sorted(TABLES))}")
        plain, keywords = _arguments(words)
        try:
            body = TABLES[name](*plain, **keywords)
        except TypeError:
            raise UserError(f"{document}: 'results:{match['words']}' has the wrong number of arguments") from None
        except UserError as error:
            raise UserError(f"{document}: {error}") from None
        if name == "plot" and "FIGURES/" in body:
            figures.append(tuple(words))
        here = Path(os.path.relpath(RESULTS, document.parent)).as_posix()
        body = re.sub(r"\[([\w.-]+\.json)\]", rf"[\1]({here}/\1)", body).replace("FIGURES/", f"{here}/")
        return f"{match['open']}{body}\n{match['close']}"

    return _MARKER.sub(region, text), figures


def documents() -> list[Path]:
    """The files that may hold markers."""
    return [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if p.exists()]


def _draw(words: Sequence[str], check: bool) -> Path | None:
    """Draw one ladder figure if its data have changed; its path if they had."""
    (part, dtype, *shown), keywords = _arguments(words)
    gpu = keywords.pop("gpu", None)
    found = [r for r in ladder(part, dtype, gpu, **_settings(keywords)) if not shown or r.row["size"] in shown]
    bounds = {r.row["limit"]: r.limit for r in found if r.limit}
    digest = hashlib.sha256(json.dumps([[r.row for r in found], bounds], sort_keys=True).encode()).hexdigest()[:16]
    path = RESULTS / _figure_name(part, dtype, gpu, keywords)
    if path.exists() and digest in path.read_text(encoding="utf-8"):
        return None
    if not check:
        plot.save(plot.plot(found, f"{found[0].source}: {settings_named(found[0].row)}"), path, digest)
    return path


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
        stale += [path for words in figures if (path := _draw(words, check))]
    return stale
