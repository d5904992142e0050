"""What the notebooks show beside figures: quotes from kernel.cu, the diff, counters, the check and the recorded speed.

Each function returns something that a notebook displays, made from the current files and runs, so that it cannot go
stale.

    python -m common.notebook [FILE ...]    execute notebooks (default: all) and save them with their outputs
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from IPython.display import Markdown, display

import cudaemu
from common import accuracy, counts, course
from common.figures import accesses, attention_tiles, triton_code
from common.figures.draw import Beside, Picture
from common.measure import shared_loads
from common.packages import has_triton
from common.practice import exercises, folder
from common.practice.drills import sheets
from common.practice.drills.question import COUNT, questions
from common.results import bound as bound_of
from common.results import documents, ladders, markdown, measured, plot, runs
from common.results.bound import MEASURE, Bounds, least_clocks, newest_ceilings, rates
from common.results.runs import ROOT
from common.stage import Kernel, Stage
from common.verbs import timeline as timelines
from cudaemu import Trace, build, engine
from cudaemu.compiler import sass, toolchain
from cudaemu.errors import CheckFailed, UserError, pick
from cudaemu.hardware import GPUS, Arch

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from nbformat import NotebookNode
    from torch import Tensor

    from cudaemu import Report


PLAIN = {"COLUMNS": "110", "FORCE_COLOR": "", "CLICOLOR_FORCE": "", "TERM": "dumb"}  # what commands print to a file


class Folded(Markdown):
    """Markdown folded away below a summary; whole where only plain text is shown, as on a terminal."""

    def __init__(self, markdown: str, summary: str) -> None:
        self.plain = f"{re.sub('<[^>]*>', '', summary)}\n\n{markdown}"
        Markdown.__init__(self, f"<details><summary>{summary}</summary>\n\n{markdown}\n\n</details>")

    def __repr__(self) -> str:
        return self.plain


def _fence(text: str, language: str, caption: str = "", fold: str = "") -> Markdown:
    """A block of code below its caption. `fold`: what to click on to see it; by default it is in view."""
    block = f"```{language}\n{text.rstrip()}\n```"
    block = f"{caption}\n\n{block}" if caption else block
    return Folded(block, fold) if fold else Markdown(block)


def _source(path: Path, first: int, last: int, fold: str) -> Markdown:
    """Lines first to last (from 1) of a source, below their place in the file."""
    lines = path.read_text(encoding="utf-8").splitlines()[first - 1 : last]
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip() and not line.startswith("#"))
    text = "\n".join(line if line.startswith("#") else line[indent:] for line in lines)
    where = f"line {first}" if first == last else f"lines {first}–{last}"
    language = "python" if path.suffix == ".py" else "cpp"
    return _fence(text, language, f"`{path.relative_to(ROOT)}`, {where}:", fold)


def header(stage: Stage, *, fold: str = "") -> Markdown:
    """The head of kernel.cu: problem, idea, tile table, thread map, limits. `fold` as in `quote`."""
    lines = stage.source.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("//"))
    text = "\n".join(line.removeprefix("//").removeprefix(" ") for line in lines[:end])
    return _fence(text, "text", f"`{stage.source.relative_to(ROOT)}` begins:", fold)


def phase(stage: Stage, number: int, last: int | None = None, *, fold: str = "") -> Markdown:
    """One numbered phase of the kernel, or several: from the comment `// number.` to the one after `last`.

    `fold` as in `quote`. UserError if the kernel has no such phase."""
    lines = stage.source.read_text(encoding="utf-8").splitlines()
    marks: dict[int, int] = {}
    for n, line in enumerate(lines, 1):
        if found := re.match(r"\s+// (\d+)\. ", line):
            marks.setdefault(int(found[1]), n)  # of the first kernel
    last = number if last is None else last
    if number not in marks or last not in marks:
        raise UserError(f"phases of {stage.source} must be among {', '.join(map(str, marks))}, got {number} to {last}")
    end = marks.get(last + 1)
    if end is None:  # the last phase ends with the kernel
        end = next(n for n, line in enumerate(lines, 1) if n > marks[last] and line.startswith("}"))
    body = lines[marks[number] - 1 : end - 1]
    while not body[-1].strip() or (body[-1].strip() == "}" and "".join(body).count("}") > "".join(body).count("{")):
        del body[-1]  # blank lines, and the end of a block that began in an earlier phase
    end = marks[number] + len(body)
    return _source(stage.source, marks[number], end - 1, fold)


def quote(stage: Stage | Path, start: str, end: str | None = None, *, fold: str = "") -> Markdown:
    """The lines of kernel.cu, or of another source of the course, from the first with `start` in it to the next with
    `end` (default: only that one).

    An `end` that begins with a newline is looked for at the beginning of lines. `fold`: the quote is folded away below
    these words. UserError if there are no such lines."""
    source = stage.source if isinstance(stage, Stage) else stage
    lines = source.read_text(encoding="utf-8").splitlines()
    first = next((n for n, line in enumerate(lines, 1) if start in line), None)
    last = (
        first
        if end is None
        else next((n for n, line in enumerate(lines, 1) if n >= (first or 0) and end in f"\n{line}"), None)
    )
    if first is None or last is None:
        raise UserError(f"{source} has no line with {start!r}" + (f" before one with {end!r}" if end else ""))
    return _source(source, first, last, fold)


def diff(stage: Stage, context: int = 2, *, fold: str = "") -> Markdown:
    """What changed in kernel.cu since the stage that this one follows, folded away below `fold` and its size."""
    from common.verbs.diff import diff

    before = course.previous(stage)
    found = diff(stage, context)
    summary = f"<b>{before and before.name} → {stage.name}</b>: {found.summary}"
    return _fence("\n".join(found.lines[2:]), "diff", fold=f"{fold}: {summary}" if fold else summary)


def table(head: Sequence[str], body: Sequence[Sequence[object]]) -> Markdown:
    """A table whose first column is left-aligned."""
    lines = [f"| {' | '.join(head)} |", "| --- |" + " ---: |" * (len(head) - 1)]
    return Markdown("\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in body]))


def counters(
    compared: Sequence[Kernel | Stage | tuple[str, Report]], shape: Sequence[int], names: Sequence[str] = ()
) -> Markdown:
    """Counters of kernels side by side, as the emulator counts them at `shape` of the last; of two also how each moved.

    A label with a report stands for a run that has been made. `names`: counters and derived figures of common.counts;
    default: what the last stage is about, and all derived.
    """
    chosen = [each.kernel() if isinstance(each, Stage) else each for each in compared]
    last, shape = [each for each in chosen if isinstance(each, Kernel)][-1].stage, tuple(shape)
    spec, about = last.spec, last.counters
    labels, counted = [], []
    for each in chosen:
        if isinstance(each, Kernel):
            label, report = each.label, counts.emulate(each, each.stage.spec.like(spec, shape))
        else:
            label, report = each
        labels.append(label)
        counted.append(report.counters.flat())
    found = {name: values for name, values, _ in counts.rows(counted, about)}
    names = names or [name for name in found if name in about or name in counts.DERIVED]
    body = [
        [
            name.replace("_", " "),
            *map(counts.number, found[name]),
            *([counts.change(*found[name])] if len(chosen) == 2 else []),
        ]
        for name in names
        if name in found
    ]
    return table(
        [
            spec.format(shape),
            *labels,
            *(["change"] if len(chosen) == 2 else []),
        ],
        body,
    )


def check(
    stage: Stage, shape: Sequence[int], *, dtypes: Sequence[str] | None = None, source: Path | None = None
) -> Markdown:
    """Run the stage, or a version of it, in its dtypes in the emulator, and on the GPU if there is one; judge it."""
    devices = ["emulator"] if stage.unfit else ["emulator", "gpu"]
    done = [
        accuracy.check(stage.kernel(dtype, source=source), tuple(shape), device)
        for device in devices
        for dtype in dtypes or stage.dtypes
    ]
    body = [
        (
            result.kernel.label,
            result.device,
            a.name,
            f"{a.error:.1e}",
            f"{a.limit:.1e}",
            "ok" if result.ok else "**wrong**",
        )
        for result in done
        for a in result.accuracies
    ]
    made = table(["kernel", "where", "output", "error", "allowed", ""], body)
    reports = [_fence(_short(result.report), "text").data for result in done if not result.ok]
    return Markdown("\n\n".join([f"{stage.spec.format(tuple(shape))}:", made.data, *reports]))


def recorded(name: str, *words: Stage | str | Mapping[str, int], **options: object) -> Markdown:
    """A table of recorded runs: `python -m common.results --help` lists them, with what each takes. A stage stands for
    its name. `options`: settings of the problem (HEAD_DIM=64), `dtype`, `size`, `run`, as documents give them.

    UserError for a table that is not there, or a setting that the stage lacks."""
    given = [word.name if isinstance(word, Stage) else word for word in words]
    made = documents.TABLES[pick(name, tuple(documents.TABLES), "table", "common.results")]
    text = made(*given, **{key: str(value) for key, value in options.items()})
    return Markdown(re.sub(r"\[([\w.-]+\.json)\]", r"`docs/results/\1`", text))


def busy(*stages: Stage, dtype: str = "fp16", sizes: Sequence[str] = ("4096",)) -> Markdown:
    """How long a launch took, for which share of an SM's time with a block the tensor pipe was busy, and what warps
    waited for longest, as ncu counted: a row for each stage and size."""
    body: list[list[str]] = []
    sources: dict[str, None] = {}
    for size, stage in ((size, stage) for size in sizes for stage in stages):
        for each in runs.recorded(kind="profile", name=stage.name, dtype=dtype, size=size, default=True):
            clocks, share = bound_of.profiled_clocks(each), each.row["metrics"].get("tensor pipe busy")
            if clocks is None or share is None:
                continue
            waits = {
                name: part for name, part in bound_of.waits(each).items() if name not in ("issuing", "not selected")
            }
            longest = sorted(waits, key=lambda name: -waits[name])[:3]
            told = ", ".join(f"{name} {waits[name]:.0%}" for name in longest)
            body.append([f"{stage.name}, {size}", f"{clocks:,.0f}", f"{share:.0f}%", told])
            sources[f"*{each.source}, `docs/results/{each.run['file']}`*"] = None
    if not body:
        return Markdown(markdown.NOTHING)
    head = [f"{dtype}, ncu", "clocks of an SM", "tensor pipe busy", "of a warp's time, longest waits"]
    return Markdown("\n\n".join([str(table(head, body).data), *sources]))


def bound(compared: Sequence[Kernel], shape: Sequence[int]) -> Markdown:
    """For what share of the time the arithmetic units can multiply beside the shared memory that feeds them, and what
    that makes in TFLOP/s. (Conversions, which the FMA pipe does as well, are not counted.)

    Counted at `shape` in the emulator, shared loads as ptxas merged them; both at the rates measured on the recorded
    GPU, all of its SMs at their highest clock."""
    ceilings = newest_ceilings()
    if ceilings is None:
        return Markdown(f"*No rates per clock are recorded yet: {MEASURE}*")
    recorded = next((gpu.arch for gpu in GPUS if measured.gpu_named(ceilings["gpu"], gpu)), None)
    body = []
    for kernel in compared:
        arch = recorded or kernel.stage.arch
        report = counts.emulate(kernel, shape, arch=arch, trace=Trace(blocks=range(1)))
        counted = {**report.counters.flat(), **(shared_loads.merged(kernel, report, arch) or {})}
        clocks = least_clocks(kernel, shape, counted, rates(ceilings))
        share = clocks["arithmetic"] / max(clocks.values())
        seconds = max(clocks.values()) / ceilings["sms"] / (ceilings["highest_mhz"] * 1e6)
        flops = kernel.stage.spec.flops(tuple(shape), kernel.variants)
        row = [f"{clocks[name]:,.0f}" for name in ("arithmetic", "shared memory")]
        body.append([kernel.label, *row, f"{share:.0%}", f"{flops / seconds / 1e12:.3g}"])
    at = compared[-1].stage.spec.format(tuple(shape))
    head = [f"at least, {at}", "clocks of multiplications", "of shared memory"]
    return table([*head, "multiplying, at most", "TFLOP/s, at most"], body)


def timeline(stage: Stage) -> Picture | Markdown:
    """When the warpgroups of a block waited, copied and multiplied on a GPU, as the newest run of the verb `timeline`
    recorded it for the default kernel."""
    found = runs.recorded("timeline", name=stage.name, default=True)
    if not found:
        return Markdown(markdown.NOTHING)
    return timelines.figure(found[0].run)


def costs(*compared: Kernel, function: str = "", seldom: bool = True) -> Picture | Markdown:
    """What 16 queries against 64 keys need of each resource, and for what, at the rates measured on the recorded GPU.

    `function`: part of the (mangled) name of the instance, where a kernel has several. `seldom=False`: without what a
    warp jumps over unless one of its lanes votes for it."""
    ceilings = newest_ceilings()
    if ceilings is None:
        return Markdown(f"*No rates per clock are recorded yet: {MEASURE}*")
    per_clock = _per_clock(ceilings)
    return attention_tiles.costs(
        {each.label: attention_tiles.cost(each, per_clock, function=function, seldom=seldom) for each in compared}
    )


def _per_clock(ceilings: runs.Run) -> dict[str, float]:
    """What an SM does per clock, by the keys of a ceiling run."""
    known = rates(ceilings)
    found = {key: row["per_clock"]["value"] for key, row in known.items() if "per_clock" in row}
    return found | {key: known[key]["value"] for key in ("ldmatrix", "ldmatrix + cp.async")}


def _short(report: str, findings: int = 2) -> str:
    """A report's first findings, and how many more there are."""
    blocks = report.split("\n\n")
    left = len(blocks) - findings
    more = [f"... and {left} more finding{'s' * (left > 1)}"] if left > 0 else []
    return "\n\n".join(blocks[:findings] + more)


