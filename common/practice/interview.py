"""Interviews: questions of docs/interview/, drawn to a sheet that fits the time, with a key for the interviewer.

    python -m kernels practice interview                                    how many there are, by topic and level
    python -m kernels practice interview --minutes 45 --level senior       a sheet and its key
    python -m kernels practice interview --minutes 30 --seed 7 --sheet FILE.md    the same, as two files

A topic is a page: a title, what it is about, and questions of one form (`read` names what a page lacks).
"""

from __future__ import annotations

import argparse
import random
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common import terminal
from common.figures.draw import plural
from common.results.runs import ROOT
from cudaemu.errors import UserError, pick

SUMMARY = "questions for an interview that fit the time, and a key for the interviewer"
FOLDER = ROOT / "docs" / "interview"
LEVELS = ("junior", "mid", "senior")
SHARES = {  # of an interview's time, by the candidate's level
    "junior": {"junior": 0.7, "mid": 0.3},
    "mid": {"junior": 0.2, "mid": 0.6, "senior": 0.2},
    "senior": {"mid": 0.35, "senior": 0.65},
}
MINUTES = 45
MARKS = ("Follow-up", "Weak", "Strong")
FORM = re.compile(
    r"## (?P<title>.+)\n\n\*(?P<level>\w+) · (?P<minutes>\d+) min\*\n\n(?P<answer>.+?)\n\n\*\*See\*\* (?P<see>.+?)\n\n"
    + "\n".join(rf"- \*\*{mark}:\*\* (?P<{mark.replace('-', '').lower()}>.+?)" for mark in MARKS)
    + r"\n*",
    re.S,
)


@dataclass(frozen=True)
class Question:
    """One question; `answer`, `see` and the marks are Markdown, with links as they are in docs/interview/."""

    topic: str
    title: str
    level: str  # one of LEVELS
    minutes: int
    answer: str
    see: str
    followup: str
    weak: str
    strong: str


@dataclass(frozen=True)
class Topic:
    """A page of docs/interview/."""

    path: Path
    title: str
    about: str
    questions: tuple[Question, ...]


def read(text: str, path: Path) -> Topic:
    """The topic that a page holds. ValueError, naming the question, if it has another form."""
    head, *parts = re.split(r"^(?=## )", text, flags=re.M)
    heading, _, about = head.partition("\n\n")
    if not heading.startswith("# ") or not about.strip():
        raise ValueError(f"{path.name} must begin with '# TITLE' and a line on what it is about")
    title = heading.removeprefix("# ").strip()
    found = []
    for part in parts:
        if part.startswith("## Numbers\n"):  # tables of recorded runs
            continue
        match = FORM.fullmatch(part)
        if match is None or match["level"] not in LEVELS:
            raise ValueError(f"{path.name}: '{part.splitlines()[0]}' must have the form of a question")
        words = {name: _joined(value) for name, value in match.groupdict().items() if name != "minutes"}
        found.append(Question(topic=title, minutes=int(match["minutes"]), **words))
    return Topic(path, title, about.strip(), tuple(found))


def _joined(text: str) -> str:
    """Paragraphs of a line each."""
    return re.sub(r"(?<!\n)\n *(?!\n)", " ", text.strip())


@lru_cache
def topics() -> tuple[Topic, ...]:
    """All topics, in the order of their pages. UserError where there is none."""
    pages = [path for path in sorted(FOLDER.glob("*.md")) if path.name != "README.md"]
    if not pages:
        raise UserError(f"there are no questions in {FOLDER}: run this in a checkout of the course")
    return tuple(read(path.read_text(encoding="utf-8"), path) for path in pages)


def draw(minutes: int, level: str, seed: int, only: Sequence[str] = ()) -> list[Question]:
    """Questions for at most this many minutes: each level has its share of the time, no topic repeats before all have
    come, easier ones first. `only`: the topics. UserError if not even one question fits."""
    chance = random.Random(f"{level} {seed}")
    chosen = [topic for topic in topics() if not only or topic.title in only]
    order = chance.sample(chosen, len(chosen))
    waiting = {topic.title: chance.sample(topic.questions, len(topic.questions)) for topic in order}
    asked = dict.fromkeys((topic.title for topic in order), 0)
    found: list[Question] = []
    shares = SHARES[pick(level, LEVELS, "level", "an interview")]
    used = dict.fromkeys(shares, 0)
    while True:
        left = minutes - sum(used.values())
        fitting = [
            question
            for title in sorted(waiting, key=asked.__getitem__)  # sorting keeps the drawn order among equals
            for question in waiting[title]
            if question.level in shares and question.minutes <= left
        ]
        if not fitting:
            break
        behind = max(shares, key=lambda each: shares[each] * minutes - used[each])
        fewest = min(asked[question.topic] for question in fitting)
        fresh = [question for question in fitting if asked[question.topic] == fewest]
        question = next((each for each in fresh if each.level == behind), fresh[0])
        waiting[question.topic].remove(question)
        asked[question.topic] += 1
        used[question.level] += question.minutes
        found.append(question)
    if not found:
        raise UserError(f"no question fits into {plural(minutes, 'minute')} at this level; the shortest take 3")
    return sorted(found, key=lambda question: LEVELS.index(question.level))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=int, metavar="N", help=f"how long it may take (default: {MINUTES})")
    parser.add_argument("--level", choices=LEVELS, help="level of the candidate (default: mid)")
    parser.add_argument("--topic", action="append", default=[], metavar="WORD", help="only topics with this word")
    parser.add_argument("--seed", type=int, metavar="N", help="the same sheet again (default: a new one)")
    parser.add_argument("--sheet", type=Path, metavar="FILE.md", help="write it to a file, the key beside it")


