"""Each notebook runs as a reader runs it, in Jupyter from top to bottom; what it quotes is what the files say now."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch

import kernels
from common import course, notebook
from common.packages import has_triton
from common.practice import exercises
from tests.tiers import core

PATHS = sorted(notebook.NOTEBOOKS.glob("*.ipynb"), key=lambda path: course.order(path.stem))
SECONDS = 60  # of processors, for each, once its kernels are in the cache
BYTES = 600 * 1024
QUOTES = ("header", "phase", "quote", "diff", "further", "recorded", "beside", "timed", "busy", "hardware", "repeated")


def texts(cell) -> list[str]:
    return [output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})]


def quotes(book) -> dict[str, list[str]]:
    return {
        f"{number}: {cell.source}": texts(cell)
        for number, cell in enumerate(book.cells)
        if cell.cell_type == "code" and any(f"notebook.{name}(" in cell.source for name in QUOTES)
    }


def test_there_is_one_per_stage():
    """What comes before the stages, in the order in which it is read; a notebook for each of them; two on Triton."""
    before, after = ["00_start_here", "00_the_machine"], ["t1_triton_matmul", "t2_triton_attention"]
    assert [path.stem for path in PATHS] == [*before, *(stage.name for stage in kernels.ladder()), *after]
    assert [path.stem for path in PATHS if notebook.needs_triton(path)] == after


CORE = ("00_start_here",)


@pytest.mark.parametrize(
    "path", core(PATHS, lambda path: path.stem if path.stem in CORE else None), ids=lambda path: path.stem
)
def test_runs_quickly_and_its_quotes_are_current(path: Path):
    if notebook.needs_triton(path) and not has_triton():
        pytest.skip("Triton is not installed: pip install triton (a gigabyte)")
    for _ in range(2):  # the second run, if need be, finds what it compiles in the cache
        started = sum(os.times()[:4])  # of processors, for this process and those it has waited for
        fresh = notebook.execute(path)  # raises if a cell fails
        seconds = sum(os.times()[:4]) - started
        if seconds <= SECONDS:
            break
    assert seconds <= SECONDS
    committed = nbformat.read(path, as_version=4)
    assert quotes(committed) == quotes(fresh), "run python -m common.notebook, and commit the notebooks"
    assert committed.metadata.runs == fresh.metadata.runs, (
        "it is made of other recorded runs than when it was committed"
    )


def test_they_are_committed_with_their_outputs():
    wrong = {path.name: found for path in PATHS if (found := _not_as_run(path))}
    assert not wrong, "run python -m common.notebook, and commit the notebooks"


def _not_as_run(path: Path) -> list[str]:
    """What is wrong with a notebook's outputs."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    images = [output for output in outputs if "image/png" in output.get("data", {})]
    rules = {
        "the kernel is python3": book.metadata.kernelspec.name == "python3",
        f"{BYTES} bytes at most": path.stat().st_size <= BYTES,
        "all cells were executed": all(cell.execution_count for cell in code),
        "nine cells in ten show something": sum(bool(cell.outputs) for cell in code) >= 0.9 * len(code),
        "no cell failed": not any(output.output_type == "error" for output in outputs),
        "a picture": bool(images),
    }
    return [rule for rule, kept in rules.items() if not kept]


def test_they_ask_and_answer():
    """Five questions, each answer folded away."""
    wrong = {}
    for path in PATHS:
        cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
        answers = [text for text in cells if "<summary>Answer</summary>" in text]
        folded = all(text.count("<details>") == text.count("</details>") == 1 for text in answers)
        if not (len(answers) == 5 and folded):
            wrong[path.name] = f"{len(answers)} answers, " + ("each folded" if folded else "not each folded")
    assert not wrong


def test_each_stage_s_notebook_ends_with_exercises_and_the_way_on():
    wrong = []
    for path in PATHS:
        if path.stem not in {stage.name for stage in kernels.ladder()}:
            continue
        exercises, last = nbformat.read(path, as_version=4).cells[-2:]
        if exercises.source != "notebook.further(stage)" or "](" not in last.source:
            wrong.append(path.name)
    assert not wrong


def test_each_notebook_s_last_cell_names_the_next_exercise():
    wrong = []
    for path in PATHS:
        last = nbformat.read(path, as_version=4).cells[-1].source
        named = re.findall(r"python -m kernels(?:\.(\w+))? practice(?: (?!drill)([\w-]+))?", last)
        if not named or not all(exercises.find(package or word) for package, word in named[:1]):
            wrong.append(path.name)
    assert not wrong