def findings(report: Report, shown: int = 2) -> None:
    """Print the first findings of the sanitizer, and how many more there are."""
    print(_short(str(report), shown))


def exercise(
    code: str,
    expected: Mapping[str, Tensor],
    goals: Mapping[str, int] | None = None,
    *,
    arch: str = "8.0",
    **arguments: Tensor | int | float,
) -> Markdown:
    """A reader's few lines, judged in the emulator: do they compile, keep the rules, compute what they should?

    `code` exports `extern "C" cudaError_t launch(...)`; `arguments` are its arguments in order. `expected`: what
    some tensors must hold afterwards; filled with NaN before, they show what was not written. `goals`: counters and
    the most that each may be, shown once all else is right. `arch`: the compute capability that the code needs."""
    source = accesses.write(code, "yours.cu")
    try:
        report = cudaemu.run(source, "launch", list(arguments.values()), names=list(arguments), arch=arch)
    except UserError as error:
        return _fence(str(error).replace(f"{source.parent}{os.sep}", ""), "text", "**Does not run.**")
    return _judged(report, expected, goals or {}, arguments)


def triton_exercise(
    code: str,
    expected: Mapping[str, Tensor],
    goals: Mapping[str, int] | None = None,
    *,
    arch: str = "9.0",
    **arguments: Tensor | int | float,
) -> Markdown:
    """`exercise` in Triton: `code` is a Python file with a function `launch`, which is called with the arguments."""
    source = accesses.write(code, "yours.py")
    names: dict[str, Any] = {"__name__": "yours"}
    try:
        with triton_code.device(arch) as reports, suppress(CheckFailed):  # the report says it
            exec(compile(code, str(source), "exec"), names)
            names["launch"](**arguments)
    except Exception as error:  # of Triton's compiler, or of the code
        said = "\n".join(filter(None, (str(error), str(error.__cause__ or ""))))
        return _fence(said.replace(f"{source.parent}{os.sep}", ""), "text", "**Does not run.**")
    from cudaemu.report import joined

    return _judged(joined(reports), expected, goals or {}, arguments)


