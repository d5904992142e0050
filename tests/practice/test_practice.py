"""The verb `practice` and the reader's folder: nothing of the reader's is lost, and everything is said."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from common import notebook
from common.practice import drawn, exercises, folder
from common.practice.folder import Folder, Progress
from common.verbs import practice as verb
from cudaemu.errors import UserError
from tests.practice import sources

ROOT = Path(__file__).parents[2]
NAME, PACKAGE = "06_padding", "kernels.06_padding"
EXERCISE = exercises.find(NAME)


@pytest.fixture
def practice(command, tmp_path):
    """The stage's verb, with a folder of its own."""
    return lambda *words: command(PACKAGE, "practice", "--folder", tmp_path, *words)


def test_it_begins_with_a_starter_and_its_task(practice, tmp_path):
    done = practice()
    assert done.status == 0 and "Read " in done.out and "TASK.md" in done.out
    here = tmp_path / NAME
    assert (here / "kernel.cu").read_text() == EXERCISE.start
    task = (here / "TASK.md").read_text()
    assert "launch_gemm(" in task and "bank conflicts of loads = 0" in task and "Predict first" in task
    assert "counted at 256 (M = 256, N = 256, K = 256), fp16:" in task
    for line in re.findall("^python .*", task, re.MULTILINE):  # where the reader's files are
        assert str(tmp_path) in line, line
    assert Progress(tmp_path).of(EXERCISE)["begun"] and not list(tmp_path.glob(".0*"))


def test_a_task_names_the_macros_that_its_starter_lacks():
    page = folder.page(exercises.find("h6"))
    assert "must declare the macro `HEAD_DIM` (64 or 128); it is checked with 128" in page
    assert "must declare" not in folder.page(exercises.find("h7"))


def test_what_was_written_is_checked_and_never_written_over(practice, tmp_path):
    practice()
    file = tmp_path / NAME / "kernel.cu"
    done = practice()
    assert done.status == 1 and "missed" in done.out and "the unchanged starter" in done.out
    assert "0 of 10 points" in done.out
    file.write_text(EXERCISE.solution.read_text())
    done = practice("--check")
    assert done.status == 0 and "Solved: 10 of 10 points" in done.out and "Next: python -m kernels" in done.out
    assert file.read_text() == EXERCISE.solution.read_text()
    record = Progress(tmp_path).of(EXERCISE)
    assert record["solved"] and record["checks"] == 2 and record["points"] == 10
    with pytest.raises(UserError, match="exists.*--afresh"):
        Folder(EXERCISE, tmp_path).begin()


def test_a_fresh_start_keeps_what_was_there(practice, tmp_path):
    practice()
    for number in (1, 2):
        (tmp_path / NAME / "kernel.cu").write_text(f"// mine {number}")
        done = practice("--afresh")
        assert done.status == 0 and f"{NAME}.kept-{number}" in done.out
        assert (tmp_path / f"{NAME}.kept-{number}" / "kernel.cu").read_text() == f"// mine {number}"
        assert (tmp_path / NAME / "kernel.cu").read_text() == EXERCISE.start


def test_hints_one_after_the_other(practice):
    said = [practice("--hint").out for _ in range(4)]
    for number, text in enumerate((*EXERCISE.hints, EXERCISE.hints[-1])):
        assert said[number].strip() == f"Hint {min(number + 1, 3)} of 3: {text}"


def test_the_solution_is_a_diff_from_the_reader_s_file(practice, tmp_path):
    assert "--- the starter" in practice("--solution").out
    practice()
    (tmp_path / NAME / "kernel.cu").write_text("// mine\n")
    out = practice("--solution").out
    assert "-// mine" in out and "+++ kernels/06_padding/kernel.cu" in out
    (tmp_path / NAME / "kernel.cu").write_text(EXERCISE.solution.read_text())
    assert "is our solution, word for word" in practice("--solution").out


def test_a_starter_that_was_moved(practice, tmp_path):
    done = practice("--check")
    assert done.status == 2 and "was not begun" in done.err and "--afresh" in done.err
    practice()
    file = tmp_path / NAME / "kernel.cu"
    file.rename(tmp_path / NAME / "mine.cu")
    done = practice()
    assert done.status == 2 and "is not there" in done.err and "mine.cu" in done.err and "--source" in done.err
    (tmp_path / NAME).rename(tmp_path / "elsewhere")
    for words in ((), ("--check",)):
        done = practice(*words)
        assert done.status == 2 and "is gone" in done.err and not (tmp_path / NAME).exists()
    done = practice("--source", tmp_path / "elsewhere" / "mine.cu")
    assert done.status == 1 and "missed" in done.out
    assert practice("--afresh").status == 0 and (tmp_path / "elsewhere" / "mine.cu").exists()