def run(args: argparse.Namespace) -> int:
    """Print a sheet and its key, or write them; without options, list the topics."""
    if args.minutes is None and args.level is None and args.seed is None and not args.topic and not args.sheet:
        listing()
        return 0
    minutes, level = MINUTES if args.minutes is None else args.minutes, args.level or "mid"
    if minutes < 1:
        raise UserError(f"--minutes must be at least 1, got {minutes}")
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    words = f"--minutes {minutes} --level {level}" + "".join(f" --topic {word}" for word in args.topic)
    command = f"python -m kernels practice interview {words} --seed {seed}"
    questions = draw(minutes, level, seed, _matching(args.topic))
    texts = "\n".join(sheet(questions, level)), "\n".join(key(questions, level, command))
    if args.sheet:
        if args.sheet.is_dir():
            raise UserError(f"--sheet must be a file, such as test.md; {args.sheet} is a folder")
        path = args.sheet.with_suffix(args.sheet.suffix or ".md")
        for each in _write({path: texts[0], path.with_suffix(f".key{path.suffix}"): texts[1]}):
            terminal.out.print(f"written: {each}", markup=False, soft_wrap=True)
    else:
        terminal.out.print(f"{texts[0]}\n{'-' * terminal.WIDTH}\n\n{texts[1]}", markup=False)
    return 0


def _matching(words: Sequence[str]) -> list[str]:
    """The topics whose titles have one of the words. UserError for a word that none has."""
    titles = [topic.title for topic in topics()]
    for word in words:
        if not any(word.lower() in title.lower() for title in titles):
            raise UserError(f"no topic has the word '{word}'; there are: {'; '.join(titles)}")
    return [title for title in titles if any(word.lower() in title.lower() for word in words)]


def listing() -> None:
    """How many questions there are, by topic and level."""
    table = terminal.table()
    table.add_column("topic")
    for level in (*LEVELS, "minutes"):
        table.add_column(level, justify="right")
    for topic in topics():
        counts = [sum(question.level == level for question in topic.questions) for level in LEVELS]
        table.add_row(topic.title, *map(str, counts), str(sum(question.minutes for question in topic.questions)))
    every = [question for topic in topics() for question in topic.questions]
    totals = [str(sum(question.level == level for question in every)) for level in LEVELS]
    table.add_row("all", *totals, str(sum(question.minutes for question in every)), style="bold")
    terminal.out.print(table)
    terminal.out.print("\nTo read: docs/interview/. For a sheet: --minutes, --level, --topic.", markup=False)


def sheet(questions: Sequence[Question], level: str) -> Iterator[str]:
    """The questions alone, as Markdown."""
    yield f"# Interview, {level}: {plural(len(questions), 'question')}, {_minutes(questions)} minutes\n"
    for number, question in enumerate(questions, 1):
        yield f"{number}. {question.title} ({question.minutes} min)\n"


def key(questions: Sequence[Question], level: str, command: str) -> Iterator[str]:
    """Questions with everything for the interviewer; links are those of docs/interview/."""
    yield f"# Key: interview, {level}, {_minutes(questions)} minutes\n"
    yield f"Drawn by `{command}`. Links are relative to docs/interview/.\n"
    for number, question in enumerate(questions, 1):
        yield f"## {number}. {question.title}\n"
        yield f"*{question.topic} · {question.level} · {question.minutes} min*\n"
        yield f"{question.answer}\n"
        yield f"**See** {question.see}\n"
        told = dict(zip(MARKS, (question.followup, question.weak, question.strong)))
        yield "\n".join(f"- **{mark}:** {text}" for mark, text in told.items()) + "\n"


def _minutes(questions: Sequence[Question]) -> int:
    return sum(question.minutes for question in questions)


def _write(texts: dict[Path, str]) -> list[Path]:
    """Write new files. UserError if one exists or cannot be written; then none is."""
    for path in texts:
        if path.exists():
            raise UserError(f"{path} exists already; nothing was written")
    try:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}") from None
    return list(texts)
