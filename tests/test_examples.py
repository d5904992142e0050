"""The example programs: each checks itself, in the emulator without a finding and on a GPU if there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cudaemu.__main__ import main
from cudaemu.compiler import toolchain

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.cu"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_in_the_emulator(path, capfd):
    """With the sanitizer on: right, nothing to find, all memory freed."""
    with pytest.raises(SystemExit) as ended:
        main(["--leaks", str(path)])
    out, err = capfd.readouterr()
    assert ended.value.code == 0 and out.endswith("PASS\n"), out + err
    assert ", no findings" in err


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs a GPU")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_on_a_gpu(path, tmp_path):
    nvcc = toolchain.find_nvcc()
    arch = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.split()[0].replace(".", "")  # fmt: skip
    program = tmp_path / path.stem
    link = [f"-L{nvcc.lib}", f"-Xlinker=-rpath={nvcc.lib}"]
    toolchain.run(
        [nvcc.path, "-ccbin", toolchain.find_cxx(), "-std=c++17", f"-arch=sm_{arch}", path, *link, "-o", program]
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("PASS\n"), done.stdout + done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_as_a_lesson(path):
    """One file, explained at the top, of CUDA's and the standard's headers, that fails if the answer is wrong."""
    text = path.read_text()
    assert text.startswith("// ") and "\n//\n" in text.split("#include")[0]
    assert "PASS" in text and "FAIL" in text and not re.search(r'#include\s*"', text)
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) <= 130


NAMES = {  # of a header, what an example may use of it
    "cstdio": r"printf\b",
    "cstdlib": r"\b(?:atoi|exit)\(",
    "cassert": r"\bassert\(",
    "cmath": r"\bstd::(?:fabs|ldexp|exp|abs|sqrt|sin|cos|pow|fmax)\b",
    "algorithm": r"\bstd::(?:max|min|swap)\b",
    "vector": r"\bstd::vector\b",
    "cuda_runtime.h": r"\bcuda[A-Z]\w+",
    "cuda_fp16.h": r"\b(?:__)?half2?\b",
    "cuda_bf16.h": r"\b__nv_bfloat16\b",
    "cooperative_groups.h": r"\bcooperative_groups\b",
    "cooperative_groups/reduce.h": r"\bcg::reduce\b",
    "cuda/pipeline": r"\bcuda::",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_includes_what_it_uses(path):
    """Not what one of the others happens to include."""
    text = path.read_text()
    code = re.sub(r"//.*", "", text)
    assert set(re.findall(r"#include <(.*)>", code)) == {name for name, used in NAMES.items() if re.search(used, code)}
    assert all(any(re.fullmatch(used, name) for used in NAMES.values()) for name in re.findall(r"\bstd::\w+", code))
