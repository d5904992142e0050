"""The interview's questions: their form, their links and commands, and how a sheet is drawn."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from common import cli, course
from common.practice import interview
from common.practice.drills.question import KINDS
from common.results.runs import ROOT
from common.stage import macros
from cudaemu.errors import UserError

EVERY = [question for topic in interview.topics() for question in topic.questions]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
COMMAND = re.compile(r"`((?:python -m|cudaemu) [^`]+)`")


def test_there_are_enough_of_each_level_and_no_two_alike():
    levels = Counter(question.level for question in EVERY)
    assert len(EVERY) >= 120 and set(levels) == set(interview.LEVELS) and min(levels.values()) >= 15
    assert len({question.title for question in EVERY}) == len(EVERY)
    for topic in interview.topics():
        assert len(topic.questions) >= 5, topic.title


@pytest.mark.parametrize("question", EVERY, ids=lambda question: question.title[:40])
def test_each_is_asked_answered_and_shown(question):
    assert 3 <= question.minutes <= 10
    assert question.title[-1] in "?." and len(question.title) <= 160
    words = len(question.answer.split())
    assert 25 <= words <= 140, f"{words} words: a concise answer"
    assert LINK.search(question.see) or COMMAND.search(question.see), "where the course shows it"
    assert min(map(len, (question.followup, question.weak, question.strong))) >= 20
    told = " ".join((question.answer, question.see, question.followup, question.weak, question.strong))
    assert not re.search(r"\bTODO\b|\.\.\.|[{}](?!float|\w+ \w+;)", re.sub(r"`[^`]*`", "", told)), told


def test_topics_that_an_interviewer_asks_for_are_there():
    """What people ask about today's GPUs: each word in a title or an answer of its own."""
    wanted = (
        "async proxy", "expect_tx", "parity", "descriptor", "setmaxnreg", "ping-pong", "tensor map", "multicast",
        "distributed shared memory", "stream-k", "split-k", "skinny", "grouped gemm", "bias", "fp8", "w4a16", "2:4",
        "backward", "determinis", "paged", "cu_seqlens", "sliding window", "alibi", "softcap", "mla ", "bottom-right",
        "__threadfence", "acquire", "volatile", "transpose", "layernorm", "evict_first", "no_allocate", "tlb",
        "roofline", "stall", "nsight systems", "cuda graphs", "power", "kahan", "3xtf32", "batch invariance",
        "all-gather", "nvlink", "ring attention", "persistent",
    )  # fmt: skip
    text = "\n".join(f"{question.title} {question.answer} {question.followup}" for question in EVERY).lower()
    assert [word for word in wanted if word not in text] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", sorted(interview.FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    wrong = []
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if not path.exists() or (anchor and anchor not in anchors(path)):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


def commands() -> list[str]:
    return sorted({command for question in EVERY for command in COMMAND.findall(f"{question.see} {question.answer}")})


@pytest.mark.parametrize("command", commands())
def test_commands_are_understood(command):
    """Parsed as they would be, not run: the stage, the verb, its options and their values, the file."""
    words = command.split()
    if words[0] == "cudaemu":
        assert (ROOT / words[-1]).is_file()
    elif words[2] == "kernels":
        assert words[3:5] == ["practice", "drill"] and words[5] in KINDS
    elif words[2].startswith("kernels."):
        stage = course.load(words[2].removeprefix("kernels."))
        assert stage.package == words[2] and words[3] in cli.VERBS
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"common.verbs.{words[3]}").add_arguments(parser)
        args = parser.parse_args(words[4:])
        for given in getattr(args, "variant", None) or []:
            assert str(given).partition("=")[0] in macros(stage.source), given
    else:
        assert importlib.util.find_spec(words[2]) is not None


