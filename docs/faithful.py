"""docs/faithful.md, what is faithful and what is not, and the table in docs/emulator.md of what is not emulated: made
of the emulator's own tables, the tests' and the records in docs/hardware.

python -m docs.faithful    # writes both; a test holds them to the code
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from cudaemu import METRICS, engine, features
from cudaemu.features import FEATURES
from cudaemu.findings import NOTES
from cudaemu.hardware import GPUS, Arch, Gpu
from cudaemu.report import Counters
from docs.hardware import banks, counters, sanitizers, suite
from tests.cudaemu.rows import BLACKWELL, Row
from tests.cudaemu.test_instructions import ROWS

PAGE = Path(__file__).with_suffix(".md")
DOCUMENT = PAGE.with_name("emulator.md")
MARKED = re.compile(r"(<!-- lacking -->\n).*?(<!-- /lacking -->)", re.S)
HARDWARE = PAGE.with_name("hardware")
HOST = Path(engine.__file__).with_name("host")
KEPT = 8  # examples of instructions that a row of a table names


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def text(*sentences: str) -> str:
    return textwrap.fill(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)


def lacking() -> str:
    """What is not emulated, and which compute capabilities have it."""
    rows = ((feature.name, _least(feature.least)) for feature in FEATURES if not feature.emulated)
    return table(("Not emulated", "Compute capability"), rows)


def _least(archs: Sequence[str]) -> str:
    """ "8.0" and newer; a suffix: of one alone, or of a family."""
    words = [arch if arch[-1] == "a" else f"{arch[:-1]}a, and its family" if arch[-1] == "f" else f"{arch} and newer"
             for arch in archs]  # fmt: skip
    return "every" if archs == ("8.0",) else "; ".join(words)


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_summary(), *_values(), *_counters(), *_sanitizer(), *_order(), *_host(), *_architectures()]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


HEAD = """# What is faithful, and what is not

