"""The programs of programs/, in the manner of public benchmarks: each holds its kernels against its own host code.

A program's first lines say what it is, how it is run, and the last line that it prints:

    // Run: cudaemu --arch 9.0 cluster_reduce.cu
    // Prints: 6 clusters of 4 blocks: 4720128
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cudaemu.__main__ import main
from tests.tiers import core

FOLDER = Path(__file__).with_name("programs")
PROGRAMS = {
    path.stem: (shlex.split(run[1]), prints[1])
    for path in sorted(FOLDER.glob("*.cu"))
    if (run := re.search(r"^// Run: cudaemu (.+)$", path.read_text(), re.MULTILINE))
    and (prints := re.search(r"^// Prints: (.+)$", path.read_text(), re.MULTILINE))
}


CORE = (  # one of each kind
    "async_copies",
    "driver_ptx",
    "game_of_life",
    "graph_nodes",
    "locks_and_queues",
    "managed_memory",
    "sha256",
    "textures_and_surfaces",
)


@pytest.mark.parametrize("name", core(PROGRAMS, lambda name: name if name in CORE else None))
def test_program(name, monkeypatch, capfd):
    """With the sanitizer on: the status of success, nothing to find, the line that is expected."""
    words, prints = PROGRAMS[name]
    monkeypatch.chdir(FOLDER)
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capfd.readouterr()
    assert ended.value.code == 0 and out.splitlines()[-1:] == [prints], out + err
    assert ", no findings" in err


def test_each_file_is_a_program_or_belongs_to_one():
    named = {word for words, _ in PROGRAMS.values() for word in words if word.endswith(".cu")}
    assert named == {path.name for path in FOLDER.glob("*.cu")} and len(PROGRAMS) >= 60