def test_a_folder_of_another_version_says_so(practice, tmp_path, monkeypatch):
    practice()
    record = tmp_path / NAME / ".starter.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, "version": "0.1.0 (abc)", "text": known["text"] + "// older\n"}))
    monkeypatch.setattr(folder.terminal, "announce", lambda text: print(text))
    done = practice()
    assert "version 0.1.0 (abc)" in done.out and done.status == 1
    record.write_text("{")
    assert practice().status == 1, "a record that cannot be read stops nothing"


@pytest.mark.parametrize("text", ["[1,", '{"06_padding": {"hints": "x"}}', '{"06_padding": {"points": "x"}}',
                                  '{"06_padding": {"hints": -7}}', '{"06_padding": {"checks": null}}'])  # fmt: skip
def test_progress_that_cannot_be_read_is_kept_aside(practice, tmp_path, monkeypatch, text):
    practice()
    (tmp_path / ".progress.json").write_text(text)
    monkeypatch.setattr(folder.terminal, "announce", lambda text: print(text))
    done = practice("--hint")
    assert done.status == 0 and "cannot be read" in done.out
    assert (tmp_path / ".progress.unreadable.json").read_text() == text
    assert Progress(tmp_path).of(EXERCISE) == {"hints": 1}


def test_a_check_is_told_where_progress_cannot_be_recorded(practice, tmp_path, monkeypatch):
    practice()
    monkeypatch.setattr(folder.os, "replace", lambda *paths: (_ for _ in ()).throw(PermissionError(13, "denied")))
    done = practice()
    assert done.status == 2 and "the unchanged starter" in done.out and "cannot write" in done.err
    assert not list(tmp_path.glob(".progress-*"))


def test_the_folder_is_in_what_is_to_be_typed(practice, tmp_path):
    assert f"python -m {PACKAGE} practice --folder {tmp_path} " in practice().out


def test_a_folder_that_cannot_be_written(command, tmp_path):
    (tmp_path / "file").write_text("")
    done = command(PACKAGE, "practice", "--folder", tmp_path / "file")
    assert done.status == 2 and "cannot" in done.err
    assert (tmp_path / "file").read_text() == ""


