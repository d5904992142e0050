"""Each notebook runs from top to bottom without a GPU, quickly, and what it quotes is what the files say now."""

from __future__ import annotations

import base64
import gc
import importlib
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

# jsonschema's grammar of IRIs, of which notebooks have none, takes two seconds to import in each process.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
nbformat = pytest.importorskip("nbformat", reason="jupyter is not installed: pip install nbformat nbclient ipykernel")
pytest.importorskip("nbclient", reason="jupyter is not installed: pip install nbformat nbclient ipykernel")

from IPython.core.displayhook import DisplayHook  # noqa: E402
from IPython.core.interactiveshell import InteractiveShell  # noqa: E402
from IPython.utils.capture import capture_output  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402

import kernels  # noqa: E402
from common import notebook  # noqa: E402
from common.figures.draw import Picture  # noqa: E402
from cudaemu import session  # noqa: E402

PATHS = sorted(notebook.NOTEBOOKS.glob("*.ipynb"))
SECONDS = 60  # of processors, for each, once the emulator is built
BYTES = 600 * 1024
QUOTES = ("notebook.header(", "notebook.phase(", "notebook.quote(", "notebook.diff(")
each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def texts(cell) -> list[str]:
    return [output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})]


def quotes(book) -> dict[str, list[str]]:
    return {
        f"{number}: {cell.source}": texts(cell)
        for number, cell in enumerate(book.cells)
        if cell.cell_type == "code" and any(word in cell.source for word in QUOTES)
    }


def executed(path: Path):
    """The notebook, run from its first cell: by Jupyter, or by IPython in a fork of this process, which has imported
    what takes three seconds to import. Jupyter runs one in any case, and all where there is a GPU, which a fork cannot
    use."""
    if torch.cuda.is_available() or path == PATHS[0]:
        return notebook.execute(path)
    result, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(result)
            with open(answer, "w") as file:
                try:
                    file.write(cells_run(path))
                except BaseException:
                    file.write(traceback.format_exc())
        finally:
            os._exit(0)  # nothing of what pytest would do at the end of a process
    os.close(answer)
    with open(result) as file:
        said = file.read()
    os.waitpid(child, 0)
    assert said.startswith("{"), f"the process ended: {said}"
    book = nbformat.reads(said, as_version=4)
    failed = [output for cell in book.cells for output in cell.get("outputs", ()) if output.output_type == "error"]
    assert not failed, "\n".join(failed[0].traceback)
    return book


def laid_out(picture: Picture) -> bytes:
    """What stands for a picture's PNG in a fork: all is drawn but the pixels, which take as long again. Those of each
    kind of figure are tests/figures', and those of the notebook that Jupyter runs."""
    FigureCanvasAgg(picture)
    picture.draw_without_rendering()
    return b""


class Shell(InteractiveShell):
    """What cells show is kept, not printed."""

    class displayhook_class(DisplayHook):
        def write_format_data(self, format_dict, md_dict=None):
            self.shell.display_pub.publish(format_dict)


def command_run(line: list[str], *, cwd: Path, env: dict[str, str], **_: object) -> subprocess.CompletedProcess:
    """subprocess.run for `python -m MODULE WORDS` and `python -c CODE`, likewise in a fork: the course's modules are
    imported anew there, as the command would find them, torch is not; a stage's kernels come from its bundle. A fork
    has only the thread that made it: torch's must be but one."""
    interpreter, option, module, *words = line
    assert interpreter == sys.executable and option in ("-m", "-c") and torch.get_num_threads() == 1
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                os.chdir(cwd)
                os.environ.update(env)
                for number, file in enumerate((out, err), 1):
                    os.dup2(file.fileno(), number)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                for name in [name for name in sys.modules if name.partition(".")[0] in ("common", "kernels", "tests")]:
                    del sys.modules[name]
                sys.path.insert(0, str(cwd))
                sys.argv = [module, *words]
                if module.startswith("kernels."):
                    importlib.import_module("tests.bundle").compile_together(pytest.MonkeyPatch())
                if option == "-m":
                    runpy.run_module(module, run_name="__main__", alter_sys=True)
                else:
                    exec(module, {"__name__": "__main__"})
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(line, status, out.read(), err.read())