def _judged(
    report: Report,
    expected: Mapping[str, Tensor],
    goals: Mapping[str, int],
    arguments: Mapping[str, Tensor | int | float],
) -> Markdown:
    """What a reader is told of a run: what is wrong, or that all is right."""
    said = []
    for name, want in expected.items():
        got = cast("Tensor", arguments[name])
        if wrong := (~got.isclose(want, rtol=1e-5, atol=1e-6)).nonzero().tolist():
            place, here = name + "".join(f"[{index}]" for index in wrong[0]), tuple(wrong[0])
            said.append(f"**Wrong:** {len(wrong)} of {want.numel()} elements.")
            said[-1] += f" `{place}` must be {want[here]:g}, got {got[here]:g}."
    if report.findings or report.status:
        said.append(_fence(_short(str(report)), "text", "**Breaks a rule:**").data)
    if not said:
        missed = any(report.counters[name] > most for name, most in goals.items())
        said = ["**Right**, and no rule broken" + (", **but not done: a goal is missed.**" if missed else ".")]
        for name, most in goals.items():
            count = report.counters[name]
            said.append(f"`{name}`: {count:,}, " + (f"goal: {most:,}" if count > most else "the goal is met."))
    return Markdown("\n\n".join(said))


def task(exercise: Stage | str) -> Markdown:
    """The task: a stage's step, or the exercise of that name. UserError if there is none."""
    name = exercise if isinstance(exercise, str) else exercise.name
    return Markdown(folder.page(exercises.find(name)).replace("\n## ", "\n#### ").replace("# ", "### ", 1))


