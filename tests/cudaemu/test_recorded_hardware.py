"""What docs/hardware/counters.py asks of a GPU: how answers are read, and that the emulator's are the recorded ones;
tests/test_examples.py compares the examples' counters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.measure import ncu
from cudaemu import METRICS
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from docs.hardware import counters, programs
from tests.cudaemu import releases

COLUMNS = [METRICS["instructions.ldmatrix"], METRICS["global_load_sectors"]]
FAKE = f"""#!/bin/sh
echo "==PROF== Connected to process 1"
echo PASS
echo '"ID","Process Name","Kernel Name","{COLUMNS[0]}","{COLUMNS[1]}"'
echo '"","","","inst","sector"'
echo '"0","softmax","softmax(const float *, int)","0","1,234"'
echo '"1","votes","agree(int)","2","7"'
echo '"2","votes","agree(int)","3","8"'
"""


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ncu"
    path.write_text(FAKE)
    path.chmod(0o755)
    monkeypatch.setattr(ncu, "find_ncu", lambda: str(path))
    return path


def test_launches_are_counted_one_by_one(fake_ncu, tmp_path):
    found = counters.counted([tmp_path / "softmax", tmp_path / "votes"], tmp_path)
    kernels = {name: [launch["kernel"] for launch in launches] for name, launches in found.items()}
    assert kernels == {"softmax": ["softmax(const float *, int)"], "votes": ["agree(int)"] * 2}
    assert [launch["global_load_sectors"] for launch in found["softmax"] + found["votes"]] == [1234, 7, 8]
    assert [launch["instructions.ldmatrix"] for launch in found["votes"]] == [2, 3]


def test_what_an_ncu_says_that_cannot_is_told(fake_ncu, tmp_path):
    fake_ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    with pytest.raises(UserError, match=r"(?s)exit status 1.*ERR_NVGPUCTRPERM"):
        counters.counted([], tmp_path)


# ---- the examples' counters ------------------------------------------------------------------------------------------


def test_every_listed_difference_is_one():
    """None is left of kernels that there are no longer, or that do not differ."""
    recorded = counters.recorded()["counts"]
    assert recorded.keys() <= {path.stem for path in programs.EXAMPLES}
    for each in counters.DIFFERENCES:
        assert each.kernel in [counters.name_of(launch["kernel"]) for launch in recorded[each.example]]
        assert each.why and each.counts.keys() <= METRICS.keys()
        assert all(ours != ncu or isinstance(ours, counters.Span) for ours, ncu in each.counts.values())
    names = [(each.example, each.kernel) for each in counters.DIFFERENCES]
    assert len(set(names)) == len(names)


def test_a_count_that_is_one_off_is_told():
    """In either direction, whether the counter is one that differs or not; so are launches that are others."""
    (theirs,) = counters.recorded()["counts"]["reduce_shuffle"]
    ours = {**theirs, "kernel": "sum", "instructions.mma": 0}
    assert counters.compare("reduce_shuffle", [ours], [theirs]) == []
    for key in METRICS:
        for change in (-1, 1):
            for mine, other in (({key: ours[key] + change}, {}), ({}, {key: theirs[key] + change})):
                (said,) = counters.compare("reduce_shuffle", [ours | mine], [theirs | other])
                assert f"launch 0, sum, {key}: " in said
    assert "other launches" in counters.compare("reduce_shuffle", [ours, ours], [theirs])[0]
    assert "other launches" in counters.compare("reduce_shuffle", [{**ours, "kernel": "total"}], [theirs])[0]


@pytest.fixture
def recorded_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compilers of the record's release: another ptxas may write other code."""
    if toolchain.find_nvcc().release != (release := counters.recorded()["cuda"]):
        monkeypatch.setenv("CUDA_HOME", str(releases.from_pip(release)))


@pytest.mark.full
@pytest.mark.usefixtures("recorded_release")
@pytest.mark.parametrize("example", sorted({each.example for each in counters.DIFFERENCES if each.code}))
def test_the_machine_code_has_what_explains_a_difference(example: str):
    for each in counters.DIFFERENCES:
        if each.example == example:
            code = counters.opcodes(example, each.kernel)
            assert {opcode: code.count(opcode) for opcode in each.code} == each.code, each.kernel


def test_the_document_lists_these_differences():
    text = counters.DOCUMENT.read_text()
    assert counters.with_table(text) == text, "python -m docs.hardware.counters --table writes it"
    assert counters.table() in text
    launches = counters.recorded()["counts"].values()
    assert f"{len(launches)} programs of examples/ are in the record, with {sum(map(len, launches))} launches" in text


# ---- the runtime's answers -------------------------------------------------------------------------------------------

# Attributes (cudaDeviceAttr) of the GPU that was asked and of the machine it is in: its clocks, ECC, PCI addresses,
# width of its memory, copy engines.
OF_THAT_GPU = {13, 32, 34, 36, 37, 40}
# What the emulated device says that it has not, as docs/emulator.md does: cubemaps and mipmaps, registered host memory
# in kernels by its own address, memory and streams as only the driver's interface (cuMem..., cuStream...) uses them.
TEXTURES = {52, 53, 54, 66, 67, 68, 73, 74, 77}
NOT_HERE = {*TEXTURES, 44, 91, 96, 102, 103, 107, 108, 109, 110, 112, 113, 114, 116, 117, 118, 119, 121}


def test_the_stand_in_answers_what_the_runtime_answers():
    """Every call of the probe, and every attribute but those named above, as the recorded GPU's runtime has them."""
    command = [sys.executable, "-m", "cudaemu", "--arch", "9.0", "-q", str(counters.PROBE)]
    done = subprocess.run(command, cwd=counters.PROBE.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ours, theirs = done.stdout.splitlines(), counters.recorded()["runtime"]
    calls = [line for line in theirs if not line.startswith("attribute ")]
    assert len(calls) > 20 and len(theirs) - len(calls) > 100
    assert ours[: len(calls)] == calls
    assert len(ours) == len(theirs)
    different = {int(mine.split()[1]) for mine, other in zip(ours, theirs) if mine != other}
    assert different == OF_THAT_GPU | NOT_HERE
