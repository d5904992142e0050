"""Submissions of a class that nobody attended, for `grade`: right in several styles, broken, cheating, looping, empty.

    python -m tests.practice.submissions DIR [--students 150]     then: python -m kernels grade DIR --exercise 02

`expected.json` in DIR has the outcome of each; with --compare GRADES.json the two are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.practice import exercises
from common.practice.check import COMPILE, RULE, RUN, WRONG
from common.practice.grade import CHEAT, EMPTY, LATE, MISSED, MISSING, SOLVED, STARTER

EXERCISE = exercises.find("02")
OURS = EXERCISE.solution.read_text(encoding="utf-8")
LAUNCH = "  gemm_kernel<<<grid, THREADS, 0, stream>>>(A, B, C, M, N, K);\n"
BARRIER = "__syncthreads();"
ENDLESS = "volatile int forever = 1;\n  while (forever) {\n  }\n"
ON_THE_CPU = """  for (int row = 0; row < M; ++row)
    for (int col = 0; col < N; ++col) {
      float sum = 0;
      for (int k = 0; k < K; ++k) sum += float(a[size_t(row) * K + k]) * float(b[size_t(k) * N + col]);
      c[size_t(row) * N + col] = Element(sum);
    }
"""


@dataclass(frozen=True)
class Kind:
    """A submission, what must come of it, and whether it is one of a few that cost a time limit each."""

    name: str
    text: str | None  # None: no file
    outcomes: tuple[str, ...]  # any of these is right
    slow: bool = False


def _edited(*pairs: tuple[str, str]) -> str:
    text = OURS
    for old, new in pairs:
        assert old in text, f"{EXERCISE.solution} no longer has: {old}"
        text = text.replace(old, new, 1)
    return text


def _launcher(body: str, before: str = "") -> str:
    """Ours with another launch."""
    return _edited((LAUNCH, body), ('extern "C"', before + 'extern "C"'))


_COPIES = "".join(
    f"  Element *{low} = new Element[size_t({rows}) * {cols}];\n"
    f"  cudaMemcpy({low}, {up}, sizeof(Element) * {rows} * {cols}, cudaMemcpyDeviceToHost);\n"
    for low, up, rows, cols in (("a", "A", "M", "K"), ("b", "B", "K", "N"))
)
_HOST = _COPIES + "  Element *c = new Element[size_t(M) * N];\n" + ON_THE_CPU
_BACK = "  cudaMemcpy(C, c, sizeof(Element) * M * N, cudaMemcpyHostToDevice);\n"
_HIDDEN = "#define PASTE(a, b) a##b\n#define COPY PASTE(cuda, Memcpy)\n"  # what a search for words does not see


def kinds() -> list[Kind]:
    """One of each kind."""
    return [
        Kind("right", OURS, (SOLVED,)),
        Kind("right-other-names", OURS.replace("A_tile", "left").replace("B_tile", "right_tile"), (SOLVED,)),
        Kind("right-unrolled", _edited(("#pragma unroll\n", "#pragma unroll 4\n")), (SOLVED,)),
        Kind("right-windows-lines", OURS.replace("\n", "\r\n"), (SOLVED,)),
        Kind("starter", EXERCISE.start, (STARTER,)),
        Kind("goals-missed", EXERCISE.start + "\n// tried nothing yet\n", (MISSED,)),
        Kind("race", _edited((BARRIER, "")), (RULE,)),
        Kind("wrong", _edited(("sum +=", "sum -=")), (WRONG,)),
        Kind("does-not-compile", _edited(("float sum", "flaot sum")), (COMPILE,)),
        Kind("half-a-file", OURS[: len(OURS) * 2 // 3], (COMPILE, RUN)),
        Kind("no-launcher", OURS.replace(EXERCISE.stage.symbol, "my_gemm"), (RUN,)),  # type: ignore[union-attr]
        Kind("crash", _launcher("  *reinterpret_cast<volatile int *>(8) = 1;\n" + LAUNCH), (RULE,)),
        Kind("abort", _launcher("  abort();\n" + LAUNCH, "#include <cstdlib>\n"), (RULE,)),
        Kind("out-of-bounds", _edited(("if (row < M && col < N)", "if (true)")), (RULE,)),
        Kind("empty", "", (EMPTY,)),
        Kind("blank", "\n \n", (EMPTY,)),
        Kind("not-text", "\udcff\udcfe\udc80" * 40, (COMPILE, RUN)),
        Kind("missing", None, (MISSING,)),
        Kind("cheat-nothing", _launcher("  (void)grid;\n"), (WRONG,)),
        Kind("cheat-host", _launcher(_HOST + _BACK + "  (void)grid;\n"), (CHEAT,)),
        Kind("cheat-hidden-host", _HIDDEN + _launcher((_HOST + _BACK).replace("cudaMemcpy(", "COPY(")), (CHEAT, RULE)),
        Kind("cheat-state", _launcher("  static int n = 0;\n  if (n++) return cudaSuccess;\n" + LAUNCH), (CHEAT,)),
        Kind("cheat-writes-input", _launcher(LAUNCH + "  cudaMemsetAsync(const_cast<Element *>(A), 0, 2, stream);\n"),
             (RULE, WRONG)),
        Kind("cheat-includes-ours", f'#include "{EXERCISE.solution}"\n', (CHEAT,)),
        Kind("endless-host", _launcher(ENDLESS + LAUNCH), (RULE, LATE), slow=True),
        Kind("endless-kernel", _edited(("float sum", ENDLESS + "  float sum")), (LATE,), slow=True),
    ]  # fmt: skip


def write(folder: Path, chosen: Sequence[Kind], students: int) -> dict[str, tuple[str, ...]]:
    """So many students' folders, the kinds in turn, each file unlike all others; the outcomes that are right, by
    student. Kinds that cost a time limit come in the first two turns only."""
    expected = {}
    quick = [kind for kind in chosen if not kind.slow]
    turns = [*chosen, *chosen, *(quick * students)]
    for number, kind in enumerate(turns[:students]):
        student = f"{number:03}-{kind.name}"
        expected[student] = kind.outcomes
        place = folder / student / EXERCISE.name
        place.mkdir(parents=True)
        if kind.text is not None:
            mark = f"// submission {number}\n" if kind.text.strip() and STARTER not in kind.outcomes else ""
            (place / EXERCISE.file).write_bytes((kind.text + mark).encode(errors="surrogateescape"))
    return expected


def compared(expected: dict[str, Sequence[str]], rows: Sequence[dict]) -> list[str]:
    """The students that were judged otherwise than they must be, in words."""
    outcomes = {row["student"]: row for row in rows}
    return [
        f"{student}: {outcomes[student]['outcome']}, must be {' or '.join(right)}: {outcomes[student]['report'][:300]}"
        for student, right in expected.items()
        if outcomes[student]["outcome"] not in right or (outcomes[student]["points"] > 0) != (SOLVED in right)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--students", type=int, default=150)
    parser.add_argument("--compare", type=Path, metavar="GRADES.json", help="compare with what was expected")
    args = parser.parse_args()
    record = args.folder / "expected.json"
    if not args.compare:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(write(args.folder, kinds(), args.students), indent=1) + "\n")
        return 0
    wrong = compared(json.loads(record.read_text()), json.loads(args.compare.read_text())["rows"])
    print("\n".join(wrong) or "all judged right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
