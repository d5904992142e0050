"""Questions as Markdown: a test sheet with its key, or answers folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from common.figures.draw import plural
from common.practice.drills.question import Question
from cudaemu.errors import UserError


def sheet(kind: str, seed: int, asked: Sequence[Question], path: Path) -> tuple[Path, Path]:
    """Write a test sheet and, beside it, its key. UserError if one of the files is there already, or cannot be."""
    if path.is_dir():
        raise UserError(f"--sheet must be a file, such as test.md; {path} is a folder")
    key = path.with_suffix(".key" + (path.suffix or ".md"))
    path = path.with_suffix(path.suffix or ".md")
    verb = kind if kind == "diagnose" else f"drill {kind}"
    made = f"Made by `python -m kernels practice {verb} --seed {seed} --count {len(asked)}`."
    sheets: dict[Path, list[str]] = {
        path: [f"# {kind}: {plural(len(asked), 'question')}\n"],
        key: [f"# Key to {path.name}\n", f"{made}\n"],
    }
    for number, question in enumerate(asked, 1):
        room = "  ".join(f"{name or 'value'}: ______" for name in question.parts)
        sheets[path] += [*_asked(number, question), f"{room}\n"]
        sheets[key] += [*_asked(number, question), _explained(question)]
    texts = {each: "\n".join(said) for each, said in sheets.items()}
    for each in texts:
        if each.exists():
            raise UserError(f"{each} exists already; nothing was written")
    try:
        for each, text in texts.items():
            each.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {error.filename}: {error.strerror}") from None
    return path, key


def lines(asked: Sequence[Question]) -> Iterator[str]:
    """Questions as Markdown, each answer folded away below it."""
    for number, question in enumerate(asked, 1):
        yield from _asked(number, question)
        yield f"<details><summary>answer</summary>\n\n{_explained(question)}\n</details>\n"


def _asked(number: int, question: Question) -> Iterator[str]:
    text = question.text.replace("\n", "\n\n")
    yield f"**{number}.** {text}\n"
    if question.code:
        yield f"```cpp\n{question.code}\n```\n"


def _explained(question: Question) -> str:
    drawing = f"\n```text\n{question.drawing}\n```\n" if question.drawing else ""
    return f"**{question.answer}.** {question.why}\n{drawing}"
