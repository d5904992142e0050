"""The command line: help that helps, and errors with exit status 2 and no traceback."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels
from common.cli import LADDER_VERBS as LADDER
from common.cli import VERBS
from common.stage import KERNELS

ROOT = KERNELS.parent
BROKEN = {
    "unknown verb": (("kernels.01_naive", "tset"), "Did you mean 'test'? It has: test, bench"),
    "unknown ladder verb": (("kernels", "count"), "It has: list, test, bench, profile"),
    "unknown stage": (("kernels.99_nope", "test"), "the course has no stage '99_nope'"),
    "unknown stage of the ladder": (("kernels", "test", "97"), "the course has no stage '97'"),
    "unknown option": (("kernels.01_naive", "test", "--fast"), "unrecognized arguments: --fast"),
    "unknown dtype": (("kernels.01_naive", "test", "--dtype", "fp8"), "01_naive has no dtype 'fp8'"),
    "unknown variant": (("kernels.01_naive", "test", "--variant", "STAGES=2"), "01_naive has no variant 'STAGES'"),
    "variant value": (("kernels.01_naive", "test", "--variant", "COALESCED=3"), "COALESCED must be one of 0, 1"),
    "variant syntax": (("kernels.01_naive", "test", "--variant", "COALESCED"), "--variant must be NAME=VALUE"),
    "size syntax": (("kernels.01_naive", "test", "--sizes", "big"), "got 'big'"),
    "size of zero": (("kernels.01_naive", "test", "--sizes", "0"), "got '0'"),
    "two sizes": (("kernels.01_naive", "test", "--sizes", "12x13"), "MxNxK"),
    "shape": (("kernels.03_thread_tile", "test", "--sizes", "1000"), "got 1000 (896 and 1024 are nearest)"),
    "hours": (
        ("kernels.01_naive", "test", "--device", "emulator", "--sizes", "8192"),
        "busy for about 37 minutes; try --sizes 256",
    ),
    "device": (("kernels.01_naive", "test", "--device", "tpu"), "invalid choice: 'tpu'"),
    "missing source": (("kernels.01_naive", "test", "--source", "nowhere.cu"), "nowhere.cu: there is no such file"),
    "watch of no stage": (("kernels", "test", "--watch", "01"), "--watch must be given to one stage"),
    "source of no stage": (("kernels", "test", "--source", "my.cu"), "--source must be given to one stage"),
    "nothing before": (("kernels.01_naive", "diff"), "01_naive follows no stage"),
    "large seed": (("kernels.01_naive", "test", "--seed", str(2**63)), "must be a whole number of 64 bits"),
    "seed of letters": (("kernels.01_naive", "count", "--seed", "x"), "64 bits, got 'x'"),
    "variants of the ladder": (("kernels", "bench", "--variant", "STAGES=2"), "--variant must be given to one stage"),
    "memory": (("kernels.01_naive", "test", "--device", "emulator", "--sizes", "1000000000x1x1"), "GiB of memory"),
}


@pytest.mark.parametrize("argv, message", BROKEN.values(), ids=BROKEN.keys())
def test_wrong_input(command, argv, message):
    status, out, err = command(*argv)
    assert status == 2
    error = err[err.index("error: ") :]
    assert message in error and "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize("package", ["kernels", *(stage.package for stage in kernels.ladder())])
@pytest.mark.parametrize("argv", [(), ("--help",)])
def test_without_a_verb_the_verbs_are_shown(command, package, argv):
    status, out, _ = command(package, *argv)
    assert status == 0
    shown = {verb for verb, text in VERBS.items() if f"  {verb} " in out and text in out}
    some = {
        "tune": {"16_final", "h7_flash_attention_3"},
        "timeline": {"h3_warp_specialized", "h4_ping_pong", "h7_flash_attention_3"},
    }
    stage = package.partition(".")[2]
    assert shown == set(VERBS) - {verb for verb, stages in some.items() if stage and stage not in stages}
    listed = 0 if stage else len(kernels.ladder())
    assert max(map(len, out.splitlines())) <= 80 and out.count("\n") - listed <= (45 if stage else 22)


@pytest.mark.parametrize(
    "package, verb", [*(("kernels.01_naive", v) for v in VERBS), *(("kernels", v) for v in LADDER)]
)
def test_every_verb_has_help(command, package: str, verb: str):
    status, out, _ = command(package, verb, "--help")
    assert status == 0
    assert VERBS.get(verb, "") in out and f"python -m {package} {verb}" in out


@pytest.mark.parametrize("stage", kernels.ladder(), ids=lambda stage: stage.name)
def test_the_examples_of_help_are_command_lines_of_that_stage(command, parse, stage):
    for verb in VERBS:
        _, out, _ = command(stage.package, verb, "--help")
        given = [
            line.split()[4:] for line in out.splitlines() if line.startswith(f"  python -m {stage.package} {verb}")
        ]
        assert given[0] == [] and len(given) > 1, "the verb alone, then with options"
        for words in given:
            args = parse(importlib.import_module(f"common.verbs.{verb}"), *words)
            for choice in getattr(args, "variant", []):
                name, _, value = choice.partition("=")
                assert choice == "all" or value == "all" or int(value) in stage.variants[name]
            assert getattr(args, "dtype", None) in (None, "all", *stage.dtypes)


def test_list_names_every_stage(command):
    status, out, _ = command("kernels", "list")
    assert status == 0 and all(stage.name in out for stage in kernels.ladder())


def test_diff_shows_and_counts(command):
    status, out, _ = command("kernels.02_block_tile", "diff")
    assert status == 0
    assert "-constexpr" not in out.partition("@@")[0]
    assert "+constexpr int BLOCK_K = 32;" in out
    added = sum(line.startswith("+") and not line.startswith("+++") for line in out.splitlines())
    assert f"01_naive -> 02_block_tile: +{added} -" in out


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("package", ["kernels", "kernels.01_naive"])
def test_modules_run(package):
    done = python("-m", package)
    assert done.returncode == 0 and "Start with" in done.stdout


def tools(directory: Path, *names: str) -> str:
    """A PATH that has no tools but these."""
    for name in names:
        (directory / name).symlink_to(Path("/usr/bin") / name)
    return str(directory)


def test_no_host_compiler(tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0'\n")
    nvcc.chmod(0o755)
    done = python(
        "-m", "kernels.01_naive", "test", PATH=tools(tmp_path, "sh"), CXX="", CUDA_HOME="", CUDAEMU_CACHE=str(tmp_path)
    )
    assert done.returncode == 2
    assert "no C++ compiler found" in done.stderr and "Traceback" not in done.stderr


def test_no_nvcc(command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr("cudaemu.compiler.toolchain._pip_tool", lambda name: None)
    status, _, err = command("kernels.01_naive", "test", "--device", "emulator")
    assert status == 2 and 'pip install "cuda-toolkit[nvcc,cccl]" nvidia-cuda-cuobjdump' in err


def test_a_folder_that_is_gone_is_no_hindrance(tmp_path):
    (tmp_path / "gone").mkdir()
    script = f'cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && exec "$0" -m kernels.01_naive'
    words = ["/bin/sh", "-c", script, sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "01_naive/kernel.cu" in done.stdout


def test_a_source_without_a_kernel_has_no_machine_code(command, tmp_path):
    (tmp_path / "empty.cu").write_text("// DTYPE\n")
    status, _, err = command("kernels.01_naive", "sass", "--source", tmp_path / "empty.cu")
    assert status == 2 and "defines no kernel" in err