def cells_run(path: Path) -> str:
    """The notebook as JSON, its cells run by IPython in this process, up to one that fails."""
    os.chdir(path.parent)
    notebook.subprocess = SimpleNamespace(run=command_run)
    Picture._repr_png_ = laid_out
    session._idle.clear()  # modules that the other process, too, thinks its own
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != notebook.ROOT]
    gc.freeze()
    shell = Shell.instance()
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        if cell.cell_type != "code":
            continue
        with capture_output() as captured:
            done = shell.run_cell(cell.source)
        shown = [{kind: _text(data) for kind, data in output.data.items()} for output in captured.outputs]
        cell.outputs = [nbformat.v4.new_output("display_data", data) for data in shown]
        if not done.success:
            error = done.error_before_exec or done.error_in_exec
            trace = traceback.format_exception(error)
            cell.outputs = [nbformat.v4.new_output("error", ename=repr(error), evalue="", traceback=trace)]
            break
    return nbformat.writes(book)


def _text(data: str | bytes) -> str:
    """What a notebook's JSON says: a picture's PNG in base 64, as Jupyter writes it."""
    return data if isinstance(data, str) else base64.b64encode(data).decode()


@pytest.fixture(scope="session")
def built():
    """Build the emulator, if that has not happened yet: it is not a notebook's time."""
    from common.figures import trace

    trace.snippet('extern "C" cudaError_t launch(float *x) { return cudaSuccess; }\n'
                 "__global__ void kernel(float *x) { *x = 1; }\n"
                 'extern "C" cudaError_t go(float *x) { kernel<<<1, 1>>>(x); return cudaGetLastError(); }\n',
                 "go", x=torch.zeros(1))  # fmt: skip


def test_there_is_one_per_stage_so_far():
    """What comes before the stages, in the order in which it is read; then, with no gaps, a notebook per stage."""
    before = ["00_start_here", "00_the_machine"]
    names = [path.stem for path in PATHS]
    assert names[: len(before)] == before
    assert names[len(before) :] == [stage.name for stage in kernels.ladder()][: len(names) - len(before)]
    assert len(names) >= len(before) + 10


@each
def test_runs_quickly_and_its_quotes_are_current(path: Path, built):
    for _ in range(2):  # the second time, if need be: what it compiles is cached, as it is for a reader who comes back
        started = sum(os.times()[:4])  # of processors, for this process and those it has waited for
        fresh = executed(path)  # raises if a cell fails
        seconds = sum(os.times()[:4]) - started
        if seconds <= SECONDS:
            break
    assert seconds <= SECONDS
    committed = quotes(nbformat.read(path, as_version=4))
    assert committed == quotes(fresh), "run python -m common.notebook, and commit the notebooks"


@each
def test_is_committed_with_its_outputs(path: Path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert book.metadata.kernelspec.name == "python3"
    assert path.stat().st_size <= BYTES
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "a cell was not executed"
    assert sum(bool(cell.outputs) for cell in code) >= 0.9 * len(code)
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    images = [output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(images) >= 4


@each
def test_asks_and_answers(path: Path):
    """Three to five questions, each answer folded away; links lead to files that exist."""
    book = nbformat.read(path, as_version=4)
    answers = [c.source for c in book.cells if c.cell_type == "markdown" and "<summary>Answer</summary>" in c.source]
    assert 3 <= len(answers) <= 5
    assert all(text.count("<details>") == text.count("</details>") == 1 for text in answers)
    for cell in book.cells:
        if cell.cell_type == "markdown":
            for target in cell.source.split("](")[1:]:
                link = target.split(")")[0]
                assert link.startswith(("http", "#")) or _leads_somewhere(path.parent, link), link


def _leads_somewhere(folder: Path, link: str) -> bool:
    """Whether a file is there, with the heading that an anchor names; the notebook of a stage may be still to come."""
    file, _, anchor = link.partition("#")
    if not (folder / file).exists():
        return Path(file).stem in {stage.name for stage in kernels.ladder()}
    return not anchor or anchor in anchors((folder / file).read_text(encoding="utf-8"))


def anchors(text: str) -> list[str]:
    """What GitHub calls the headings of a Markdown file in links."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings]


def test_the_glossary_has_every_term_once():
    names = anchors((notebook.ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"))
    assert len(names) > 100 and len(set(names)) == len(names)
    assert {"warp", "littles-law", "extern-c", "cp-async"} <= set(names)


@pytest.mark.parametrize("directory", [notebook.ROOT, notebook.NOTEBOOKS], ids=["root", "notebooks"])
def test_first_cell_finds_the_course_from(directory: Path, monkeypatch):
    """jupyter starts kernels in the notebook's directory, other tools in the root."""
    path = next(path for path in PATHS if path.stem == kernels.ladder()[0].name)
    book = nbformat.read(path, as_version=4)
    first = next(cell.source for cell in book.cells if cell.cell_type == "code")
    code = f"import IPython\n{first}\nprint(stage.name)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() != notebook.ROOT])
    run = subprocess.run if torch.cuda.is_available() else command_run
    done = run([sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == path.stem, done.stderr
