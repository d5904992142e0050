"""The options of the emulator, and the doors that take them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import cudaemu
from cudaemu import Options, hardware
from cudaemu.errors import UserError
from cudaemu.options import COMPILING
from docs import api
from tests.cudaemu.sources import source

ROOT = Path(__file__).parents[2]

SCALE = r"""
#include <cuda_runtime.h>
#ifndef FACTOR
#define FACTOR 1
#endif
__global__ void scale(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}
extern "C" cudaError_t launch(float *x, int n, int *sms, cudaStream_t stream) {
  int count;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
  cudaMemcpy(sms, &count, sizeof count, cudaMemcpyHostToDevice);
  scale<<<(n + 31) / 32, 32, 0, stream>>>(x, n);
  return cudaGetLastError();
}
int main() { return FACTOR; }
"""


def test_the_reference_is_of_this_code():
    assert api.PAGE.read_text() == api.page(), "python -m docs.api writes it"


def test_every_field_is_documented():
    text = Path(cudaemu.options.__file__).read_text()
    for item in dataclasses.fields(Options):
        assert re.search(rf'^    {item.name}: .*\n    """[A-Z]', text, re.MULTILINE), f"{item.name} has no docstring"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"arch": "7.0"}, "'7.0'"),
        (
            {"arch": "8.0", "compiled_for": "9.0"},
            "compiled_for must .*8.0, got '9.0'",
        ),
        ({"defines": ["A=1"]}, r"defines must .*\['A=1'\]"),
        ({"defines": {"1x": 1}}, "defines must .*identifier, got '1x'"),
        ({"defines": {"A": None}}, r"defines\['A'\] must .*None"),
        ({"flags": "-O3 -g"}, "flags must .*got '-O3 -g'"),
        ({"flags": [3]}, "flags must .*got 3"),
        ({"include": "folder"}, "include must .*got 'folder'"),
        ({"include": Path("folder")}, "include must .*folder"),
        ({"multiprocessors": 0}, "multiprocessors must .*got 0"),
        ({"threads": 1.5}, "threads must .*got 1.5"),
        ({"threads": True}, "threads must .*got True"),
        ({"counters": 1}, "counters must .*got 1"),
        ({"sanitize": "no"}, "sanitize must .*got 'no'"),
        ({"leaks": None}, "leaks must .*got None"),
        ({"trace": True}, "trace must .*got True"),
        ({"events": range(4)}, r"events must .*got range\(0, 4\)"),
        ({"timeout": 0}, "timeout must .*got 0"),
        ({"timeout": "5"}, "timeout must .*got '5'"),
        ({"progress": 5}, "progress must .*got 5"),
        ({"on_finding": "print"}, "on_finding must .*got 'print'"),
    ],
)
def test_wrong_values_are_refused_when_options_are_made(wrong, said):
    with pytest.raises(UserError) as error:
        Options(**wrong)
    assert re.search(said, str(error.value))


def test_an_unknown_option_names_the_likely_one():
    with pytest.raises(TypeError, match="'sanitise'.*'sanitize'"):
        Options().replace(sanitise=False)
    with pytest.raises(TypeError, match="'arhc'.*'arch'"):
        cudaemu.program(source(SCALE, "options_scale"), arhc="9.0")


def test_options_do_not_change():
    macros = {"A": 1, "B": "x", "C": True}
    options = Options(defines=macros)
    macros["A"] = 2
    assert options.macros == {"A": "1", "B": "x", "C": "1"}
    changed = options.replace(arch="9.0", multiprocessors=14)
    assert (options.arch, changed.arch, changed.defines) == ("8.0", "9.0", options.defines)
    assert options.gpu == hardware.model("8.0") and (str(changed.gpu.arch), changed.gpu.sms) == ("9.0", 14)
    assert repr(changed.replace(counters=False, defines={})) == (
        "Options(arch='9.0', multiprocessors=14, counters=False)"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.arch = "9.0"  # type: ignore[misc]


def test_options_and_keywords_say_the_same():
    path = source(SCALE, "options_scale")
    chosen = Options(defines={"FACTOR": 3}, multiprocessors=5, counters=False)

    def run(**how) -> tuple[float, int, int]:
        x, sms = np.ones(40, np.float32), np.zeros(1, np.int32)
        report = cudaemu.run(path, "launch", [x, 40, sms, None], **how)
        report.raise_if_findings()
        return x.sum(), int(sms[0]), report.counters["instructions"]

    assert run(options=chosen) == run(defines={"FACTOR": 3}, multiprocessors=5, counters=False) == (120, 5, 0)
    factor, sms, counted = run(options=chosen, counters=True)
    assert (factor, sms) == (120, 5) and counted > 0, "keywords change what the options say"


def test_programs_take_options():
    path = source(SCALE, "options_scale")
    assert cudaemu.program(path, options=Options(defines={"FACTOR": 3})).status == 3
    assert cudaemu.program(path, options=Options(defines={"FACTOR": 3}), defines={}).status == 1


def test_a_library_keeps_its_options_and_a_launch_may_change_those_of_running():
    library = cudaemu.load(source(SCALE, "options_scale"), options=Options(defines={"FACTOR": 3}, counters=False))
    x = np.ones(32, np.float32)
    assert library.launch("scale", 1, 32, x, 32).counters["instructions"] == 0 and x.sum() == 96
    assert library.launch("scale", 1, 32, x, 32, counters=True).counters["instructions"] > 0
    assert library.launch("scale", 1, 32, x, 32).counters["instructions"] == 0
    for name in COMPILING:
        with pytest.raises(UserError, match=f"^{name} must be given"):
            library.launch("scale", 1, 32, x, 32, **{name: None})
    with pytest.raises(TypeError, match="did you mean 'counters'"):
        library.call("launch", x, 32, x, None, counter=False)


def test_callbacks_hear_of_findings_and_refusals_at_once():
    text = SCALE.replace("(n + 31) / 32, 32", "(n + 31) / 32, n > 64 ? 4096 : 32").replace("if (i < n) ", "")
    path, sms = source(text, "options_heard"), np.zeros(1, np.int32)
    findings: list[object] = []
    refusals: list[tuple[int, str]] = []
    hear = {"on_finding": findings.append, "on_refusal": lambda *what: refusals.append(what)}
    options = Options(defines={"FACTOR": 2}, **hear)
    report = cudaemu.run(path, "launch", [np.ones(40, np.float32), 40, sms, None], options=options)
    assert findings == report.findings and [found.kind for found in report.findings] == ["out of bounds global"]
    report = cudaemu.run(path, "launch", [np.ones(100, np.float32), 100, sms, None], options=options)
    assert [code for code, _ in refusals] == [report.status] and "4096 threads per block" in refusals[0][1]


def test_the_examples_of_the_page_run(monkeypatch, capsys):
    """Those that need no file of the reader's."""
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "emulator.md").read_text(), re.DOTALL)
    first, traced = (block for block in blocks if "saxpy(float" in block or "kernels/" in block)
    exec(first, {})
    assert capsys.readouterr().out == "[2. 2. 2.] 250\n", "1000 floats of x and of y: 125 sectors each"
    exec(traced, {})
    assert capsys.readouterr().out.startswith("A[0, 0] ")
