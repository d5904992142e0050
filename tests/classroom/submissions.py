"""Submissions of a class that nobody attended, for `grade`: right in several styles, broken, cheating, looping, empty.

    python -m tests.classroom.submissions DIR [--students 150]     then: python -m kernels grade DIR --seconds 60

Most are of the step to stage 02, some of other kinds of exercises. `expected.json` in DIR has the outcome of each; with
--compare GRADES.json the two are compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.classroom.grading import CHEAT, DIED, EMPTY, LARGEST, LATE, MISSED, MISSING, SOLVED, STARTER
from common.practice import exercises
from common.practice.check import COMPILE, RULE, RUN, WRONG
from common.practice.exercises import Exercise

EXERCISE = exercises.find("02")
OURS = EXERCISE.solution.read_text(encoding="utf-8")
HEAD, _, _ = OURS.partition("constexpr int BLOCK_M")
IN_ANOTHER_STYLE = (
    HEAD
    + """template <int T>
__global__ void multiply(Element const *A, Element const *B, Element *C, dim3 size) {
  extern __shared__ float tiles[];
  auto *left = tiles, *right = tiles + T * T;
  unsigned x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, col = blockIdx.x * T + x;
  float sum{};
  for (unsigned k0 = 0; k0 < size.z; k0 += T) {
    left[y * T + x] = row < size.x && k0 + x < size.z ? float(A[row * size.z + k0 + x]) : 0.f;
    right[y * T + x] = k0 + y < size.z && col < size.y ? float(B[(k0 + y) * size.y + col]) : 0.f;
    __syncthreads();
    for (unsigned k = 0; k != T; ++k) sum = fmaf(left[y * T + k], right[k * T + x], sum);
    __syncthreads();
  }
  if (row < size.x && col < size.y) C[row * size.y + col] = Element(sum);
}

extern "C" cudaError_t launch_gemm(const Element *A, const Element *B, Element *C, int M, int N, int K,
                                   cudaStream_t stream) {
  constexpr int T = 32;
  dim3 blocks((N + T - 1) / T, (M + T - 1) / T);
  multiply<T><<<blocks, dim3(T, T), 2 * T * T * sizeof(float), stream>>>(A, B, C, dim3(M, N, K));
  return cudaPeekAtLastError();
}
"""
)
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
    exercise: Exercise = EXERCISE
    place: str = ""  # of the file, if it is not where it must be


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
_RESULTS = (
    '  const char right[] = "{\\"outcome\\": \\"solved\\", \\"points\\": 10, \\"goals\\": [], \\"checks\\": 9}";\n'
    "  for (int file = 3; file < 64; ++file) (void)!write(file, right, sizeof right - 1);\n"
)
_MEMORY = "  for (size_t bytes = 1 << 28;;) memset(malloc(bytes), 1, bytes);\n"
_OUT = """  const char *places[] = {"/etc/shadow", "/etc/passwd", "/root", "/home", "/sys", "/dev/kmsg"};
  int reached = socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
  for (const char *place : places) reached += open(place, O_RDONLY) >= 0 && place[1] != 'r' && place[1] != 'h';
  if (reached) return cudaErrorUnknown;