def test_measured_numbers_are_in_tables_of_records():
    """TFLOP/s and the like in an answer are of a data sheet or of a sum that stands beside it, not of our runs."""
    recorded = set()
    for path in (ROOT / "docs" / "results").glob("ladder*.json"):
        recorded |= {f"{row['tflops']:.0f} TFLOP/s" for row in json.loads(path.read_text())["rows"]}
    assert recorded
    allowed = {"600 TFLOP/s", "500 TFLOP/s", "989 TFLOP/s"}  # a GPU that is assumed; the data sheet
    for question in EVERY:
        said = set(re.findall(r"\d+ TFLOP/s", question.answer + question.followup))
        assert not (said & recorded) - allowed, question.title


# ---- drawing ----


@pytest.mark.parametrize("level", interview.LEVELS)
@pytest.mark.parametrize("minutes", [10, 45, 90])
@pytest.mark.parametrize("seed", range(3))
def test_a_sheet_fits_the_time_and_is_balanced(level, minutes, seed):
    drawn = interview.draw(minutes, level, seed)
    total = sum(question.minutes for question in drawn)
    assert minutes - 3 <= total <= minutes
    assert len({question.title for question in drawn}) == len(drawn)
    per_topic = Counter(question.topic for question in drawn).values()
    shares = interview.SHARES[level]
    assert {question.level for question in drawn} <= set(shares)
    if minutes >= 45:
        for each, share in shares.items():
            spent = sum(question.minutes for question in drawn if question.level == each)
            assert abs(spent - share * minutes) <= 10, (each, spent)
        assert max(per_topic) <= 2
    order = [interview.LEVELS.index(question.level) for question in drawn]
    assert order == sorted(order)
    assert drawn == interview.draw(minutes, level, seed)
    assert drawn != interview.draw(minutes, level, seed + 100)


def test_topics_can_be_chosen():
    (title,) = (topic.title for topic in interview.topics() if "wgmma" in topic.title)
    assert {question.topic for question in interview.draw(20, "senior", 0, [title])} == {title}


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    interview.add_arguments(parser)
    return parser.parse_args(words)


def test_a_sheet_has_no_answers_and_its_key_has(tmp_path, capsys):
    path = tmp_path / "sheet.md"
    words = ("--minutes", "30", "--level", "senior", "--seed", "7")
    assert interview.run(options(*words, "--sheet", str(path))) == 0
    drawn = interview.draw(30, "senior", 7)
    text, key = path.read_text(), (tmp_path / "sheet.key.md").read_text()
    for question in drawn:
        assert question.title in text and question.answer not in text and question.strong not in text
        assert all(part in key for part in (question.title, question.answer, question.followup, question.weak))
    assert "--minutes 30 --level senior --seed 7" in key
    with pytest.raises(UserError, match="exists"):
        interview.run(options(*words, "--sheet", str(path)))
    assert path.read_text() == text
    capsys.readouterr()
    assert interview.run(options(*words)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(question.title in out for question in drawn) and "--seed 7" in out


def test_without_options_the_topics_are_listed(capsys):
    assert interview.run(options()) == 0
    out = capsys.readouterr().out
    assert all(topic.title in out for topic in interview.topics())


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--minutes", "2"), "no question fits"), (("--minutes", "0"), "at least 1"), (("--topic", "cobol"), "'cobol'")],
)
def test_what_cannot_be_drawn_is_said(words, says):
    with pytest.raises(UserError, match=says):
        interview.run(options(*words))


GOOD = """# Topic

About it.

## A question?

*mid · 4 min*

An answer
of two lines.

**See** [a](b).

- **Follow-up:** f
- **Weak:** w
- **Strong:** s
"""


def test_a_page_is_read_and_one_of_another_form_is_refused():
    (question,) = interview.read(GOOD, Path("x.md")).questions
    assert (question.answer, question.minutes, question.see, question.strong) == (
        "An answer of two lines.", 4, "[a](b).", "s"
    )  # fmt: skip
    for old, new in (("mid", "chief"), ("**See**", "See"), ("- **Weak:** w\n", ""), ("*mid · 4 min*", "")):
        with pytest.raises(ValueError, match="A question"):
            interview.read(GOOD.replace(old, new), Path("x.md"))
    with pytest.raises(ValueError, match=r"x\.md must begin"):
        interview.read(GOOD.replace("# Topic\n", "Topic\n", 1), Path("x.md"))
