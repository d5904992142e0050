"""The tables of README.md, docs/ and docs/appendix/.

What is between `<!-- results:NAME ARGUMENTS -->` and `<!-- /results -->` is made from the recorded runs:

    results:ladder LADDER DTYPE [SIZE …]      TFLOP/s of every stage; step and share of the library at the last size
    results:speed LADDER STAGE DTYPE …        one stage beside the one it follows and the library, at every size
    results:variants STAGE MACRO [SIZE …]   the values of one macro side by side, all from one run
    results:spread STAGE DTYPE SIZE …       a stage and the library, from the slowest to the fastest long run
    results:together STAGE [SIZE …]         precisions and settings that one run timed in the same rounds
    results:ragged STAGE DTYPE WHOLE,SIZE,… what other sizes cost, as multiples of the time that the first of each takes
    results:uses STAGE DTYPE SIZE …         one stage at each of these sizes: time, speed, bytes per second, × libraries
    results:beside STAGE RUN LABEL          a stage beside a changed copy of its source, which the run RUN.json timed
    results:limits                          the measured rates of the arithmetic units
    results:first                           the first kernels of examples/ beside torch and the rate of device memory
    results:fused                           a product and what follows it, in one kernel and in two
    results:levels                          the memory levels: size, latency, bandwidth
    results:latencies                       what waiting for one thing takes
    results:flight                          what must be in flight for each level to deliver all that it can
    results:bounds LADDER DTYPE SIZE          what binds each stage, how near it comes, what its warps wait for
    results:clocks LADDER DTYPE SIZE …        the SM clock of the timed launches, and what limits it
    results:profile STAGE                   the emulator's counters beside ncu's
    results:differences                     in which counters ncu differs from the emulator, and why
    results:plot LADDER DTYPE [SIZE …]        the ladder as a figure
    results:runs                            the runs themselves: file, GPU, software, date, command

Further arguments: `gpu=H200` (default: the GPU that most runs are of), `NAME=VALUE` (a setting of the problem, such as
HEAD_DIM=64). The rows of a table come from one run, which is named below it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.results import clocks, ladders, measured, plot  # noqa: F401 (they register their tables)
from common.results.markdown import NOTHING, TABLES, given, markdown, table
from common.results.runs import RESULTS, ROOT, rungs, runs, settings_named
from cudaemu.errors import UserError


@table("plot")
def plot_link(ladder: str, dtype: str, *shown: str, gpu: str | None = None, **settings: str) -> str:
    """A figure of the ladder; `regenerate` draws it."""
    if not rungs(ladder, dtype, gpu, **given(settings)):
        return NOTHING
    return f"![TFLOP/s of the stages, {ladder}, {dtype}](FIGURES/{_figure_name(ladder, dtype, gpu, settings)})"


def _figure_name(ladder: str, dtype: str, gpu: str | None, settings: Mapping[str, str]) -> str:
    words = ["ladder", ladder, dtype, *(f"{name}{value}" for name, value in settings.items()), *([gpu] if gpu else [])]
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
            raise UserError(f"{document}: a table must be one of {', '.join(sorted(TABLES))}, got '{name}'")
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
    return [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.exists()]


def _draw(words: Sequence[str], check: bool) -> Path | None:
    """Draw one ladder figure if its data have changed; its path if they had."""
    (ladder, dtype, *shown), keywords = _arguments(words)
    gpu = keywords.pop("gpu", None)
    found = [r for r in rungs(ladder, dtype, gpu, **given(keywords)) if not shown or r.row["size"] in shown]
    bounds = {r.row["limit"]: r.limit for r in found if r.limit}
    digest = hashlib.sha256(json.dumps([[r.row for r in found], bounds], sort_keys=True).encode()).hexdigest()[:16]
    path = RESULTS / _figure_name(ladder, dtype, gpu, keywords)
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