BODY = """
  int row = tile_m * 32 + threadIdx.x / 32, col = tile_n * 32 + threadIdx.x % 32;
  float sum = 0.0f;
  for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + col];
  C[row * N + col] = sum;
"""
SOLUTIONS = {  # notebook, cell -> what a reader has to change
    ("00_start_here", "exercise-add-code"): [("n / 64", "(n + 63) / 64"), ("i <= n", "i < n")],
    ("00_start_here", "exercise-index-code"): [
        ("row = 0;", "row = (blockIdx.x * blockDim.x + threadIdx.x) / 64;"),
        ("col = 0;", "col = (blockIdx.x * blockDim.x + threadIdx.x) % 64;"),
    ],
    ("00_start_here", "exercise-barrier-code"): [
        ("    float mean", "    __syncthreads();\n    float mean"),
        ("    ring[i] = mean", "    __syncthreads();\n    ring[i] = mean"),
    ],
    ("01_naive", "your-turn-code"): [("  // your lines", f"{BODY}  // your lines")],
    ("h1_wgmma", "exercise-descriptor-code"): [
        ("stride = 0, mode = 0", "stride = 512, mode = 2"),
        ("next = 0", "next = 32"),
    ],
    ("h1_wgmma", "exercise-wait-code"): [
        ('0;" ::: "memory");  // your', '0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");  // your'),
    ],
    ("h2_tma", "exercise-phase-code"): [
        ("expected = 0", "expected = sizeof(ring[0])"),
        ("parity = 0", "parity = slice / 2 % 2"),
    ],
    ("t1_triton_matmul", "exercise-bias-code"): [
        ("# your lines", "acc = tl.maximum(acc + tl.load(bias + n, mask=n < N, other=0.0), 0.0)"),
    ],
    ("t1_triton_matmul", "exercise-mask-code"): [("mask=n < N", "mask=(k[:, None] < K) & (n < N)")],
    ("t1_triton_matmul", "exercise-pitch-code"): [
        ("C, M, N, K, BLOCK: tl.constexpr", "C, M, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr")
    ],
    ("t2_triton_attention", "exercise-online-code"): [
        (
            "m, total = 0.0, total + tl.sum(tl.exp(x), 0)  # your lines",
            "new = tl.maximum(m, tl.max(x, 0)); m, total = new, total * tl.exp(m - new) + tl.sum(tl.exp(x - new), 0)",
        )
    ],
    ("t2_triton_attention", "exercise-sums-code"): [
        ("tl.zeros((BLOCK,), tl.float32)", "tl.zeros((BLOCK, BLOCK), tl.float32)"),
        ("total += tl.sum(p, 1)", "total += p"),
        ("tl.store(Sums + row, total)", "tl.store(Sums + row, tl.sum(total, 1))"),
    ],
}


DONE = "**Right**, and no rule broken."


@pytest.mark.core(every=3)
@pytest.mark.parametrize("place", SOLUTIONS, ids=lambda place: place[1])
def test_an_exercise_is_open_until_it_is_solved(place):
    name, cell = place
    if name.startswith("t") and not has_triton():
        pytest.skip("Triton is not installed: pip install triton (a gigabyte)")
    book = nbformat.read(notebook.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    source = next(each.source for each in book.cells if each.id == cell)
    assert DONE not in _judged(source)
    for done, (old, new) in enumerate(SOLUTIONS[place], 1):
        assert source.count(old) == 1
        source = source.replace(old, new)
        assert (DONE in _judged(source)) == (done == len(SOLUTIONS[place]))
    assert ", goal: " not in _judged(source)


def _judged(source: str) -> str:
    code, _, call = source.rpartition("\n")
    names = {"torch": torch, "notebook": notebook}
    exec(code, names)
    return eval(call, names).data


def test_links_lead_somewhere():
    wrong = [
        f"{path.name}: {link}"
        for path in PATHS
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown"
        for link in re.findall(r"\]\(([^)]*)\)", cell.source)
        if not link.startswith(("http", "#")) and not _leads_somewhere(path.parent, link)
    ]
    assert not wrong


def _leads_somewhere(folder: Path, link: str) -> bool:
    """Whether a file is there, with the heading that an anchor names."""
    file, _, anchor = link.partition("#")
    path = folder / file
    return path.exists() and (not anchor or anchor in anchors(path.read_text(encoding="utf-8")))


def anchors(text: str) -> list[str]:
    """What GitHub calls the headings of a Markdown file in links."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings]


def test_the_glossary_has_every_term_once():
    names = anchors((notebook.ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert len(names) > 100 and len(set(names)) == len(names)
    assert {"warp", "littles-law", "extern-c", "cp-async"} <= set(names)
    assert {"stmatrix", "named-barrier", "stream-k", "intra-warpgroup-overlap"} <= set(names)


@pytest.mark.core(every=2)
@pytest.mark.parametrize("directory", [notebook.ROOT, notebook.NOTEBOOKS], ids=["root", "notebooks"])
def test_first_cell_finds_the_course_from(directory: Path):
    """jupyter starts kernels in the notebook's directory, other tools in the root."""
    path = next(path for path in PATHS if path.stem == kernels.ladder()[0].name)
    book = nbformat.read(path, as_version=4)
    first = next(cell.source for cell in book.cells if cell.cell_type == "code")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = f"{first}\nprint(stage.name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == path.stem, done.stderr