def further(stage: Stage) -> Markdown:
    """How to practise what a notebook taught: the exercises of its stage, and the interview pages that refer to it."""
    found = sorted(exercises.of_stage(stage), key=lambda each: each.level)
    body = [[each.title, each.kind, each.level, f"`{folder.command(each)}`"] for each in found]
    parts = ["## Exercises", table(["", "kind", "level", "command"], body).data]
    pages = []
    for path in sorted((ROOT / "docs" / "interview").glob("[0-9]*.md")):
        text = path.read_text(encoding="utf-8")
        if f"notebooks/{stage.name}.ipynb" in text or f"kernels/{stage.name}/" in text:
            title = text.splitlines()[0].lstrip("# ")
            pages.append(f"[{title}](../docs/interview/{path.name})")
    parts += [f"Interview questions: {', '.join(pages)}."] if pages else []
    return Markdown("\n\n".join(parts))


def banks(stage: Stage, source: Path | None = None, *, verb: str | None = None) -> Beside:
    """The banks of a reader's kernel beside those of ours: of each the shared-memory request with most wavefronts, of
    those that are a `verb` ("load", "store", "ldmatrix").

    `source`: by default what the reader has written of the stage's step, in practice/. UserError if that was not begun,
    or if a kernel makes no such request."""
    chosen = source or folder.Folder(exercises.find(stage.name)).existing()
    pictures = []
    for kernel in (stage.kernel(source=chosen), stage.kernel()):
        traced = accesses.run(kernel)
        requests = traced.patterns(verb=verb)
        if not requests:
            raise UserError(f"{kernel.label}: warp 0 makes no request of shared memory" + (f", {verb}" if verb else ""))
        pictures.append(traced.banks(max(requests, key=lambda request: request.banks.count)))
    return Beside(*pictures)