def test_a_starter_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(folder.os, "rename", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Folder(EXERCISE, tmp_path).begin()
    assert not list(tmp_path.iterdir())


def test_the_list(command, tmp_path):
    Progress(tmp_path).note(EXERCISE, begun="2026-11-23")
    Progress(tmp_path).note(exercises.find("07_cp_async"), points=5.0)
    Progress(tmp_path).note(exercises.find("08_multi_stage"), solved="2026-11-23")
    (tmp_path / ".progress.json").write_text(
        (tmp_path / ".progress.json").read_text().replace("{", '{"99_gone": {"points": 1},', 1)
    )
    out = command("kernels", "practice", "--folder", tmp_path, "--list").out
    for name, state in ((NAME, "begun"), ("07_cp_async", "5 of 10"), ("08_multi_stage", "solved")):
        assert re.search(rf"^ +{name} .*{state} *$", out, re.M)
    assert f"1 of {len(exercises.catalogue())} solved" in out and "another version of the course: 99_gone" in out
    out = command("kernels", "practice", "--folder", tmp_path, "--topic", "Hopper", "--kind", "step").out
    assert "h1_wgmma" in out and NAME not in out
    assert "Did you mean 'Hopper'" in command("kernels", "practice", "--topic", "hoper").err


def test_without_a_name_it_says_which_is_next(command, tmp_path):
    out = command("kernels", "practice", "--folder", tmp_path).out
    assert "Next: vector_add" in out and len(out.splitlines()) < 20 and "0 of 14" in out
    Progress(tmp_path).note(exercises.find("vector_add"), solved="2026-11-28")
    out = command("kernels", "practice", "--folder", tmp_path).out
    assert "Next: transpose" in out and "1 of 14" in out


def test_first_kernels_have_an_order_and_then_come_the_steps():
    firsts = tuple(each.name for each in exercises.catalogue() if each.kind == "first")
    assert firsts == exercises.FIRST_STEPS
    last = exercises.find(firsts[-1])
    assert exercises.following(last, set(firsts)).name == "02_block_tile"
    assert exercises.following(exercises.find("02_block_tile"), set()).name == "03_thread_tile"
    everything = {each.name for each in exercises.catalogue()}
    assert exercises.following(last, everything) is None
    assert exercises.following(None, everything - {"06-rows"}).name == "06-rows"


def test_which_python(monkeypatch, tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(other) in verb.other_python() and Path(sys.executable).name in verb.other_python()
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert not verb.other_python()


@pytest.mark.full
def test_keys_while_watching(tmp_path):
    """In a terminal: a hint, the bars, and on to the next exercise."""
    Folder(EXERCISE, tmp_path).begin()
    command = [sys.executable, "-m", PACKAGE, "practice", "--folder", str(tmp_path), "--watch"]
    inner, outer = pty.openpty()
    with subprocess.Popen(command, cwd=ROOT, stdin=outer, stdout=outer, stderr=outer) as process:
        os.close(outer)
        said = b""
        try:
            for key, wanted in (("", b"h hint"), ("h", b"Hint 1 of 3"), ("l", b"first kernels"), ("n", b"Write "),
                                ("", b"h hint"), ("q", b"")):  # fmt: skip
                os.write(inner, key.encode())
                while wanted not in said:
                    said += os.read(inner, 4096)
                said = b""
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(inner)
    assert (tmp_path / "07_cp_async" / "kernel.cu").is_file()


def test_what_a_first_kernel_s_threads_touch_is_drawn():
    exercise = exercises.find("transpose")
    text = drawn.accesses(exercise.solution, exercise)
    assert "global load, the first of 4: 32 lanes × 4 bytes, 4 sectors" in text and "shared load" in text
    assert "wavefront 2" not in text and all(len(line) <= 100 for line in text.splitlines())
    loses = sources.edited(exercise, "[TILE + 1]", "[TILE]")
    assert "32 wavefronts" in drawn.accesses(loses, exercise)


@pytest.mark.parametrize(
    ("package", "words", "said"),
    [
        ("kernels", ("06_paddin",), "no exercise '06_paddin'. Did you mean 06_padding"),
        ("kernels", ("99",), "has no stage '99'"),
        ("kernels", ("--check",), "name the exercise"),
        ("kernels", ("transpose", "--minutes", "20"), "with --watch"),
        ("kernels", (NAME, "--check", "--hint"), "not allowed with"),
        ("kernels.01_naive", (), "has no step to practise"),
        (PACKAGE, ("nonsense",), "no exercise 'nonsense'"),
        (PACKAGE, ("--source", "no.cu"), "cannot read no.cu"),
        (PACKAGE, ("",), "no exercise ''"),
        ("kernels", ("",), "no exercise ''"),
        ("kernels", ("--topic", ""), "no topic ''"),
    ],
)
def test_what_is_no_exercise(command, tmp_path, package, words, said):
    done = command(package, "practice", "--folder", tmp_path, *words)
    assert done.status == 2 and said in done.err and not list(tmp_path.iterdir())


@pytest.mark.full
def test_blind(practice, tmp_path):
    """What is wrong is said, not where or by whom."""
    exercise = exercises.find("02_block_tile")
    source = sources.edited(exercise, "__syncthreads();  // everybody waits for all readers", "// ")
    words = ("02_block_tile", "--source", source)
    told, hidden = (_ladder(practice, tmp_path, *words, *more) for more in ((), ("--blind",)))
    assert "breaks a rule" in told and "race" in told
    assert "breaks a rule" in hidden and "race" not in hidden.replace("edited_02_block_tile_race", "")


def _ladder(practice, tmp_path, *words) -> str:
    command = [sys.executable, "-m", "kernels", "practice", "--folder", str(tmp_path), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.full
def test_watching(tmp_path):
    """Each save is checked; Ctrl-C ends it, and what was recorded before stays."""
    Folder(EXERCISE, tmp_path).begin()
    file = tmp_path / NAME / "kernel.cu"
    command = [sys.executable, "-m", PACKAGE, "practice", "--folder", str(tmp_path), "--watch"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert "Not solved yet" in _round(process.stdout)
            (tmp_path / "new.cu").write_text(EXERCISE.solution.read_text())
            (tmp_path / "new.cu").replace(file)
            assert "Solved: 10 of 10" in _round(process.stdout)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    record = json.loads((tmp_path / ".progress.json").read_text())[NAME]
    assert record["checks"] == 2 and record["solved"]


def _round(stream) -> str:
    said = ""
    for line in stream:
        said += line
        if re.search(r"\d+\.\d s; again when .*kernel.cu changes", line):
            return said
    raise AssertionError(said)


# ---- in notebooks ----------------------------------------------------------------------------------------------------


def test_the_task_in_a_notebook():
    text = notebook.task(exercises.find("06").stage).data
    assert text.startswith("### 06_padding · ") and "#### What must hold" in text and "# check it once" in text
    assert notebook.task("06-rows").data.startswith("### 06-rows")
    with pytest.raises(UserError, match="no exercise"):
        notebook.task("06-rovs")


def test_the_reader_s_banks_stand_beside_ours():
    stage = EXERCISE.stage
    row = notebook.banks(stage, sources.start(EXERCISE), verb="ldmatrix")
    yours, ours = (" ".join(text.get_text() for text in picture.texts) for picture in row.pictures)
    assert yours != ours and "8" in yours
    wide, high = Image.open(io.BytesIO(row._repr_png_())).size
    sizes = [Image.open(io.BytesIO(picture._repr_png_())).size for picture in row.pictures]
    assert wide == sum(w for w, _ in sizes) and high == max(h for _, h in sizes)
    with pytest.raises(UserError, match="makes no request"):
        notebook.banks(stage, sources.start(EXERCISE), verb="copy")
