"""The broken kernels: the emulator finds each, with its class, its line, a block and a thread, and says why."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import cudaemu
from common import course
from cudaemu.process import HostFinding
from cudaemu.report import Report
from docs.hardware import sanitizers, suite
from docs.hardware.programs import ROOT
from docs.hardware.suite import Broken
from tests.cudaemu.sources import broken_source
from tests.cudaemu.sources import source as kept
from tests.tiers import core

SUITE = suite.suite()


def named(name: str) -> Broken:
    return next(broken for broken in SUITE if broken.name == name)


def test_what_the_suite_has():
    """At least fifty, of every stage and of most examples, and of every class that a broken kernel can be of."""
    assert len(SUITE) >= 50
    patched = Counter(broken.source for broken in SUITE)
    assert not [stage.name for stage in course.ladder() if not patched[f"kernels/{stage.name}/kernel.cu"]]
    assert sum(source.startswith("examples/") for source in patched) >= 10
    assert {
        *("out of bounds global", "out of bounds shared", "out of bounds local", "null pointer", "misaligned"),
        *("uninitialised global read", "uninitialised shared read", "undefined value", "copy in flight"),
        *("shared race", "global race", "barrier divergence", "warp divergence", "lane outside its mask"),
        *("deadlock", "stack overflow", "assertion failed", "wrong stream", "device pointer on the host"),
        *("managed memory too early", "leak", suite.REFUSED),
    } <= {broken.kind for broken in SUITE}
    assert len({broken.text for broken in SUITE}) == len(SUITE)


@pytest.mark.parametrize("broken", SUITE, ids=lambda broken: broken.name)
def test_the_patch_applies(broken):
    """To today's sources, at one line or more that it names; and it is one that git and patch take."""
    assert broken.lines, f"no line has '{broken.line}'"
    assert broken.text != (ROOT / broken.source).read_text()
    if shutil.which("git") and (ROOT / ".git").exists():
        command = ["git", "apply", "--check", f"examples/broken/{broken.name}.patch"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def emulated(broken: Broken) -> Report:
    """Run it in the emulator: a stage's launcher with the problem's tensors, an example as a program."""
    options = {"counters": False} | ({"arch": broken.arch} if broken.arch else {})
    if broken.is_program:
        return cudaemu.program(broken_source(broken), broken.run, timeout=60, leaks=True, **options)
    kernel = broken.kernel(broken_source(broken))
    spec, shape = kernel.stage.spec, broken.shape
    inputs = spec.inputs(shape, kernel.dtype, kernel.variants)
    outputs = spec.outputs(shape, kernel.dtype, kernel.variants)
    return kernel.emulate(inputs, outputs, refused_is_error=False, **options)


@pytest.mark.parametrize(
    "broken",
    core(sorted(SUITE, key=lambda broken: not broken.is_program), lambda broken: broken.tools),
    ids=lambda broken: broken.name,
)
def test_it_is_found(broken):
    report = emulated(broken)
    assert not report.ok
    kinds = {found.kind for found in (*report.findings, *report.notes)} or {broken.kind}
    assert not _missed(broken, kinds), "found by compute-sanitizer and not here"
    if broken.kind == suite.REFUSED:
        assert not report.findings and report.status and re.search(broken.says, report.error), report
        return
    assert report.findings and report.findings[0].kind == broken.kind, f"something else comes first: {report}"
    found = [finding for finding in report.findings if finding.kind == broken.kind and _lines(finding) & broken.lines]
    assert found, f"not found at {sorted(broken.lines)}: {report}"
    told = [finding for finding in found if re.search(broken.says, finding.message)]
    assert told, f"'{broken.says}' is not said: {report}"
    finding, text = told[0], broken.text.split("\n")
    assert Path(finding.file) == broken_source(broken) and text[finding.line - 1].strip() in str(report)
    if isinstance(finding, HostFinding):
        return
    launches = [launch for launch in report.launches if launch.kernel == finding.kernel]
    inside = zip(finding.block + finding.thread, launches[0].grid + launches[0].block)
    assert all(0 <= index < size for index, size in inside)
    assert f"{finding.kernel}, block {finding.block} thread {finding.thread}" in str(finding)


OUT_OF_BOUNDS = {"out of bounds global", "out of bounds shared", "out of bounds local", "null pointer", "misaligned"}
UNWRITTEN = "uninitialised copy to the host"
COUNTERPARTS = {  # what compute-sanitizer calls it, in the words of the table -> what the emulator does
    r"invalid \w+ (read|write)": OUT_OF_BOUNDS,
    r"stack overflow": {"stack overflow"},
    r"assertion": {"assertion failed"},
    r"leak": {"leak"},
    r"illegal instruction|invalid arguments": {"lane outside its mask", "tensor map", "warp divergence"},
    r"incomplete warpgroup": {"warp divergence"},
    r"unknown Error": {"deadlock", "mbarrier", "copy in flight"},  # TMA and mbarriers, by the hardware itself
    r"barrier overflow": {"mbarrier"},
    r"missing wait": {"copy in flight"},
    r"misaligned shared or local address": {"misaligned"},
    r"out-of-range shared or local address": OUT_OF_BOUNDS,
    r"`cudaErrorLaunchFailure`": {"misaligned"},
    r"`cudaErrorInvalidValue`": {suite.REFUSED},
    r"(potential )?invalid \w+ atomic.*": {"block of the cluster not there", "out of bounds shared"},
    r"copy in flight": {"copy in flight"},
    r"\w+ hazard": {"shared race"},
    r"divergent thread\(s\) in (block|warp)": {"barrier divergence"},
    r"uninitialised global read": {"uninitialised global read", "out of bounds global"},  # beyond A lies B, or nothing
    UNWRITTEN: {UNWRITTEN, suite.REFUSED},
}


def _missed(broken, kinds: set[str]) -> list[str]:
    """What the recorded tools say of it and the emulator's findings and notes, of these kinds, do not.

    A stage's output is the caller's tensor here, and nothing is copied: of what was never written a program is told."""
    missed = []
    for tool, result in sanitizers.findings(sanitizers.recorded(), SUITE)[broken.name].items():
        said = sanitizers.cell(result)
        if result["verdict"] != "found" or (said == UNWRITTEN and not broken.is_program):
            continue
        (counterparts,) = (kinds for pattern, kinds in COUNTERPARTS.items() if re.fullmatch(pattern, said))
        if not counterparts & kinds:
            missed.append(f"{tool}: {said}")
    return missed


def _lines(finding) -> set[int]:
    """The lines that a finding names: its own, that of the call of a lambda, those in its message."""
    called = getattr(finding, "call_line", 0)
    return {finding.line, called} | {int(number) for number in re.findall(r"at line (\d+)", finding.message)}


# ---- the patches themselves ------------------------------------------------------------------------------------------


PATCH = """\
Broken: nothing
Class: shared race
Says: x
Line: y
Tool: none
--- a/examples/votes.cu
+++ b/examples/votes.cu
@@ -1,1 +1,1 @@
-// Votes
+// Vetoes
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Tool: none\n", "", "does not say 'Tool:'"),
        ("Says:", "Sais:", "'Sais: x'"),
        ("b/examples/votes.cu", "b/examples/other.cu", "changes no single file"),
        ("-1,1", "-1,2", "is not as long as it says"),
    ],
)
def test_a_patch_that_is_none(old, new, said, tmp_path):
    path = tmp_path / "a.patch"
    path.write_text(PATCH.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(said)):
        suite._read(path)


def test_a_patch_that_applies_no_more(tmp_path):
    path = tmp_path / "a.patch"
    path.write_text(PATCH)
    with pytest.raises(ValueError, match="a.patch: examples/votes.cu .* 0 times"):
        _ = suite._read(path).text


# ---- as programs -----------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["02-no-trailing-barrier", "13-tile-too-far-ahead", "16-parts-overlap", "h8-sums-read-early"]
)
def test_the_drivers(name):
    """Each driver runs its kernel to the end with nothing to find, and what is broken is found the same way."""
    broken = named(name)
    reports = []
    for text in ((ROOT / broken.source).read_text(), broken.text):
        whole, arguments, defines = suite.program(broken, text)
        path = kept(whole, f"program_{name}_{len(reports)}")
        arch = broken.kernel(ROOT / broken.source).stage.min_arch
        reports.append(cudaemu.program(path, arguments, defines=defines, arch=arch, counters=False))
    right, report = reports
    assert str(right) == "no findings"
    assert report.findings[0].kind == broken.kind
    assert {line for finding in report.findings for line in _lines(finding)} & broken.lines


# ---- under compute-sanitizer -----------------------------------------------------------------------------------------

FAKE = """#!{python}
import sys, time
if "--help" in sys.argv: print("--leak-check --racecheck-report")
elif "--version" in sys.argv: print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1")
else:
    tool, broken = sys.argv[sys.argv.index("--tool") + 1], "unbroken" not in sys.argv[-1]
    print("========= COMPUTE-SANITIZER\\nPASS", flush=True)
    assert "--initcheck-address-space" not in sys.argv, "an option that this release does not have"
    if tool == "memcheck" and broken:
        print("========= Invalid __global__ read of size 4 bytes\\n=========     at f(int)+0x70 in /x/votes.cu:7")
    if tool == "initcheck": sys.exit("========= Error: Device not supported")
    if tool == "racecheck": time.sleep(60)
    print(f"========= ERROR SUMMARY: {{int(tool == 'memcheck' and broken)}} errors")
    sys.exit(9 if tool == "memcheck" and broken else 0)
"""


def test_the_record_of_compute_sanitizer(tmp_path):
    """With a compute-sanitizer that does all that one can do: find something, nothing, hang, fail."""
    fake, record = tmp_path / "compute-sanitizer", tmp_path / "record.json"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(0o755)
    words = ["--only", "votes", "--unbroken", "--jobs", 2, "--timeout", 3, "--arch", "sm_90"]
    command = [sys.executable, "-m", "docs.hardware.sanitizers", "--json", record, "--sanitizer", fake, *words]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 programs built" in done.stdout
    saved = json.loads(record.read_text())
    assert saved["about"]["sanitizer"] == "2025.3.1"
    broken, unbroken = (saved["programs"][name] for name in ("votes-wrong-group", "votes-wrong-group/unbroken"))
    verdicts = {"memcheck": "found", "racecheck": "timeout", "initcheck": "failed", "synccheck": "clean"}
    assert {tool: result["verdict"] for tool, result in broken.items()} == verdicts
    assert broken["memcheck"]["message"] == "Invalid __global__ read of size 4 bytes"
    assert broken["memcheck"]["at"] == "votes.cu:7" and broken["memcheck"]["status"] == 9
    assert unbroken["memcheck"]["verdict"] == "clean" and unbroken["memcheck"]["output"][1] == "PASS"
    judged = sanitizers.judged(saved)
    assert "output" not in judged["programs"]["votes-wrong-group"]["memcheck"]
    row = next(line for line in sanitizers.table(judged, SUITE).split("\n") if "[votes-wrong-group]" in line)
    assert row.endswith("| lane outside its mask | invalid global read | *hangs* | *failed* | – |")


def test_a_tool_that_does_not_work_here_is_not_tried_again_and_again(tmp_path):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text("#!/bin/sh\necho called >>$0.log\necho '========= Error: Device not supported'\n")
    fake.chmod(0o755)
    words = ["--only", "votes", "--arch", "sm_90", "--json", str(tmp_path / "record.json"), "--sanitizer", str(fake)]
    with pytest.raises(SystemExit, match="Device not supported"):
        sanitizers.main(words)
    calls = (tmp_path / "compute-sanitizer.log").read_text().split()
    assert len(calls) == 3  # --version, --help, and one program


def test_what_cannot_be_built_or_is_not_reached_is_recorded(tmp_path):
    for words, result in (
        (["--arch", "sm_1"], {"build": "failed"}),
        (["--arch", "sm_90", "--budget", "0"], {"build": "not reached"}),
    ):
        record = tmp_path / "record.json"
        arguments = ["--only", "votes", "--json", str(record), "--sanitizer", "true", *words]
        assert sanitizers.main(arguments) == 0
        results = json.loads(record.read_text())["programs"]["votes-wrong-group"]
        assert {tool: each["verdict"] for tool, each in results.items()} == result


def test_a_program_that_hangs_is_ended(tmp_path):
    """With all that it has started, in whatever session."""
    program = tmp_path / "program"
    shutil.copy(shutil.which("sleep"), program)
    script = f"import subprocess; subprocess.Popen([{str(program)!r}, '60'], start_new_session=True).wait()"
    status, _ = sanitizers.execute([sys.executable, "-c", script], tmp_path, 1)
    assert status is None
    deadline = time.monotonic() + 10
    while (
        running := [p for p in Path("/proc").glob("[0-9]*") if _program(p) == program]
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running


def _program(process: Path) -> Path | None:
    try:
        return (process / "exe").readlink()
    except OSError:
        return None


def test_records_are_joined():
    """What is known stays known, what was not reached is filled in; another GPU begins anew."""
    about = {"gpu": "H200", "driver": "580", "cuda": "13.0", "sanitizer": "2025.3"}
    found, clean, not_reached = ({"verdict": verdict} for verdict in ("found", "clean", "not reached"))
    earlier = {"about": about, "programs": {"a": {"memcheck": found, "racecheck": not_reached}}}
    later = {"about": about, "programs": {"a": {"memcheck": not_reached, "racecheck": clean}, "b": {"memcheck": clean}}}
    programs = sanitizers.joined(earlier, later)["programs"]
    assert programs == {"a": {"memcheck": found, "racecheck": clean}, "b": {"memcheck": clean}}
    assert sanitizers.ran(earlier) == {("a", "memcheck")}
    assert sanitizers.joined(earlier, {**later, "about": {**about, "gpu": "H100"}})["programs"] == later["programs"]


def test_what_the_document_says_of_the_record():
    """Its sums, and the names of those about which there is something to say."""
    record, text = sanitizers.recorded(), " ".join(sanitizers.BROKEN.document.read_text().split())
    said = sanitizers.findings(record, SUITE)
    ran = [broken for broken in SUITE if said[broken.name]]
    assert all(f"`{broken.name}`" in text for broken in SUITE if broken not in ran), "newer than the record"

    def names(verdict: str, enough: Callable) -> set[str]:
        return {
            broken.name
            for broken in ran
            if enough(said[broken.name][tool]["verdict"] == verdict for tool in sanitizers.TOOLS)
        }

    found, hung = names("found", any), names("timeout", all)
    silent = {broken.name for broken in ran} - found - hung
    assert f"{len(found)} of the {len(ran)}" in text
    assert f"{len(hung)} of the other {len(ran) - len(found)} hang" in text
    assert f"On {len(silent)} no tool reports" in text and len(hung) == len(ran) - len(found) - len(silent)
    for group in (hung, silent):
        assert all(f"`{name}`" in text for name in group), group
    unbroken = {name: results for name, results in record["programs"].items() if name.endswith("/unbroken")}
    noisy = {name for name, results in unbroken.items() if any(r["verdict"] != "clean" for r in results.values())}
    stored_by_tma = {name for name in noisy if name[:2] in ("h4", "h5", "h7")}
    assert noisy - stored_by_tma == {"05-ragged-accepted/unbroken"} and "`05-ragged-accepted`" in text
    assert f"{len(unbroken)} programs before they were broken" in text and f"on {len(stored_by_tma)} more" in text
    assert f"{len(noisy)} findings in {len(unbroken) * len(sanitizers.TOOLS)} runs" in text


def test_the_table_is_up_to_date():
    """Of the suite as it is, and of the record, if there is one."""
    text = sanitizers.BROKEN.document.read_text()
    assert sanitizers.with_table(text, sanitizers.recorded()) == text, "python -m docs.hardware.sanitizers --table"
    assert all(f"/{broken.name}.patch)" in text for broken in SUITE)


REPORTS = {
    "race": (
        """\
========= Error: Race reported between Write access at sum(int *)+0x90 in block_error.cu:41
=========     and Read access at sum(int *)+0x100 in block_error.cu:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
""",
        ("found", "block_error.cu:41", "race"),
    ),
    "copy": (
        """\
========= Error: Potential RAW hazard detected at __shared__ 0x0 in block (0,0,0) :
=========     Write Thread (0,0,0) at k(int *)+0xb0 in copy.cu:9 (invalid memcpy_async synchronization)
=========     Read Thread (1,0,0) at k(int *)+0x110 in copy.cu:12
=========     Current Value : 0
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
""",
        ("found", "copy.cu:9", "copy in flight"),
    ),
    "barrier": (
        """\
========= Barrier error detected. Divergent thread(s) in block
=========     at ThreadDivergence(int *, int)+0xf0 in divergence.cu:79
=========     by thread (37,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
""",
        ("found", "divergence.cu:79", "divergent thread(s) in block"),
    ),
    "refused": (
        """\
========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaLaunchKernel.
=========
========= ERROR SUMMARY: 1 error
""",
        ("found", "", "`cudaErrorInvalidValue`"),
    ),
    "ended": (
        """\
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to x.
=========
========= Leaked 344 bytes at 0x7f4
=========
========= LEAK SUMMARY: 344 bytes leaked in 1 allocations
========= ERROR SUMMARY: 2 errors
""",
        ("found", "", "`cudaErrorLaunchFailure`"),
    ),
    "nothing": ("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", ("clean", "", "–")),
    "wrong result": (
        "========= COMPUTE-SANITIZER\nFAIL\n========= Target application returned an error\n"
        "========= ERROR SUMMARY: 0 errors\n",
        ("clean", "", "–"),
    ),
    "leak": (
        """\
========= Leaked 400 bytes at 0x7f1
=========
========= LEAK SUMMARY: 400 bytes leaked in 1 allocations
========= ERROR SUMMARY: 1 error
""",
        ("found", "", "leak"),
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_of_compute_sanitizer(name):
    """As its manual shows them."""
    report, (verdict, at, words) = REPORTS[name]
    result = sanitizers.digest(0, report)
    assert (result["verdict"], result["at"], sanitizers.cell(result)) == (verdict, at, words)
