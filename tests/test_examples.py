"""The example programs: each checks itself, in the emulator without a finding and on a GPU if there is one, and the
emulator counts what that GPU counts."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from cudaemu.__main__ import main
from cudaemu.hardware import Arch
from docs.hardware import counters
from docs.hardware.programs import EXAMPLES, executable, needed

NOT_RECORDED: tuple[str, ...] = ()  # examples newer than what a GPU counted: they are not compared until it does again


@pytest.mark.core(every=12)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_in_the_emulator(path, capfd, tmp_path):
    """With the sanitizer on: right, nothing to find, all memory freed, and in each launch the recorded counters."""
    report = tmp_path / "report.json"
    with pytest.raises(SystemExit) as ended:
        main(["--leaks", "--json", str(report), "--arch", needed(path), str(path)])
    out, err = capfd.readouterr()
    assert ended.value.code == 0 and out.endswith("PASS\n"), out + err
    assert ", no findings" in err
    launches = counters.emulated(json.loads(report.read_text())["launches"])
    recorded = counters.recorded()["counts"]
    assert (path.stem in recorded) != (path.stem in NOT_RECORDED), "python -m docs.hardware.counters, on a GPU"
    if path.stem in recorded:
        assert counters.compare(path.stem, launches, recorded[path.stem]) == []


@pytest.mark.gpu
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_on_a_gpu(path, tmp_path):
    arch = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.split()[0].replace(".", "")  # fmt: skip
    if not Arch.of(needed(path)).runs_on(arch):
        pytest.skip(f"needs compute capability {needed(path)}")
    program = executable(path, tmp_path / path.stem, needed(path), f"sm_{arch}")
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


def test_as_a_lesson():
    """One file, explained at the top, of CUDA's and the standard's headers, that fails if the answer is wrong."""
    wrong = {path.name: found for path in EXAMPLES if (found := _no_lesson(path.read_text()))}
    assert EXAMPLES
    assert not wrong


def _no_lesson(text: str) -> list[str]:
    """What an example lacks."""
    lines = text.splitlines()
    rules = {
        "explained at the top": text.startswith("// ") and "\n//\n" in text.split("#include")[0],
        "says PASS or FAIL": "PASS" in text and "FAIL" in text,
        "one file": not re.search(r'#include\s*"', text),
        "120 columns, 130 lines": max(map(len, lines)) <= 120 and len(lines) <= 130,
    }
    return [rule for rule, kept in rules.items() if not kept]


NAMES = {  # of a header, what an example may use of it
    "cstdio": r"printf\b",
    "cstdlib": r"\b(?:atoi|exit)\(",
    "cassert": r"\bassert\(",
    "cmath": r"\bstd::(?:fabs|floor|ldexp|exp|abs|sqrt|sin|cos|pow|fmax)\b",
    "algorithm": r"\bstd::(?:max|min|swap)\b",
    "vector": r"\bstd::vector\b",
    "cstdint": r"\bu?int\d+_t\b",
    "cuda.h": r"\bCUtensorMap\b",
    "cuda_runtime.h": r"\bcuda[A-Z]\w+",
    "cuda_fp16.h": r"\b(?:__)?half2?\b",
    "cuda_bf16.h": r"\b__nv_bfloat16\b",
    "cooperative_groups.h": r"\bcooperative_groups\b",
    "cooperative_groups/reduce.h": r"\bcg::reduce\b",
    "cuda/pipeline": r"\bcuda::",
}


def test_they_include_what_they_use():
    """Not what another header happens to include."""
    wrong = {}
    for path in EXAMPLES:
        code = re.sub(r"//.*", "", path.read_text())
        included = set(re.findall(r"#include <(.*)>", code))
        used = {name for name, pattern in NAMES.items() if re.search(pattern, code)}
        names = set(re.findall(r"\bstd::\w+", code))
        unknown = {name for name in names if not any(re.fullmatch(pattern, name) for pattern in NAMES.values())}
        if included != used or unknown:
            wrong[path.name] = {"unused": included - used, "missing": used - included, "of no header here": unknown}
    assert not wrong