def drill(kind: str, answers: Sequence[str] = (), *, seed: int = 0, count: int = COUNT) -> Markdown:
    """Questions with computed answers (`python -m kernels practice drill` lists the kinds), the answers folded away.

    `answers`: the reader's, in order; then it says which are right, and shows the figures of those that are not. The
    same `seed` asks the same questions. UserError for answers that cannot be read, or too many of them."""
    asked = questions(kind, seed, count)
    if not answers:
        return Markdown("\n".join(sheets.lines(asked)))
    if len(answers) > len(asked):
        raise UserError(f"answers must be at most {len(asked)}, one per question, got {len(answers)}")
    right = 0
    for number, (question, answer) in enumerate(zip(asked, answers), 1):
        verdict = question.judge(answer)
        right += verdict
        told = [f"**{number}.** {'Right' if verdict else 'No'}: **{question.answer}.** {question.why}"]
        told += [f"```text\n{question.drawing}\n```"] if question.drawing and not verdict else []
        display(Markdown("\n\n".join(told)))
        if question.figure and not verdict:
            display(question.figure())
    return Markdown(f"**{right} of {len(answers)} right.**")


def repeated(stage: Stage, *sizes: str, dtype: str = "fp16") -> Markdown:
    """How far the times of a stage's default kernel lie apart in all recorded runs on one GPU, and the clocks of those
    that counted them."""
    home, body = runs.runs("bench")[:1], []
    made = runs.runs("bench", runs.Only(home[0]["gpu"].split()[-1])) if home else []
    for size in sizes:
        found = runs.every(made, partial(runs.records, name=stage.name, dtype=dtype, size=size, default=True))
        rows = [record.row for _, records in found for record in records]
        times = [row["ms"]["median"] for row in rows]
        counted = [row["clock"]["clocks"] for row in rows if "clock" in row]
        if times:
            shown = map(markdown.milliseconds, (min(times), statistics.median(times), max(times)))
            apart = f"{max(counted) / min(counted):.2f}" if counted else "–"
            body.append([f"{size}, {dtype}", len(times), *shown, f"{max(times) / min(times):.2f}", apart])
    if not body:
        return Markdown(f"*{markdown.NOTHING.strip('*')}*")
    return table([stage.name, "runs", "shortest", "median", "longest", "longest ÷ shortest", "in clocks"], body)


def _not_recorded(run: str) -> Markdown:
    return Markdown(f"*{run}: not recorded yet. On a GPU `docs/results/record.sh docs/results {run}` does it.*")


