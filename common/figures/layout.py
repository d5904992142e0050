"""Which sectors and which banks a warp's request touches: the arithmetic behind the figures, and a layout explorer.

Pure functions of addresses; nothing here runs a kernel. The rules are those that the emulator counts by (the tests hold
the two equal on executed requests):

- Global memory moves 32-byte *sectors*; four of them make a 128-byte cache line. A request costs the sectors that it
  touches.
- Shared memory has 32 *banks* of 4-byte words; word w lies in bank w % 32. In one *wavefront* each bank delivers one
  word, to any number of lanes. A request with 8 bytes per lane is served half a warp at a time, with 16 bytes a quarter
  at a time, `ldmatrix` one 8 x 8 matrix (8 row addresses of 16 bytes) at a time. A load whose neighbours (all lanes i
  and i ^ 1, or all i and i ^ 2) want the same is served twice as many lanes at a time.
- `cp.async` of 16 bytes past L1 fetches a sector once for each sector of shared memory that it goes to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SECTOR = 32  # bytes that global memory moves at least
LINE = 128  # bytes of a cache line, and of one word from every bank
BANKS = 32
WORD = 4  # bytes per bank and wavefront
WARP = 32  # lanes


def sectors(addresses: np.ndarray, size: int) -> np.ndarray:
    """Sorted numbers of the 32-byte sectors that accesses of `size` bytes at `addresses` touch."""
    addresses = np.asarray(addresses, dtype=np.int64)
    touched = addresses[:, None] + np.arange(0, size, min(size, WORD))
    last = addresses + size - 1
    return np.unique(np.concatenate([touched.ravel(), last]) // SECTOR)


@dataclass(frozen=True)
class Wavefronts:
    """How the banks serve one request: entry i says that in wavefront[i], bank[i] delivers word[i] to lane[i].

    turn[i] counts the wavefronts for which this word waited while its bank delivered others: above 0 is a conflict.
    """

    wavefront: np.ndarray
    turn: np.ndarray
    bank: np.ndarray
    word: np.ndarray
    lane: np.ndarray
    count: int  # wavefronts in all
    minimum: int  # wavefronts that the same request would take without conflicts

    @property
    def conflicts(self) -> int:
        return self.count - self.minimum


def _served_together(addresses: np.ndarray, size: int, lanes: np.ndarray, load: bool) -> int:
    """How many neighbouring lanes are served at a time."""
    together = max(1, WARP // max(1, size // WORD))  # a bulk copy is longer than what a warp is served at once
    at = dict(zip(lanes.tolist(), addresses.tolist()))
    alike = (all(at.get(lane ^ bit, address) == address for lane, address in at.items()) for bit in (1, 2))
    return 2 * together if load and together < WARP and any(alike) else together


def wavefronts(addresses: np.ndarray, size: int, lanes: np.ndarray | None = None, load: bool = False) -> Wavefronts:
    """Serve one shared-memory request of `size` bytes per lane at byte offsets `addresses` (one per active lane).

    `load`: an ordinary load (not `ldmatrix`). Equal to what ncu counts on an H200 (docs/hardware/banks.py).
    """
    addresses = np.asarray(addresses, dtype=np.int64)
    lanes = np.arange(len(addresses)) if lanes is None else np.asarray(lanes, dtype=np.int64)
    together = _served_together(addresses, size, lanes, load)
    rows: list[tuple[int, ...]] = []
    count = minimum = 0
    for group in np.unique(lanes // together):
        queue: dict[int, list[int]] = {}  # bank -> its distinct words, in the order in which the lanes ask
        for lane, address in zip(lanes, addresses):
            if lane // together != group:
                continue
            for word in range(int(address) // WORD, (int(address) + size - 1) // WORD + 1):
                words = queue.setdefault(word % BANKS, [])
                if word not in words:
                    words.append(word)
                rows.append((count + words.index(word), words.index(word), word % BANKS, word, int(lane)))
        count += max(len(words) for words in queue.values())
        minimum += 1
    wavefront, turn, bank, word, lane = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return Wavefronts(wavefront, turn, bank, word, lane, count, minimum)


def copied_sectors(sources: np.ndarray, targets: np.ndarray) -> list[tuple[int, int]]:
    """What `cp.async.cg` of 16 bytes per lane fetches from L2: pairs of a sector of global and one of shared memory.

    `sources` are addresses, `targets` offsets in shared memory, an entry per lane that reads. A sector whose halves go
    to different sectors is in two pairs, and is sent twice. Found on an H200, whose counter of the sectors between L2
    and L1 is equal for all patterns of docs/hardware/banks.py; NVIDIA documents no rule.
    """
    return sorted(set(zip((sources // SECTOR).tolist(), (targets // SECTOR).tolist())))


def tile_offset(
    row: np.ndarray,
    column: np.ndarray,
    *,
    width: int,
    element: int,
    padding: int = 0,
    xor: bool = False,
    chunk: int = 16,
) -> np.ndarray:
    """Byte offset of element (row, column) of a shared-memory tile.

    `width` elements of `element` bytes per row, plus `padding` elements that hold nothing. `xor` permutes the 16-byte
    chunks of a row: chunk c of row r lies at c ^ (r / p % n), where n is the number of chunks in a row (at most the 8
    of 128 bytes) and p the number of rows in 128 bytes, so that 8 rows of a column of chunks fill all 32 banks.
    """
    row, column = np.asarray(row, dtype=np.int64), np.asarray(column, dtype=np.int64)
    byte = column * element
    if xor:
        chunks = min(LINE, width * element) // chunk
        rows_per_line = max(1, LINE // (width * element))
        index = byte // chunk
        byte = (index ^ (row // rows_per_line % chunks)) * chunk + byte % chunk
    address: np.ndarray = row * (width + padding) * element + byte
    return address


def column_read(
    *, width: int, element: int = 2, padding: int = 0, xor: bool = False, column: int = 0, rows: int = 8
) -> Wavefronts:
    """The banks of one 8 x 8 matrix of `ldmatrix`: `rows` rows of a tile, 16 bytes of each, starting at `column`."""
    offsets = tile_offset(
        np.arange(rows), np.full(rows, column), width=width, element=element, padding=padding, xor=xor
    )
    return wavefronts(offsets, 16)
