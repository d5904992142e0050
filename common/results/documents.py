"""The tables of README.md, docs/ and docs/appendix/.

What is between `<!-- results:NAME ARGUMENTS -->` and `<!-- /results -->` is made from the recorded runs:

`python -m common.results --help` lists the tables and their arguments. Further ones: gpu=H200 (by default the GPU that
most runs are of), run=NAME (the file NAME.json, where it would be another), NAME=VALUE (a setting of the problem, such
as HEAD_DIM=64). The rows of a table come from one run, which is named below it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from common.results import clocks, ladders, measured, plot  # noqa: F401 (they register their tables)
from common.results.markdown import NOTHING, given, markdown, table
from common.results.markdown import TABLES as TABLES  # with those of all modules that this one imports
from common.results.runs import ANY, RESULTS, ROOT, Only, rungs, runs, settings_named, used
from cudaemu.errors import UserError


@table("plot")
def plot_link(ladder: str, dtype: str, *size: str, only: Only = ANY, **settings: str) -> str:
    """The ladder as a figure; `regenerate` draws it."""
    if not rungs(ladder, dtype, only, **given(settings)):
        return NOTHING
    return f"![TFLOP/s of the stages, {ladder}, {dtype}](FIGURES/{_figure_name(ladder, dtype, only.gpu, settings)})"


def _figure_name(ladder: str, dtype: str, gpu: str | None, settings: Mapping[str, str]) -> str:
    words = ["ladder", ladder, dtype, *(f"{name}{value}" for name, value in settings.items()), *([gpu] if gpu else [])]
    return "-".join(words).lower() + ".svg"


@table("runs")
def runs_table(only: Only = ANY) -> str:
    """The runs themselves: file, GPU, date, commit, command."""
    found = runs(only=only)
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


@table("sources")
def sources_table(only: Only = ANY) -> str:
    """Which runs each table of README and docs is made of, and which ones a notebook read when it was executed."""
    found: list[tuple[Path, str | None, list[str]]] = []
    for document in documents():
        for match in _MARKER.finditer(document.read_text(encoding="utf-8")):
            if match["words"].split()[0] not in LISTS:
                found.append((document, f"`{match['words']}`", _asked(document, match["words"])[1]))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found.append((path, None, json.loads(path.read_text(encoding="utf-8"))["metadata"].get("runs", [])))
    body = [
        [path.relative_to(ROOT).as_posix(), words, ", ".join(f"[{file}]" for file in files)]
        for path, words, files in found
        if files
    ]
    return markdown(["page", "table", "made of"], body) if body else NOTHING


LISTS = ("runs", "sources")  # of all runs
_MARKER = re.compile(r"(?P<open><!-- results:(?P<words>[^\n]*?) -->\n)(?P<body>.*?)(?P<close><!-- /results -->)", re.S)


def _arguments(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """["fp16", "gpu=H200"] -> (["fp16"], {"gpu": "H200"})."""
    pairs = [word.split("=", 1) for word in words]
    return [pair[0] for pair in pairs if len(pair) == 1], {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


@lru_cache
def _made(words: str) -> tuple[str, list[str]]:
    """The table that a marker asks for, and the files that it was made of."""
    name, *more = words.split()
    if name not in TABLES:
        raise UserError(f"a table must be one of {', '.join(sorted(TABLES))}, got '{name}'")
    plain, keywords = _arguments(more)
    used.clear()
    return TABLES[name](*plain, **keywords), sorted(used)


def _asked(document: Path, words: str) -> tuple[str, list[str]]:
    """`_made`; what is wrong with a marker is said with its document."""
    try:
        return _made(words)
    except TypeError:
        raise UserError(f"{document}: 'results:{words}' has the wrong number of arguments") from None
    except UserError as error:
        raise UserError(f"{document}: {error}") from None


def fill(text: str, document: Path) -> tuple[str, list[tuple[str, ...]]]:
    """`text` with every marked region made anew, and the arguments of the plots that it refers to.

    UserError for a marker that names no table, has the wrong arguments, or is not closed.
    """
    figures: list[tuple[str, ...]] = []
    if text.count("<!-- results:") != len(_MARKER.findall(text)):
        raise UserError(f"{document}: a results marker is not closed by <!-- /results -->")

    def region(match: re.Match[str]) -> str:
        name, *words = match["words"].split()
        body, _ = _asked(document, match["words"])
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
    only = Only(keywords.pop("gpu", None), keywords.pop("run", None))
    found = [r for r in rungs(ladder, dtype, only, **given(keywords)) if not shown or r.row["size"] in shown]
    bounds = {r.row["limit"]: r.limit for r in found if r.limit}
    digest = hashlib.sha256(json.dumps([[r.row for r in found], bounds], sort_keys=True).encode()).hexdigest()[:16]
    path = RESULTS / _figure_name(ladder, dtype, only.gpu, keywords)
    if path.exists() and digest in path.read_text(encoding="utf-8"):
        return None
    if not check:
        plot.save(plot.plot(found, f"{found[0].source}: {settings_named(found[0].row)}"), path, digest)
    return path


def regenerate(check: bool = False) -> list[Path]:
    """Bring documents and figures up to date; the paths that were not (with check: only say which, write nothing)."""
    stale = []
    _made.cache_clear()
    for document in documents():
        text = document.read_text(encoding="utf-8")
        filled, figures = fill(text, document)
        if filled != text:
            stale.append(document)
            if not check:
                document.write_text(filled, encoding="utf-8")
        stale += [path for words in figures if (path := _draw(words, check))]
    return stale