Whether to trust an answer of the emulator depends on what you ask. `python -m docs.faithful` makes this page from the
emulator's tables, the tests' and what a GPU has said (`docs/hardware`), and a test holds it to them. *Compared* means:
the same program ran on that GPU, and the answers are recorded and equal. *From the manual* means: as the PTX ISA says,
tested against NumPy, never asked of a GPU."""


def _summary() -> Iterator[str]:
    record = counters.recorded()
    yield table(
        ("You ask", "Answer", "Known from"),
        [
            (
                "which values a kernel computes",
                "bit for bit, but for approximate instructions and `mma` sums",
                "tests, GPU",
            ),
            ("bank conflicts, sectors, instructions", "equal to ncu's where ncu has the counter", f"{record['gpu']}"),
            ("is there a race, a wild address, ...", "one run finds it in any order of threads", "broken kernels"),
            ("how long it takes", "no answer: there is no clock, no cache, no pipeline", "-"),
            ("registers, spills, machine code", "no answer of its own: `resources` and `sass` ask ptxas", "ptxas"),
            ("does host code get its error codes", "yes, for the functions that the stand-in has", f"{record['gpu']}"),
            ("weak memory", "no stranger orders are tried; code that needs one is reported as a race", "-"),
        ],
    )


def _values() -> Iterator[str]:
    usual = [row for row in ROWS.values() if row.header != BLACKWELL]
    near = [row for row in usual if row.relative or row.absolute]
    new = [row for row in ROWS.values() if row.header == BLACKWELL]
    yield "## Values"
    yield text(
        f"Instructions are tested one by one: {len(ROWS):,} forms, on the edge values of their types, with lanes on",
        f"and off. `make test-gpu` runs the same tables on the GPU at hand, but for the {len(new):,} of 10.0a.",
    )
    yield table(
        ("Instructions", "Result", "Forms tested", "On a GPU"),
        [
            (
                "arithmetic, bits, comparisons, conversions, shuffles, atomics",
                "exact",
                len(usual) - len(near),
                "of 9.0",
            ),
            (f"approximate: {_some(near)}", "more accurate than hardware", len(near), "of 9.0, within tolerance"),
            (f"of 10.0 and 12.0: {_some(new)}", "exact, from the manual", len(new), "never"),
        ],
    )
    yield "Products of matrices are exact; how hardware rounds their sums, no manual says:"
    yield table(
        ("Products", "Sums", "On a GPU"),
        [
            ("`wgmma`", "bit for bit", f"NVIDIA H200: {_lines('wgmma_rounding.txt')} sums"),
            ("`mma.sync`, `wmma` of integers, bits, doubles", "exact integers; doubles one after the other", "-"),
            ("`mma.sync`, `wmma` of other floats", "fp32, one product after the other", "the course's stages: near"),
            ("`mma.sp`, `mma` with `kind::f8f6f4`, with scales", "likewise", "never"),
        ],
    )
    yield text(
        "What hardware does and no manual says is as on an H200 where somebody asked: layouts of `wgmma`'s",
        f"descriptors ({_lines('wgmma_layouts.txt')} cases), TMA ({_lines('tma_probe.txt')} lines), tensor maps",
        f"({_lines('tensor_map_probe.txt')}), textures ({_lines('texture_probe.txt')}), `stmatrix` and `elect.sync`",
        f"({_lines('stmatrix_elect.txt')}), clusters ({_lines('cluster_probe.txt')}).",
    )


def _lines(name: str) -> int:
    return len((HARDWARE / name).read_text(encoding="utf-8").splitlines())


def _some(rows: Sequence[Row]) -> str:
    """The opcodes that there are, without types and modifiers."""
    names = list(dict.fromkeys(".".join(re.sub(r" of .*", "", row.name).split(".")[:2]) for row in rows))
    names = list(dict.fromkeys(name if name.endswith("approx") else name.split(".")[0] for name in names))
    more = f" and {len(names) - KEPT} more" if len(names) > KEPT else ""
    return ", ".join(f"`{name}`" for name in names[:KEPT]) + more


def _counters() -> Iterator[str]:
    record = counters.recorded()
    launches = [launch for each in record["counts"].values() for launch in each]
    other: Counter[str] = Counter(key for each in counters.DIFFERENCES for key in each.counts)
    yield "## Counters"
    yield text(
        f"Counted by ncu on an {record['gpu'].removeprefix('NVIDIA ')} (driver {record['driver']}, CUDA",
        f"{record['cuda']}, {record['date']}) in {len(launches)} launches of {len(record['counts'])} programs.",
        "[emulator.md](emulator.md) has each difference with its reason: mostly instructions that ptxas chooses.",
    )
    yield table(
        ("Counter", "Hardware's", "Launches with any", "Of them different"),
        [
            (f"`{key}`", f"`{metric}`", sum(bool(launch.get(key)) for launch in launches), other[key])
            for key, metric in METRICS.items()
        ],
    )
    own = [field.name for field in fields(Counters) if field.name not in (*METRICS, "instructions")]
    yield text(
        f"Bank conflicts and sectors were compared in {len(banks.recorded())} patterns of addresses besides. These",
        "have no equal among the hardware's counters; `Counters` in [api.md](api.md) defines them:",
        ", ".join(f"`{name}`" for name in own) + ".",
    )


def _sanitizer() -> Iterator[str]:
    problems = [each for each in engine.problems() if each.kind not in NOTES]
    entries = suite.suite()
    tools = sanitizers.recorded()["programs"]
    found = {tool: sum(each[tool]["verdict"] == "found" for name, each in tools.items() if "/" not in name)
             for tool in sanitizers.TOOLS}  # fmt: skip
    broken = sum("/" not in name for name in tools)
    yield "## Findings"
    yield text(
        f"{len(problems)} rules, in {len({each.kind for each in problems})} kinds. Each of {len(entries)} kernels that",
        f"are broken on purpose is found, and their originals are clean. Of the {broken} that NVIDIA's",
        "compute-sanitizer was asked about, its tools find: "
        + ", ".join(f"{tool} {count}" for tool, count in found.items()),
        "([sanitizers.md](sanitizers.md)).",
    )
    yield text(
        "A race is found whatever order the threads took: two accesses are compared by what orders them (barriers,",
        "fences and flags, mbarriers, ends of launches), not by when they ran. Of a path that a run did not take it",
        "says nothing.",
    )


def _order() -> Iterator[str]:
    yield "## Which orders are tried"
    yield table(
        ("Of what", "What the emulator does", "What hardware may do besides"),
        [
            ("lanes and warps", "take turns; lanes of a warp meet where masks say", "any order"),
            ("blocks", "in order, on as many cores as there are, as many at a time as the GPU holds", "any order"),
            (
                "writes of other threads",
                "seen at once, or after the fence that they need",
                "weaker orders: reported as races",
            ),
            ("copies (`cp.async`, TMA), answers, `wgmma`", "land as late as their waits allow", "at any time before"),
            ("launches and streams", "one after the other; races between streams are found", "at the same time"),
        ],
    )


def _host() -> Iterator[str]:
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted((*HOST.glob("*.h"), *HOST.glob("*.cpp"))))
    runtime = set(
        re.findall(r"^(?:cudaError_t|const char \*)\s*(?:CUDARTAPI )?(cuda[A-Z]\w*)\(", sources, re.MULTILINE)
    )
    driver = set(re.findall(r"^CUresult CUDAAPI (cu[A-Z]\w*)\(", sources, re.MULTILINE))
    record = counters.recorded()
    yield "## Host code"
    yield text(
        f"{len(runtime)} functions of CUDA's runtime and {len(driver)} of the driver. Where the manual leaves an",
        f"answer open, it is an H200's: {len(record['runtime'])} calls with their error codes are recorded. Not there:",
        "libraries (cuBLAS, cuDNN, NCCL), dynamic parallelism, several devices, work of two streams at the same time.",
    )


def _architectures() -> Iterator[str]:
    yield "## By architecture"
    yield text(
        "Code for an older architecture runs the same on a newer one. Limits of each (shared memory, threads,",
        "registers) are those of the programming guide.",
    )
    asked = Arch.of("9.0")
    rows = []
    for gpu in GPUS:
        own = [feature for feature in FEATURES if _new(feature, gpu)]
        rows.append(
            (
                f"{gpu.arch} ({gpu.devices})",
                ", ".join(feature.name for feature in own if feature.emulated) or "-",
                ", ".join(feature.name for feature in own if not feature.emulated) or "-",
                "H200" if gpu.arch == asked else "never: what it shares with 9.0 was" if gpu.arch < asked else "never",
            )
        )
    yield table(("Compute capability", "New and emulated", "New and not emulated", "Compared with a GPU"), rows)
    everywhere = [feature.name for feature in FEATURES if not feature.emulated and feature.least == ("8.0",)]
    yield text("What every architecture has and the emulator lacks:", ", ".join(everywhere) + ".")


def _new(feature: features.Feature, gpu: Gpu) -> bool:
    """Whether code for this GPU has it, and that for the one before has not."""
    own = (gpu.arch.major, gpu.arch.minor)
    return any((least.major, least.minor) == own != (8, 0) for least in map(Arch.of, feature.least))


def with_table(document: str) -> str:
    """docs/emulator.md with its table as it is now."""
    return MARKED.sub(lambda found: f"{found[1]}{lacking()}\n{found[2]}", document)


def main() -> None:
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