"""
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
        Kind("exit", _launcher("  exit(0);\n" + LAUNCH, "#include <cstdlib>\n"), (RULE, RUN)),
        Kind("empty", "", (EMPTY,)),
        Kind("blank", "\n \n", (EMPTY,)),
        Kind("not-text", "\udcff\udcfe\udc80" * 40, (COMPILE, RUN)),
        Kind("too-long", OURS + "// x\n" * (LARGEST // 5), (COMPILE,)),
        Kind("missing", None, (MISSING,)),
        Kind("moved", OURS, (MISSING,), place="my_kernel.cu"),
        Kind("a-folder", OURS, (MISSING,), place=f"{EXERCISE.file}/kernel.txt"),
        Kind("cheat-nothing", _launcher("  (void)grid;\n"), (WRONG,)),
        Kind("cheat-host", _launcher(_HOST + _BACK + "  (void)grid;\n"), (CHEAT,)),
        Kind("cheat-hidden-host", _HIDDEN + _launcher((_HOST + _BACK).replace("cudaMemcpy(", "COPY(")), (CHEAT,)),
        Kind("cheat-state", _launcher("  static int n = 0;\n  if (n++) return cudaSuccess;\n" + LAUNCH), (CHEAT,)),
        Kind("cheat-writes-input", _launcher(LAUNCH + "  cudaMemsetAsync(const_cast<Element *>(A), 0, 2, stream);\n"),
             (RULE, WRONG)),
        Kind("cheat-includes-ours", f'#include "{EXERCISE.solution}"\n', (CHEAT,)),
        Kind("cheat-includes-ours-hidden", f'%:include "{EXERCISE.solution}"\n', (CHEAT,)),
        Kind("cheat-forks", _launcher("  for (;;) (void)!fork();\n" + LAUNCH, "#include <unistd.h>\n"),
             (RULE, RUN, LATE, DIED), slow=True),
        Kind("reaches-out", _launcher(_OUT + LAUNCH, "#include <fcntl.h>\n#include <sys/socket.h>\n#include "
                                                     "<unistd.h>\n"),
             (SOLVED,)),
        Kind("quotes-passwords", OURS + 'asm(".include \\"/etc/passwd\\"");\n', (COMPILE, RUN)),
        Kind("cheat-writes-results", _launcher(_RESULTS + "  (void)grid;\n", "#include <unistd.h>\n"), (RULE,)),
        Kind("endless-host", _launcher(ENDLESS + LAUNCH), (RULE, LATE), slow=True),
        Kind("endless-kernel", _edited(("float sum", ENDLESS + "  float sum")), (RULE, LATE), slow=True),
        Kind("endless-words", _launcher("  for (;;) puts(\"still here\");\n" + LAUNCH, "#include <cstdio>\n"),
             (RULE, RUN, LATE, DIED), slow=True),
        Kind("all-memory", _launcher(_MEMORY + LAUNCH, "#include <cstdlib>\n#include <cstring>\n"),
             (RULE, RUN, DIED), slow=True),
        *_of_others(),
    ]  # fmt: skip


def _of_others() -> list[Kind]:
    """Of a hole, a bug and a program: ours, the beginning with a mark, and a cheat."""
    found = []
    for name, begun in (("06-stores", MISSED), ("02-bug-3", RULE), ("transpose", RULE)):
        exercise = exercises.find(name)
        ours = exercise.solution.read_text(encoding="utf-8")
        found.append(Kind(f"{name}-right", ours, (SOLVED,), exercise=exercise))
        found.append(Kind(f"{name}-begun", exercise.start + "// to do\n", (begun, WRONG), exercise=exercise))
    rewritten = "\n".join(f"{line}  " if line.strip() else line for line in ours.splitlines())
    found.append(Kind("transpose-other-blanks", rewritten, (SOLVED,), exercise=exercise))
    no_check = ours.partition("int main(")[0] + "int main() { return 0; }\n"
    found.append(Kind("cheat-transpose-main", no_check, (COMPILE,), exercise=exercise))
    from tests.classroom import cheats

    nothing = (CHEAT, COMPILE, MISSED, RULE, RUN, WRONG)
    for name in list(cheats.CHEATS)[::4]:
        of, text = cheats.CHEATS[name]
        found.append(Kind(f"listed-cheat-{name}", text, nothing, exercise=exercises.find(of)))
    for name in list(cheats.ODD)[::4]:
        of, text = cheats.ODD[name]
        found.append(Kind(f"odd-{name}", text, (SOLVED,), exercise=exercises.find(of)))
    return found


def write(folder: Path, chosen: Sequence[Kind], students: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """So many students' folders, the kinds in turn, each file unlike all others; by student, the exercise and the
    outcomes that are right. Kinds that cost a time limit come in the first two turns only."""
    expected = {}
    quick = [kind for kind in chosen if not kind.slow]
    turns = [*chosen, *chosen, *(quick * students)]
    for number, kind in enumerate(turns[:students]):
        student = f"{number:03}-{kind.name}"
        expected[student] = (kind.exercise.name, kind.outcomes)
        place = folder / student / kind.exercise.name / (kind.place or kind.exercise.file)
        place.parent.mkdir(parents=True)
        if kind.text is not None:
            mark = f"// submission {number}\n" if kind.text.strip() and STARTER not in kind.outcomes else ""
            place.write_bytes((kind.text + mark).encode(errors="surrogateescape"))
    return expected


def compared(expected: dict[str, Sequence], rows: Sequence[dict]) -> list[str]:
    """The students that were judged otherwise than they must be, in words."""
    found = {(row["student"], row["exercise"]): row for row in rows}
    wrong = []
    for student, (exercise, right) in expected.items():
        row = found[student, exercise]
        if row["outcome"] not in right or (row["points"] > 0) != (SOLVED in right):
            wrong.append(f"{student}: {row['outcome']}, must be {' or '.join(right)}: {row['report'][:300]}")
    return wrong


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
