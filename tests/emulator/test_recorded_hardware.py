"""What hardware.py asks of a GPU: how the answers are read, and that the same can be asked of the emulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.emulator import METRICS
from common.errors import UserError
from common.measure import ncu
from tests.emulator import hardware

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
    found = hardware.counted([tmp_path / "softmax", tmp_path / "votes"], tmp_path)
    kernels = {name: [launch["kernel"] for launch in launches] for name, launches in found.items()}
    assert kernels == {"softmax": ["softmax(const float *, int)"], "votes": ["agree(int)"] * 2}
    assert [launch["global_load_sectors"] for launch in found["softmax"] + found["votes"]] == [1234, 7, 8]
    assert [launch["instructions.ldmatrix"] for launch in found["votes"]] == [2, 3]


def test_what_an_ncu_says_that_cannot_is_told(fake_ncu, tmp_path):
    fake_ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    with pytest.raises(UserError, match=r"(?s)exit status 1.*ERR_NVGPUCTRPERM"):
        hardware.counted([], tmp_path)


def test_the_probe_of_the_runtime_runs_here_too():
    """Its answers are those of the stand-in, which chose them: a GPU's are compared by hand, when there is a record."""
    command = [sys.executable, "-m", "common.emulator", "-q", str(hardware.PROBE)]
    done = subprocess.run(command, cwd=hardware.PROBE.parents[2], capture_output=True, text=True, check=False)
    answers = {line[:70].strip(): line[71:] for line in done.stdout.splitlines() if not line.startswith("attribute")}
    assert done.returncode == 0 and len(answers) > 20, done.stdout + done.stderr
    assert answers["cudaMemcpy(d, h, 16, cudaMemcpyDefault)"] == "0 cudaSuccess"
    assert answers["(k<<<1, 2048>>>(d), cudaGetLastError())"] == "1 cudaErrorInvalidValue"
    assert answers["cudaMalloc(&nothing, 1ull << 45)"] == "2 cudaErrorMemoryAllocation"
