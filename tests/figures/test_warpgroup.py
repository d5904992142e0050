"""What the figures of wgmma say is what the PTX ISA documents, and what stage h1 writes to shared memory."""

from __future__ import annotations

import numpy as np
import pytest

import cudaemu
import kernels
from common.figures import accesses, warpgroup
from cudaemu.errors import UserError

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_warp_holds_sixteen_rows_in_the_layout_of_mma():
    lane, slot = np.meshgrid(np.arange(32), np.arange(4), indexing="ij")
    row, column = lane // 4 + slot // 2 * 8, lane % 4 * 2 + slot % 2
    fragments = warpgroup.held()
    assert len(fragments) == 4
    for each in fragments:
        assert (each.lane[row, column] == lane).all() and (each.register[row, column] == slot).all()
    figure = warpgroup.accumulator()
    assert [axes.get_title(loc="left") for axes in figure.axes][3] == "warp 3: rows 48–63"
    assert figure._repr_png_().startswith(PNG)


@pytest.mark.parametrize("number", [0, 3])
def test_the_operands_of_h1_are_where_its_copies_put_them(number: int):
    found = warpgroup.operands(accesses.run(kernels.load("h1")), number)
    a, b = found["A"], found["B"]
    i, k, r = np.indices(a.at.shape)
    row, chunk = 8 * i + r, 2 * number + k
    assert not a.transposed and (a.at == row * 128 + (chunk ^ row % 8) * 16).all()
    i, k, r = np.indices(b.at.shape)
    row = 16 * number + 8 * k + r  # along K; of 64 columns, 8 chunks, after 64 columns
    assert b.transposed and b.at.shape == (32, 2, 8)
    assert (b.at == 128 * 128 + i // 8 * 64 * 128 + row * 128 + (i % 8 ^ row % 8) * 16).all()
    assert a.place(3, 1, 2) == (26, 1) and b.place(3, 1, 2) == (10, 3)


def test_an_operand_in_registers_is_not_read_from_shared_memory():
    descriptors = np.array([warpgroup.dense(128, False).bits], np.uint64)
    report = cudaemu.load(warpgroup.READ, arch=warpgroup.ARCH, sanitize=False).launch(
        "read_operand", 1, 128, descriptors, 0, shared=warpgroup.SHARED, trace=cudaemu.Trace(blocks=range(1))
    )
    traced = accesses.Traced(report, "probe", [])
    assert list(warpgroup.operands(traced)) == ["B"]
    with pytest.raises(UserError, match="no wgmma with the number 1"):
        warpgroup.operands(traced, 1)


@pytest.mark.parametrize("swizzle", warpgroup.MODES)
def test_the_fields_mean_what_the_ptx_isa_says(swizzle: int):
    """Strides of canonical layouts: PTX ISA, "Matrix descriptor format"."""
    along_k = list(warpgroup.walk(swizzle, False).values())
    along_n = list(warpgroup.walk(swizzle, True).values())
    if swizzle:
        assert along_k == [f"{swizzle}", "stride", "–", "16", "not read"]
        assert along_n == [f"{swizzle}", "16", "leading", "stride", "read"]
    else:
        assert along_k == along_n == ["16", "stride", "–", "leading", "read"]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("swizzle", warpgroup.MODES)
def test_explore_shows_a_dense_operand_without_gaps(swizzle: int, transposed: bool):
    (operand,) = warpgroup.read([warpgroup.dense(swizzle, transposed)], transposed)
    at = np.sort(operand.at.ravel())
    assert len(np.unique(at)) == at.size
    if transposed or swizzle < 64:
        assert (np.diff(at) == 16).all()
    else:  # a row is longer than this operand is deep
        assert at.max() < 128 * swizzle
    figure = warpgroup.explore(swizzle, transposed)
    labels = [text.get_text() for text in figure.axes[0].texts]
    assert {"0·0", "0·1", "1·0"} <= set(labels) and len(labels) == len(set(labels))
    assert figure._repr_png_().startswith(PNG)


def test_explore_takes_fields_of_ones_own():
    figure = warpgroup.explore(128, True, leading=8192)
    lines = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert lines[0] == "0" and "1,920" in lines and "8,192" in lines
    said = {text.get_text(): text.get_position()[1] for text in figure.axes[1].texts}
    assert said["next box along M or N: + leading"] == lines.index("8,192") + 0.5
    assert said["next 8 along K: + stride"] == lines.index("1,024") + 0.5
    assert "leading 8,192, stride 1,024" in figure.texts[0].get_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"swizzle": 16}, "swizzle must be"),
        ({"stride": 8}, "stride must be"),
        ({"leading": 1 << 18}, "leading must be"),
    ],
)
def test_explore_refuses_what_a_descriptor_cannot_say(arguments: dict, message: str):
    with pytest.raises(UserError, match=message):
        warpgroup.explore(**arguments)


def test_steps_go_along_a_swizzled_row():
    figure = warpgroup.steps(accesses.run(kernels.load("h1")))
    assert "32 bytes" in figure.texts[0].get_text()
    assert {f"{row}·{chunk}" for row in range(16) for chunk in range(8)} == {t.get_text() for t in figure.axes[0].texts}
