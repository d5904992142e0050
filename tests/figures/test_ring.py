"""The timeline of the buffers: groups, buffers, waits and reads as the kernels execute them."""

from __future__ import annotations

import pytest
import torch

import kernels
from common.figures import accesses, ring
from cudaemu.errors import UserError

SLICES, SLICE = 6, 32


def traced(number: int, length: int = SLICES * SLICE, **variants: int) -> accesses.Traced:
    return accesses.run(kernels.load(number).kernel(variants=variants), (128, 256, length))


@pytest.fixture(scope="module")
def rings() -> dict[int, list[ring.Slice]]:
    """Buffers -> slices: stage 07 has one, the variants of 08 as many as they say."""
    return {1: ring.slices(traced(7))} | {n: ring.slices(traced(8, STAGES=n)) for n in (2, 3, 5)}


@pytest.mark.core(every=4)
@pytest.mark.parametrize("buffers", [1, 2, 3, 5])
def test_slices_go_round_the_ring(rings, buffers):
    """Both operands come in every group: together they are a slice."""
    found = rings[buffers]
    assert {one.tensors for one in found} == {("A", "B")} and [one.number for one in found] == list(range(SLICES))
    assert [one.buffer for one in found] == [number % buffers for number in range(SLICES)]
    assert ring.in_flight(found) == buffers - 1
    assert {len(one.copies) for one in found} == {6} and {len(one.reads) for one in found} == {16}
    moments = sorted(moment for one in found for moment in one.copies + one.reads)
    assert moments == list(range(len(moments)))


@pytest.mark.parametrize("buffers", [1, 2, 3, 5])
def test_the_order_that_makes_a_ring_right(rings, buffers):
    """A slice is copied, waited for, read; its buffer is filled again only when all of it has been read."""
    found = rings[buffers]
    for one in found:
        assert one.copies[-1] < one.waited <= one.reads[0]
    for one, after in zip(found, found[buffers:]):
        assert one.reads[-1] < after.copies[0]


def test_where_the_wait_stands(rings):
    """Stage 07 waits behind its copies; stage 08 before those of the same turn, as long as there are any."""
    assert all(one.waited == one.reads[0] for one in rings[1])
    assert [one.reads[0] - one.waited for one in rings[3]] == [6] * (SLICES - 2) + [0] * 2


def test_the_same_for_every_warp():
    found = traced(8)
    first = [(one.buffer, one.copies, one.reads, one.waited) for one in ring.slices(found)]
    for warp in (1, 7):
        assert [(one.buffer, one.copies, one.reads, one.waited) for one in ring.slices(found, warp)] == first


def test_later_rings_and_kernels_without_one():
    for number in (9, 10):
        found = ring.slices(traced(number, 512))
        assert ring.in_flight(found) >= 1 and len(found) > 1 + max(one.buffer for one in found)
    with pytest.raises(UserError, match="06_padding fp16 .*no ring"):
        ring.slices(traced(6))


# ---- other groups than those of a matrix product ----

SNIPPET = """
#define COPY(to, from) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" \\
    :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory")
#define COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory")
__device__ unsigned read(const void *row) {
  unsigned r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r)
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
  return r;
}
__global__ void kernel(const uint4 *Q, const uint4 *K, const uint4 *V, unsigned *out, int tiles) {
  __shared__ uint4 q[2][32], ring[2][32];
  const int lane = threadIdx.x;
  unsigned sum = 0;
  BODY
  out[lane] = sum;
}
extern "C" cudaError_t launch(const uint4 *Q, const uint4 *K, const uint4 *V, unsigned *out, int tiles) {
  kernel<<<1, 32>>>(Q, K, V, out, tiles);
  return cudaGetLastError();
}
"""
TILES = 4


def snippet(body: str) -> list[ring.Slice]:
    tensors = {name: torch.zeros(TILES * 2, 32, 4, dtype=torch.int32) for name in "QKV"}
    code = SNIPPET.replace("BODY", body)
    return ring.slices(accesses.snippet(code, **tensors, out=torch.zeros(32, dtype=torch.int32), tiles=TILES))


def said(found: list[ring.Slice]) -> list[tuple[str, int, int, int, int]]:
    """Tensor, number, buffer, copies and reads of each slice."""
    return [("".join(s.tensors), s.number, s.buffer, len(s.copies), len(s.reads)) for s in found]


