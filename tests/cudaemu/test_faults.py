"""The public faults of examples/faults/: what PTX shows is found, at its line; nothing is found in what is right."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

import cudaemu
from cudaemu.hardware import Arch
from cudaemu.report import Report
from docs.hardware import faults, sanitizers
from docs.hardware.faults import FOLDER, Fault
from docs.hardware.programs import ROOT, executable, needed

FAULTS = faults.faults()
WRONG = [fault for fault in FAULTS if not fault.is_right]


def emulated(fault: Fault, strict: bool = False, **options: object) -> Report:
    path = ROOT / fault.source
    return cudaemu.program(path, arch=needed(path), strict=strict, counters=False, timeout=60, **options)


def test_what_there_is():
    assert len(WRONG) >= 50 and len(FAULTS) > len(WRONG)
    assert sum(fault.is_strict for fault in FAULTS) == 2, "the disputed rules"
    for fault in FAULTS:
        assert bool(fault.lines) == (fault.is_found and not fault.is_right), fault.name
        assert fault.is_right or "CORRECTED" in fault.text, fault.name
        assert len(fault.text.splitlines()) <= 75, fault.name
        assert {"PTX", "Hardware"} <= fault.fields.keys() or not fault.is_strict, fault.name


@pytest.mark.core(every=30)
@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: fault.name)
def test_it_is_found(fault):
    """First, with its kind, at a line of those that are marked. What is disputed only by a strict run."""
    report = emulated(fault, fault.is_strict)
    if fault.is_strict:
        usual = emulated(fault)
        assert not usual.findings and usual.status == 0, f"not only by a strict run: {usual}"
    if not fault.is_found:
        assert not report.findings and (report.status == 1) == (fault.kind == faults.WRONG), report
    elif fault.kind == faults.REFUSED:
        assert not report.findings and report.status == 1 and report.error, report
    else:
        assert report.findings and report.findings[0].kind == fault.kind, report
        named = [at for each in report.findings if each.kind == fault.kind for at in _lines(each)]
        assert set(named) & set(fault.lines), report


def _lines(finding) -> list[int]:
    """The lines that a finding names: its own, and those in its message."""
    return [finding.line, *(int(number) for number in re.findall(r"at line (\d+)", finding.message))]


@pytest.mark.core(every=30)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_nothing_is_found_in_what_is_right(fault):
    """In the twin, or in the program itself if it has no fault: by a strict run, and its result is right."""
    report = emulated(fault, strict=True, defines={} if fault.is_right else {"CORRECTED": "1"})
    assert not report.findings and not report.notes and report.status == 0, report


@pytest.mark.gpu
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_is_right_on_a_gpu(fault, tmp_path):
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    arch = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0].replace(".", "")
    wanted = needed(ROOT / fault.source)
    if not Arch.of(wanted).runs_on(arch):
        pytest.skip(f"needs compute capability {wanted}")
    program = executable(ROOT / fault.source, tmp_path / fault.name, wanted, f"sm_{arch}", ["-DCORRECTED"])
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "PASS\n"), done.stdout + done.stderr


@pytest.mark.full
def test_the_counter_of_what_is_slow():
    """bank_conflicts: its comment says how many passes of ldmatrix are conflicts."""
    path = FOLDER / "bank_conflicts.cu"
    for defines, conflicts in (({}, 28), ({"CORRECTED": "1"}, 0)):
        report = cudaemu.program(path, defines=defines)
        assert report.counters["shared_load_conflicts"] == conflicts
        assert report.counters["shared_load_wavefronts"] == conflicts + 4


def test_the_table_is_up_to_date():
    of = sanitizers.FAULTS
    text = of.document.read_text()
    assert sanitizers.with_table(text, sanitizers.recorded(of), of) == text, (
        "python -m docs.hardware.sanitizers --faults --table"
    )
    assert all(f"({fault.name}.cu)" in text for fault in FAULTS)


def test_a_file_that_says_nothing_of_itself(tmp_path):
    path = tmp_path / "x.cu"
    path.write_text("// What is wrong.\n// Public: somewhere\nint main() {}\n")
    with pytest.raises(ValueError, match="x.cu must begin with what is wrong"):
        faults._read(path)


def test_the_record_of_compute_sanitizer(tmp_path):
    """One call for a GPU: each program and its twin under each tool; here with a tool that finds nothing."""
    fake, record = tmp_path / "compute-sanitizer", tmp_path / "record.json"
    fake.write_text("#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\n")
    fake.chmod(0o755)
    words = ["--faults", "--only", "mask_of_five", "right_spin", "--unbroken", "--arch", "sm_90", "--json", str(record)]
    assert sanitizers.main([*words, "--sanitizer", str(fake)]) == 0
    raw = json.loads(record.read_text())
    twins = {"mask_of_five_lanes", "mask_of_five_lanes/unbroken", "right_spin_lock_in_a_warp"}
    assert raw["programs"].keys() == twins
    table = sanitizers.table(sanitizers.judged(raw), FAULTS, sanitizers.FAULTS)
    assert "| **0 of 1** | **0 of 1** |" in table and "| **0 of 2** | **0 of 2** |" in table