def beside(stage: Stage, run: str, label: str, in_a_row: bool = False) -> Markdown:
    """A stage beside `label`, a changed copy of its source, which the recorded run `run`.json timed with it; or what it
    timed `in_a_row`, runs without a pause (`bench --sustained`)."""
    path = runs.RESULTS / f"{run}.json"
    if not path.exists():
        return _not_recorded(run)
    recorded = runs.load(path)
    head, body, _ = ladders.beside(runs.sustained(recorded) if in_a_row else recorded, stage.name, label)
    made = table(head, body)
    return Markdown(f"{made.data}\n\nRecorded: {recorded['gpu']}, {recorded['date'][:10]}, `docs/results/{path.name}`.")


def timed(
    stage: Stage,
    run: str,
    sizes: Sequence[str],
    label: Callable[[runs.Row], str | None],
    others: Sequence[str] = (),
) -> Markdown:
    """Times, clocks and SM clocks of what the recorded run `run`.json timed in turn: of the stage's rows for which
    `label` has a name, and of stages named in `others`."""
    path = runs.RESULTS / f"{run}.json"
    if not path.exists():
        return _not_recorded(run)
    recorded = runs.load(path)
    wanted = [
        (row, label(row) if name == stage.name else name)
        for size in sizes
        for name in (stage.name, *others)
        for row in recorded["rows"]
        if row["name"] == name and row["size"] == size
    ]
    body = [
        [
            row["size"],
            called,
            "{median:.4f} ({p20:.4f} to {p80:.4f})".format(**row["ms"]),
            f"{row['clock']['clocks']:,}",
            f"{row['clock']['ghz']:.2f} GHz",
            ", ".join(f"{why} {share:.0%}" for why, share in row["limited_by"].items()) or "nothing",
        ]
        for row, called in wanted
        if called
    ]
    made = table(["size", recorded["gpu"], "ms (20th to 80th percentile)", "clocks", "SM clock", "limited by"], body)
    return Markdown(f"{made.data}\n\nRecorded: {recorded['gpu']}, {recorded['date'][:10]}, `docs/results/{run}.json`.")


def hardware(stage: Stage, *names: str, dtype: str = "fp16") -> Markdown:
    """What ncu measured besides counters, as recorded; names are those of common/measure/ncu.py: "stall: barrier"."""
    found = [
        r for r in runs.recorded(kind="profile", name=stage.name, dtype=dtype) if set(names) & set(r.row["metrics"])
    ]
    if not found:
        return Markdown(
            f"*No profile of {stage.name} recorded yet: `python -m {stage.package} profile` on a GPU makes one.*"
        )
    body = [
        [r.row["size"], *(f"{r.row['metrics'][name]:,.1f}" if name in r.row["metrics"] else "–" for name in names)]
        for r in found
    ]
    return Markdown(f"{table(['size', *names], body).data}\n\n*{found[0].source}*")


def roofline(name: str = "gemm", dtype: str = "fp16", size: str = "4096") -> Figure | Markdown:
    """The recorded stages of a ladder under the rooflines of their GPU; a sentence where nothing is recorded."""
    bounds = Bounds()
    stages = [r for r in runs.rungs(name, dtype) if r.row["size"] == size and r.row["role"] != "peer"]
    found = [bound for record in stages if (bound := bounds.of(record))]
    if not found:
        return Markdown(f"*No profile and rates of the {name} stages at {size} are recorded yet: {MEASURE}*")
    return plot.roofline(
        found, f"{found[0].record.run['gpu']}, {dtype} {size}: what each stage reaches, under its roofs"
    )


def program(code: str, name: str = "program.cu") -> Markdown:
    """A whole CUDA program, with its main: what it prints, and below that the emulator's report."""
    source = accesses.write(code, name)
    line = [sys.executable, "-m", "cudaemu", str(source)]
    done = subprocess.run(line, cwd=ROOT, env=os.environ | PLAIN, capture_output=True, text=True)
    said = done.stderr.replace(f"{source.parent}{os.sep}", "").strip()
    return _fence(f"{done.stdout.rstrip()}\n\n{said}".strip(), "text", f"`$ python -m cudaemu {name}`")


