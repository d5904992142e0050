"""Sectors and banks: the arithmetic of addresses behind the figures."""

from __future__ import annotations

import numpy as np
import pytest

from common.figures import layout

LANE = np.arange(32)


@pytest.mark.parametrize(
    ("addresses", "size", "count"),
    [
        (LANE * 4, 4, 4),  # 128 neighbouring bytes
        (LANE * 2, 2, 2),
        (LANE * 16, 16, 16),
        (LANE * 0, 4, 1),  # a broadcast
        (LANE * 32, 4, 32),  # a sector per lane
        (LANE * 2 + 16, 2, 3),  # 64 bytes that begin in the middle of a sector
        (np.array([30]), 4, 2),  # one access across the border of two sectors
    ],
)
def test_sectors(addresses, size, count):
    assert len(layout.sectors(addresses, size)) == count


@pytest.mark.parametrize(
    ("addresses", "size", "count", "minimum"),
    [
        (LANE * 4, 4, 1, 1),
        (LANE * 2, 2, 1, 1),  # two lanes share a word
        (LANE * 0, 4, 1, 1),
        (LANE * 8, 4, 2, 1),
        (LANE * 128, 4, 32, 1),
        (LANE * 132, 4, 1, 1),  # a padded column
        (LANE * 8, 8, 2, 2),  # half a warp at a time
        (LANE * 16, 16, 4, 4),  # a quarter at a time
        (LANE * 32, 16, 8, 4),
        (LANE * 128, 16, 32, 4),
        (LANE[:8] * 16, 16, 1, 1),  # one quarter is active
        (np.arange(1), 4096, 32, 1),  # a bulk copy
    ],
)
@pytest.mark.filterwarnings("error")
def test_wavefronts(addresses, size, count, minimum):
    served = layout.wavefronts(addresses, size)
    assert (served.count, served.minimum, served.conflicts) == (count, minimum, count - minimum)
    words = {(w, b) for w, b, turn in zip(served.wavefront, served.bank, served.word)}
    assert len(words) == len(set(zip(served.wavefront, served.bank, served.word))), "a bank delivers one word at a time"
    assert set(served.lane) == set(range(len(addresses)))


# ---- layouts of a tile ----


@pytest.mark.parametrize(("width", "plain"), [(8, 1), (16, 2), (32, 4), (64, 8), (128, 8)])
def test_padding_and_xor_cure_column_reads(width, plain):
    """Eight rows of 16 bytes, as ldmatrix reads them: conflicts by the row's length, none once cured."""
    for column in range(0, width, 8):
        assert layout.column_read(width=width, column=column).count == plain
        assert layout.column_read(width=width, column=column, padding=8).count == (1 if width >= 16 else 2)
        assert layout.column_read(width=width, column=column, xor=True).count == 1


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_xor_is_a_permutation_of_chunks(width):
    row, column = np.divmod(np.arange(64 * width), width)
    offsets = layout.tile_offset(row, column, width=width, element=2, xor=True)
    assert sorted(offsets) == list(range(0, 64 * width * 2, 2))
    assert np.array_equal(offsets // (width * 2), row), "it stays in its row"
    assert np.array_equal(offsets % 16, column * 2 % 16), "chunks of 16 bytes stay whole"