def test_tensors_of_one_group_are_apart_if_one_of_them_comes_again():
    """Q comes with the first tile of K and stays; K and V take turns in a ring of two."""
    body = """
      COPY(&q[0][lane], Q + lane); COPY(&q[1][lane], Q + 32 + lane); COPY(&ring[0][lane], K + lane); COMMIT;
      for (int tile = 0; tile < 2 * tiles; ++tile) {
        if (tile + 1 < 2 * tiles) {
          COPY(&ring[(tile + 1) % 2][lane], ((tile + 1) % 2 ? V : K) + (tile + 1) / 2 * 32 + lane);
        }
        COMMIT; WAIT(1); __syncwarp();
        sum += read(&q[0][lane]) + read(&q[1][lane]) + read(&ring[tile % 2][lane]);
        __syncwarp();
      }"""
    found = snippet(body)
    assert said(found)[:3] == [("Q", 0, 0, 2, 16), ("K", 0, 1, 1, 1), ("V", 0, 2, 1, 1)]
    tiles = [each for each in said(found) if each[0] != "Q"]
    assert tiles == [("KV"[n % 2], n // 2, 1 + n % 2, 1, 1) for n in range(2 * TILES)]
    q, k = found[:2]
    assert q.waited == k.waited <= q.reads[0], "one group, one wait"
    assert ring.in_flight(found) == 1 and ring.moving(found) == found[1:]


def test_one_buffer_serves_all_in_turn():
    body = """
      for (int tile = 0; tile < 3; ++tile) {
        COPY(&ring[0][lane], (tile == 0 ? Q : tile == 1 ? K : V) + lane); COMMIT; WAIT(0); __syncwarp();
        sum += read(&ring[0][lane]);
        __syncwarp();
      }"""
    found = snippet(body)
    assert said(found) == [(name, 0, 0, 1, 1) for name in "QKV"]
    assert all(one.copies[-1] < one.waited == one.reads[0] for one in found)
    assert [one.group for one in found] == [0, 1, 2]


def test_copies_of_a_loop_without_a_commit_are_one_group():
    """The loop that copies is not unrolled: the same instruction again is not the next group."""
    body = """
      for (int tile = 0; tile < tiles; ++tile) {
        #pragma unroll 1
        for (int part = 0; part < tiles - 2; ++part) COPY(&ring[part][lane], K + (tile * 2 + part) * 32 + lane);
        COMMIT; WAIT(0); __syncwarp();
        sum += read(&ring[0][lane]) + read(&ring[1][lane]);
        __syncwarp();
      }"""
    assert said(snippet(body)) == [("K", tile, 0, 2, 2) for tile in range(TILES)]


def test_a_commit_in_the_loop_that_copies_makes_a_group_of_each():
    body = """
      #pragma unroll 1
      for (int tile = 0; tile < tiles - 2; ++tile) { COPY(&ring[tile][lane], K + tile * 32 + lane); COMMIT; }
      WAIT(0); __syncwarp();
      sum += read(&ring[0][lane]) + read(&ring[1][lane]);"""
    found = snippet(body)
    assert said(found) == [("K", 0, 0, 1, 1), ("K", 1, 1, 1, 1)] and found[0].waited == 2


def test_what_is_read_and_was_not_copied_is_nobodys_slice():
    body = """
      q[0][lane] = uint4{1, 2, 3, 4};
      COPY(&ring[0][lane], K + lane); COMMIT; WAIT(0); __syncwarp();
      sum += read(&q[0][lane]) + read(&ring[0][lane]);"""
    assert said(snippet(body)) == [("K", 0, 0, 1, 1)]


ATTENTION = [
    stage for stage in kernels.ladder() if stage.problem == "attention" and stage.unit != "wgmma"
]  # by cp.async


@pytest.mark.parametrize("stage", ATTENTION, ids=lambda stage: stage.name)
def test_attention_takes_its_tiles_of_k_and_v_in_turn(stage):
    """Every tile of K and V is copied, waited for and read before its buffer is filled again; Q comes once."""
    tiles = 8
    found = ring.slices(accesses.run(stage.kernel(), (1, 1, 64 * tiles, stage.kernel().variants["HEAD_DIM"])))
    assert sorted(("".join(one.tensors), one.number) for one in found) == [
        *(("K", n) for n in range(tiles)),
        ("Q", 0),
        *(("V", n) for n in range(tiles)),
    ]
    for one in found:
        assert one.copies[-1] < one.waited <= one.reads[0]
        for other in found:
            if other.buffer == one.buffer and other.copies[0] > one.copies[0]:
                assert one.reads[-1] < other.copies[0]
    assert [one for one in found if one not in ring.moving(found)] == [one for one in found if one.tensors == ("Q",)]


# ---- the picture ----


def test_the_headline_says_what_was_executed():
    picture = ring.ring(traced(7), traced(8, STAGES=2), turns=3)
    said = "Slices in flight during a product: 0 with 1 buffer, 1 with 2 buffers"
    assert picture.texts[0].get_text() == said
    titles = [axes.get_title(loc="left").split(":")[0] for axes in picture.axes]
    assert titles == ["07_cp_async fp16", "08_multi_stage fp16 STAGES=2"]
    names = {text.get_text() for axes in picture.axes for text in axes.texts}
    assert {"slice 0", "slice 1", "slice 2"} <= names <= {f"slice {number}" for number in range(SLICES)}


def test_slices_of_several_kinds_are_called_by_their_tensors():
    stage = next(stage for stage in ATTENTION if stage.number == "13")
    picture = ring.ring(accesses.run(stage, (1, 1, 512, 128)), turns=4)
    assert {"Q", "K 0", "V 0", "K 1", "V 1"} <= {text.get_text() for text in picture.axes[0].texts}


@pytest.mark.parametrize("number", ["12", "13"])
def test_a_tile_is_waited_for_before_the_next_is_copied(number: str):
    """Also a tile of K, though Q is read between that wait and K's first read."""
    tiles = ring.moving(ring.slices(accesses.run(kernels.load(number), (1, 1, 256, 128))))
    for one, following in zip(tiles, tiles[1:]):
        assert one.waited == following.copies[0] <= one.reads[0]


def test_a_ring_that_does_not_turn_is_not_drawn():
    with pytest.raises(UserError, match="its ring does not turn"):
        ring.ring(accesses.run(kernels.load(8), (128, 256, 32)))