def assembly(code: str, capability: str | Arch = "9.0") -> Markdown:
    """The PTX of kernels, without declarations and line information, and their SASS for a compute capability."""
    source = accesses.write(code, "assembly.cu")
    body = build.compile_host(source, {}, capability).ptx.partition("{")[2].rpartition("}")[0]
    ptx = [line.strip() for line in body.splitlines() if line.strip() and not re.match(r"\s*\.(loc|reg|param)\b", line)]
    functions = sass.functions(source, {}, capability).items()
    machine_code = [line for name, lines in functions for line in (f"{name}:", *(each.text for each in lines))]
    shown = [_fence("\n".join(lines), "text", what).data for what, lines in (("PTX:", ptx), ("SASS:", machine_code))]
    return Markdown("\n\n".join(shown))


def live(stage: Stage, *arguments: str) -> Markdown:
    """Time the stage here and now, beside the library and the stage before; without a GPU, say so."""
    if reason := stage.unfit:
        return Markdown(f"*Not timed here ({reason}): times come from recorded runs on a GPU.*")
    return command(stage, "bench", "--quick", *arguments)


def command(stage: Stage, *words: str) -> Markdown:
    """What `python -m kernels.NN_name WORDS` prints."""
    line = ["-m", stage.package, *words]
    done = subprocess.run([sys.executable, *line], cwd=ROOT, env=os.environ | PLAIN, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: a check failed, which is a result
        raise UserError(done.stderr.strip())
    text = done.stdout + (done.stderr if done.returncode else "")
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    return _fence(text, "text", f"`$ python {shlex.join(line)}`")


def machine() -> Markdown:
    """What runs the kernels here."""
    import torch

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU, so kernels run in the emulator"
    return Markdown(f"This machine: {where}. Compiler: nvcc {toolchain.find_nvcc().release}.")


def limits() -> Markdown:
    """What one multiprocessor has, per compute capability."""
    head = ["compute capability", *(f"{gpu.arch} ({gpu.devices})" for gpu in GPUS)]
    rows: dict[str, Sequence[object]] = {
        "threads per block, at most": [gpu.threads_per_block for gpu in GPUS],
        "warps resident per SM, at most": [gpu.warps for gpu in GPUS],
        "blocks resident per SM, at most": [gpu.blocks for gpu in GPUS],
        "32-bit registers per SM": [f"{gpu.registers:,}" for gpu in GPUS],
        "registers per thread, at most": [gpu.registers_per_thread for gpu in GPUS],
        "shared memory per SM": [f"{gpu.shared_kb} KB" for gpu in GPUS],
        "schedulers per SM": [gpu.quarters for gpu in GPUS],
    }
    return table(head, [[name, *values] for name, values in rows.items()])


NOTEBOOKS = ROOT / "notebooks"


def needs_triton(path: Path) -> bool:
    """Whether a notebook is one of those about Triton."""
    return path.stem[0] == "t"


def execute(path: Path, timeout: int = 600) -> NotebookNode:
    """The notebook, run from its first cell in a fresh kernel, without what differs from machine to machine.

    Its metadata name the recorded runs that it read, as "runs".
    nbclient.exceptions.CellExecutionError if a cell fails."""
    import nbformat
    from nbclient import NotebookClient

    book: NotebookNode = nbformat.read(path, as_version=4)
    book.cells.append(nbformat.v4.new_code_cell(USED))
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(book, timeout=timeout, kernel_name="python3", record_timing=False, resources=resources).execute()
    files = [file for output in book.cells.pop().outputs for file in output.text.split()]
    book.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}, "runs": files})
    return book


USED = "from common.results import runs\nprint(*sorted(runs.used))"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def main(arguments: Sequence[str] | None = None) -> int:
    import nbformat

    parser = argparse.ArgumentParser(prog="python -m common.notebook", description="Run notebooks, and save them.")
    names = sorted((path.stem for path in NOTEBOOKS.glob("*.ipynb")), key=course.order)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a notebook; default: all")
    chosen = [Path(name).stem for name in parser.parse_args(arguments).names]
    for name in chosen:
        if name not in names:
            parser.error(f"a name must be one of {', '.join(names)}, got '{name}'")
    engine.library()  # built now if need be: its output does not belong in a notebook
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in chosen or names]:
        if needs_triton(path) and not has_triton():
            print(f"{path.name}: left as it is: pip install triton (docs/triton.md)", flush=True)
            continue
        started = time.monotonic()
        nbformat.write(execute(path), path)
        print(f"{path.name}: {time.monotonic() - started:.0f} s, {path.stat().st_size / 1024:.0f} KB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
