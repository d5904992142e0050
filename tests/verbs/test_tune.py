"""`tune`: which kernels it times, where; and that `attention` gets what it chose, of either stage that computes it."""

from __future__ import annotations

import pytest
import torch

from common import course, gpu, tiles
from common.stage import Kernel, Stage
from common.verbs import tune
from cudaemu.hardware import Arch
from kernels.library import attention

ABLE = [course.load("16"), course.load("h7")]


@pytest.mark.parametrize("stage", ABLE, ids=lambda stage: stage.name)
def test_every_choice_is_a_kernel_and_the_default_comes_first(stage: Stage):
    macros, found = tiles.macros(stage), tune.candidates(stage)
    settings = [tuple(kernels[0].settings.values()) for kernels in found]
    assert len(set(settings)) == len(found) == 4
    for kernels in found:
        chosen = [tuple(tune.choice(kernel).values()) for kernel in kernels]
        assert len(set(chosen)) == len(kernels) > 1 and len(macros) == len(chosen[0])
        others = {name: value for name, value in kernels[0].variants.items() if name not in macros}
        assert all({**kernel.variants, **others} == dict(kernel.variants) for kernel in kernels)
        assert kernels[0].default or kernels[0].settings != stage.kernel().settings
        assert tune.choice(kernels[0]) == tune.choice(stage.kernel())


def test_sizes_are_those_that_attention_gives_a_stage():
    """A few queries go to stage 16: at these, h7 need not be fast."""
    older, newer = ([tune.shapes_of(kernels[0]) for kernels in tune.candidates(stage)] for stage in ABLE)
    assert min(shape[3] for shapes in older for shape in shapes) == 1
    for shapes in newer:
        assert len(shapes) >= 3 and all(shape[3] * shape[1] // shape[2] > attention.FEW_QUERIES for shape in shapes)


def test_stages_without_a_table_have_nothing_to_tune():
    assert [stage.name for stage in course.ladder() if tiles.macros(stage)] == [stage.name for stage in ABLE]


def test_attention_takes_what_was_chosen(monkeypatch, tmp_path):
    """For h7 on a GPU of 9.0, by name; before that, and on another GPU, what the course recorded."""
    monkeypatch.setenv("CUDAEMU_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "this one")
    monkeypatch.setattr(gpu, "capability", lambda device=None: Arch(9, 0))
    monkeypatch.setattr(Stage, "unfit", None)
    monkeypatch.setattr(Kernel, "launcher", lambda kernel, device=None: None)
    device, (_, stage) = torch.device("cuda"), ABLE

    def built(head_dim: int) -> Kernel:
        attention._built.cache_clear()
        return attention._built("fp16", device, head_dim, False, False)[0]

    def chosen(head_dim: int) -> tuple[int, int]:
        kernel = built(head_dim)
        assert kernel.stage.name == stage.name
        return kernel.variants["KEYS"], kernel.variants["MAX_WARPGROUPS"]

    try:
        assert chosen(64) == (128, 3) and chosen(128) == (128, 2)  # at D = 128 never more than two
        choices = {"HEAD_DIM=64 CAUSAL=0": {"KEYS": 64, "MAX_WARPGROUPS": 2}}
        tiles.save(stage, {"gpu": "this one", "capability": "9.0", "choices": choices})
        assert chosen(64) == (64, 2) and chosen(128) == (128, 2)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "another one")
        assert chosen(64) == (128, 3)
    finally:
        attention._built.cache_clear()
        tiles._read.cache_clear()
