"""Bulk copies and tensor maps: what they move, what they may be, and what is found.

`expected` is written from the documentation alone: the driver's (cuTensorMapEncodeTiled) and that of PTX."""

from __future__ import annotations

import ctypes
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import cudaemu
from cudaemu.trace import Access, Space
from tests.cudaemu.machine import executed, kinds, launch
from tests.cudaemu.sources import HARDWARE

TYPES = ["u1", "u2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "u2", "u4", "u4", "u4"]  # of CUtensorMapDataType
BFLOAT16 = 9
MOST = 64 << 10  # bytes of a tile: boxes.cu
UNTOUCHED = 0xAA


class Box(ctypes.Structure):
    """As boxes.cu has it."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("type", "rank", "interleave", "swizzle", "promotion", "fill")),
        ("size", ctypes.c_longlong * 5),
        ("stride", ctypes.c_longlong * 4),
        *((name, ctypes.c_int * 5) for name in ("box", "step", "corner")),
        *((name, ctypes.c_int) for name in ("offset", "bytes", "misplaced")),
    ]


@pytest.fixture(scope="module")
def library():
    return cudaemu.load(Path(__file__).with_name("boxes.cu"), arch="9.0")


def box(**given) -> Box:
    """A box of 8 rows of 16 elements, at the corner of a tensor of 32 x 64 in 16 bits, but for what is given."""
    fields = {
        "type": 1, "rank": 2, "size": (64, 32), "stride": (128,), "box": (16, 8), "step": (1,) * 5, "corner": (0,) * 5,
    }  # fmt: skip
    made = Box()
    for name, value in (fields | given).items():
        if isinstance(value, (tuple, list)):
            array = getattr(made, name)
            for n, each in enumerate(value):
                array[n] = each
        else:
            setattr(made, name, value)
    counts = [-(-made.box[d] // max(made.step[d], 1)) for d in range(min(made.rank, 5))]
    counts[:1] = [made.box[0]]  # without interleaving its step is ignored
    if "bytes" not in given:
        made.bytes = int(np.prod(counts)) * np.dtype(TYPES[min(made.type, 12)]).itemsize
    return made


def elements(b: Box, store: bool = False) -> list[tuple[tuple[int, ...], bool]]:
    """The tensor's elements in the order of the tile, the first dimension first; whether the tensor has them. A store
    clips a row after the last 16 bytes of which the tensor has some: see tma_probe.txt."""
    item = np.dtype(TYPES[b.type]).itemsize
    width = -(-b.size[0] * item // 16) * 16 // item if store else b.size[0]
    counts = [b.box[0], *(-(-b.box[d] // b.step[d]) for d in range(1, b.rank))]
    found = []
    for place in itertools.product(*map(range, reversed(counts))):
        steps = (1, *b.step[1 : b.rank])
        at = tuple(b.corner[d] + n * steps[d] for d, n in enumerate(reversed(place)))
        found.append((at, all(0 <= x < (b.size[d] if d else width) for d, x in enumerate(at))))
    return found


def address(b: Box, at: tuple[int, ...]) -> int:
    item = np.dtype(TYPES[b.type]).itemsize
    return at[0] * item + sum(x * b.stride[d] for d, x in enumerate(at[1:]))


def placed(b: Box, number: int) -> int:
    """Where that element of the tile lies. With a swizzle each row has all of its span; bits 4 to 6 of the address are
    those XOR bits 7 to 9, or as many of them as the swizzle takes."""
    item = np.dtype(TYPES[b.type]).itemsize
    row, col = divmod(number, b.box[0])
    place = b.offset + row * (16 << b.swizzle if b.swizzle else b.box[0] * item) + col * item
    return place ^ ((place >> 7 & (1 << b.swizzle) - 1) << 4)


def expected(b: Box, tensor: np.ndarray) -> np.ndarray:
    """Shared memory after the copy of a box."""
    item = np.dtype(TYPES[b.type]).itemsize
    room = np.full(MOST, UNTOUCHED, np.uint8)
    nan = np.frombuffer(b"\xf7\x7f" * (item // 2), np.uint8)
    for n, (at, inside) in enumerate(elements(b)):
        place = placed(b, n)
        value = tensor[address(b, at) :][:item] if inside else nan if b.fill else 0
        room[place : place + item] = value
    return room


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 255, size, np.uint8)


def extent(b: Box) -> int:
    """Bytes of the tensor."""
    return address(b, tuple(b.size[d] - 1 for d in range(b.rank))) // 16 * 16 + 16


def check_load(library, b: Box) -> None:
    tensor, tile = noise(extent(b)), np.zeros(MOST, np.uint8)
    report = library.call("move_box", tensor, tile, b, 1)
    misplaced = {found.kind for found in report.findings} - {"uninitialised shared read"}
    assert report.status == 0 and not misplaced, report
    wanted = expected(b, tensor)
    assert np.array_equal(tile, wanted), np.flatnonzero(tile != wanted)


def check_store(library, b: Box) -> None:
    b = Box.from_buffer_copy(b)
    for d in range(b.rank):
        b.corner[d] = max(b.corner[d], 0)  # no store may begin before the tensor
    tensor, tile = noise(extent(b)), noise(MOST)
    wanted, item = tensor.copy(), np.dtype(TYPES[b.type]).itemsize
    for n, (at, inside) in enumerate(elements(b, store=True)):
        if inside:
            place = placed(b, n)
            wanted[address(b, at) :][:item] = tile[place : place + item]
    report = library.call("move_box", tensor, tile, b, 0)
    assert report.ok, report
    assert np.array_equal(tensor, wanted)


BOXES = {
    "plain": box(),
    "negative": box(corner=(-8, -2)),
    "beyond": box(corner=(56, 30)),
    "beyond a row of odd size": box(size=(61, 32), corner=(56, 30)),
    "far out": box(corner=(1 << 30, 1 << 30)),
    "NaN": box(type=6, fill=1, corner=(-8, 28)),
    "NaN of 8 bytes": box(type=8, fill=1, corner=(-2, 28), size=(16, 32), box=(4, 8)),
    "NaN in bf16": box(type=BFLOAT16, fill=1, size=(60, 32), corner=(56, 0)),
    "32-byte swizzle": box(swizzle=1),
    "64-byte swizzle": box(swizzle=2, box=(32, 16)),
    "128-byte swizzle": box(swizzle=3, box=(64, 16)),
    "128-byte swizzle, ragged": box(swizzle=3, box=(64, 16), corner=(-8, 23)),
    "inner side below the swizzle": box(swizzle=3, box=(16, 16)),
    "element strides": box(step=(1, 3), box=(16, 8), corner=(8, 20)),
    "the first element stride is ignored": box(step=(2, 1)),
    "1D": box(rank=1, size=(100,), box=(256,), corner=(-48,)),
    "3D": box(rank=3, size=(20, 7, 5), stride=(48, 336), box=(8, 4, 3), corner=(16, -1, 3)),
    "4D": box(rank=4, type=7, size=(8, 5, 4, 3), stride=(32, 160, 640), box=(4, 3, 2, 2), corner=(4, 3, -1, 2)),
    "5D": box(
        rank=5,
        size=(8, 3, 3, 3, 3),
        stride=(16, 48, 144, 432),
        box=(8, 2, 2, 2, 2),
        step=(1, 2, 1, 1, 2),
        corner=(0, 1, -1, 2, 0),
    ),  # fmt: skip
    "bytes": box(type=0, size=(100, 20), stride=(112,), box=(32, 8), corner=(80, 15)),
    "gaps between rows": box(size=(60, 32), stride=(256,), corner=(48, 0)),
}


@pytest.mark.parametrize("name", BOXES)
def test_a_box_to_shared_memory(library, name):
    check_load(library, BOXES[name])


@pytest.mark.parametrize("name", BOXES)
def test_a_box_to_global_memory(library, name):
    check_store(library, BOXES[name])


@pytest.fixture(scope="module")
def replaced():
    """As `library`, but for the tensor map: tensormap.replace has written each field of it."""
    made = cudaemu.load(Path(__file__).with_name("replaced.cu"), arch="9.0a")

    class Replaced:
        def call(self, _, tensor, tile, b, load):
            return made.call("move_replaced", tensor, tile, np.zeros(128, np.uint8), b, load)

    return Replaced()


@pytest.mark.parametrize("name", BOXES)
def test_a_map_with_replaced_fields(replaced, name):
    check_load(replaced, BOXES[name])
    check_store(replaced, BOXES[name])


@pytest.mark.parametrize("given", [{"step": (1, 9)}, {"box": (16, 257)}, {"box": (16, 0)}, {"stride": (136,)}])
def test_a_field_of_which_no_copy_can_be_made(replaced, given):
    report = replaced.call("", noise(1 << 16), np.zeros(MOST, np.uint8), box(**({"bytes": 64} | given)), 1)
    (found,) = report.findings
    assert found.kind == "tensor map" and "tensormap.replace" in found.message and report.status == 719, report


@pytest.mark.parametrize(
    ("given", "load", "kind"),
    [
        ({"corner": (1, 0)}, 1, "misaligned"), ({"corner": (-3, 0)}, 1, "misaligned"),
        ({"corner": (4, 0)}, 0, "misaligned"), ({"corner": (-8, 0)}, 0, "out of bounds global"),
        ({"corner": (0, -1)}, 0, "out of bounds global"), ({"offset": 64}, 1, "misaligned"),
    ],
)  # fmt: skip
def test_where_a_box_must_not_begin(library, given, load, kind):
    b = box(**given)
    report = library.call("move_box", noise(extent(b)), np.zeros(MOST, np.uint8), b, load)
    assert report.findings[0].kind == kind and report.status == (716 if "offset" in given else 715), report


def random_box(seed: int) -> Box:
    random = np.random.default_rng(seed)
    type_ = int(random.choice([0, 1, 2, 6, 7, 8]))
    item, rank, swizzle = np.dtype(TYPES[type_]).itemsize, int(random.integers(1, 6)), int(random.integers(0, 4))
    inner = 16 * int(random.integers(1, 1 + (1 << swizzle if swizzle else 8)))
    size = [int(n) for n in random.integers(1, [200, 20, 6, 4, 4])]
    sides = [inner // item, *(int(n) for n in random.integers(1, [17, 5, 3, 3]))]
    stride, step = [], [1, *(int(n) for n in random.integers(1, 4, 4))]
    bytes_ = size[0] * item
    for n in size[1:]:
        stride.append(-(-bytes_ // 16) * 16 + 16 * int(random.integers(0, 2)))
        bytes_ = stride[-1] * n
    corner = [int(random.integers(-side, n + 2)) for side, n in zip(sides, size)]
    corner[0] = corner[0] * item // 16 * 16 // item
    return box(
        type=type_, rank=rank, swizzle=swizzle, size=size[:rank], stride=stride[: rank - 1], box=sides[:rank],
        step=step[:rank], corner=corner[:rank], fill=int(type_ > 5 and random.integers(0, 2)),
        offset=1024 * int(random.integers(0, 3)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_any_box(library, seed):
    check_load(library, random_box(seed))
    check_store(library, random_box(seed))


PROBE = HARDWARE / "tma_probe.cu"
RECORDED = dict(
    re.findall(r"^(\d+) (.*\n(?: .*\n)*)", PROBE.with_suffix(".txt").read_text(), re.MULTILINE)
)  # what an H200 said of each case


def probed(capfd, *numbers: str) -> str:
    cudaemu.program(PROBE, list(numbers), arch="9.0")
    return capfd.readouterr().out


def test_the_hardware_says_the_same(capfd):
    """64 boxes at the edges of tensors: tma_probe.txt is the word of an H200."""
    assert [int(number) for number in RECORDED] == list(range(64))
    fine = [number for number, said in RECORDED.items() if "CUDA error" not in said]
    assert probed(capfd, *fine) == "".join(f"{number} {RECORDED[number]}" for number in fine)


@pytest.mark.parametrize("number", [number for number, said in RECORDED.items() if "CUDA error" in said])
def test_the_hardware_ends_the_kernel(capfd, number):
    assert probed(capfd, number) == f"{number} {RECORDED[number]}"


# ---- what the driver refuses ----


def test_the_driver_says_the_same(capfd):
    """183 tensor maps, good and bad: tensor_map_probe.txt is the word of an H200's driver."""
    probe = HARDWARE / "tensor_map_probe.cu"
    cudaemu.program(probe, [], arch="9.0")
    assert capfd.readouterr().out.splitlines() == probe.with_suffix(".txt").read_text().splitlines()


REFUSED = {
    "tensorDataType": [{"type": 13}],
    "tensorRank": [{"rank": 0}, {"rank": 6}, {"interleave": 1}],
    "globalAddress": [{"misplaced": 8}],
    "elementStrides[0]": [{"step": (0, 1)}, {"step": (9, 1)}],
    "globalDim[1]": [{"size": (64, 0)}],
    "globalDim[0]": [{"size": ((1 << 32) + 1, 32)}],
    "globalStrides[0]": [{"stride": (136,)}, {"stride": (1 << 40,)}],
    "boxDim[0]": [{"box": (12, 8)}, {"box": (264, 8)}, {"box": (0, 8)}, {"box": (32, 8), "swizzle": 1},
                  {"box": (128, 8), "swizzle": 3}],
    "boxDim must": [{"box": (256, 256, 4), "rank": 3}],
    "boxDim[1]": [{"box": (16, 257)}, {"box": (16, 0)}],
    "elementStrides[1]": [{"step": (1, 0)}, {"step": (1, 9)}],
    "interleave": [{"interleave": 3}],
    "swizzle": [{"swizzle": 4}],
    "l2Promotion": [{"promotion": 4}],
    "oobFill": [{"fill": 2}, {"fill": 1}],
}  # fmt: skip


@pytest.mark.parametrize(("field", "given"), [(field, given) for field, many in REFUSED.items() for given in many])
def test_what_the_driver_refuses(library, field, given):
    """With its error code, and a sentence that names the parameter."""
    full = {"box": (16, 8, 1, 1, 1), "size": (64, 32, 1, 1, 1), "stride": (128, 4096, 4096, 4096)} | given
    for name, rest in (("box", (1,)), ("size", (1,))):
        full[name] = (*full[name], *rest * (5 - len(full[name])))
    report = library.call("move_box", noise(4096), np.zeros(MOST, np.uint8), box(**full), 1)
    assert report.status == 1 and f"cuTensorMapEncodeTiled: {field}" in report.error, report


def test_compute_capability_8_has_no_tensor_maps():
    report = cudaemu.load("""#include <cuda.h>
        extern "C" int make(void *tensor) {
          void *encode;
          cudaDriverEntryPointQueryResult found;
          cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
          CUtensorMap map;
          const cuuint64_t size = 64;
          const cuuint32_t box = 64, step = 1;
          return decltype(&cuTensorMapEncodeTiled)(encode)(
              &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, tensor, &size, nullptr, &box, &step,
              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        }""", arch="8.0").call("make", noise(64))  # fmt: skip
    assert report.status == 801 and "9.0" in report.error, report


# ---- stores, in bulk groups ----

# 64 threads; each has written its word of s: 1000 + its number. Array 0 is c, 1 is x.
TILE = """
    .shared .align 128 .b32 s[64]; .shared .align 8 .b64 m;
    mov.u32 %r2, s; mad.lo.u32 %r2, %r0, 4, %r2; add.u32 %r3, %r0, 1000; st.shared.u32 [%r2], %r3;
    setp.eq.u32 %p0, %r0, 0; mad.wide.u32 %rd30, %r0, 4, %rd0; mad.wide.u32 %rd31, %r0, 4, %rd1;
    fence.proxy.async; bar.sync 0;
"""
STORE = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], 256;"
COMMIT = "@%p0 cp.async.bulk.commit_group;"
WAIT = "@%p0 cp.async.bulk.wait_group {0};"
READ = "@%p0 cp.async.bulk.wait_group.read {0};"


def run(body: str, **options):
    c, x = np.zeros(64, np.uint32), np.arange(100, 164, dtype=np.uint32)
    result = launch(TILE + body, c, x, block=(64,), **options)
    return kinds(result), c, result


@pytest.mark.parametrize("wait", [READ, WAIT])
def test_a_store(wait):
    found, c, result = run(STORE + COMMIT + wait.format(0))
    assert found == [] and c.tolist() == list(range(1000, 1064)), result.findings
    assert executed(result, "@%p0 cp.async.bulk.global", "bytes") == 256
    assert executed(result, "@%p0 cp.async.bulk.global", "sectors") in (8, 9)


@pytest.mark.parametrize(
    ("wait", "found"),
    [
        ("", {"copy in flight"}),
        (COMMIT, {"copy in flight"}),
        (COMMIT + READ.format(1), {"copy in flight"}),
        (READ.format(0) + COMMIT, {"copy in flight"}),
        (COMMIT + READ.format(0), set()),
        (COMMIT + WAIT.format(0), set()),
    ],
)
def test_the_source_is_being_read(wait, found):
    """By whoever writes there: the thread itself, or another one after a barrier."""
    for write in (
        "@%p0 st.shared.u32 [s], 7;",
        "bar.sync 0; setp.eq.u32 %p1, %r0, 40; @%p1 st.shared.u32 [s+160], 7;",
    ):
        kinds_, c, result = run(STORE + wait + write + COMMIT + WAIT.format(0))
        assert set(kinds_) == found, result.findings
        if not found:
            assert c.tolist() == list(range(1000, 1064))


def test_a_wait_that_nobody_else_knows_of():
    body = STORE + COMMIT + READ.format(0) + "{} setp.eq.u32 %p1, %r0, 40; @%p1 st.shared.u32 [s+160], 7;"
    assert run(body.format("bar.sync 0;"))[0] == []
    found, _, result = run(body.format(""))
    assert found in (["copy in flight"], ["shared race"]), result.findings


def test_what_it_writes_is_there_only_after_the_whole_wait():
    body = STORE + COMMIT + "{} bar.sync 0; ld.global.u32 %r9, [%rd30]; st.global.u32 [%rd31], %r9;"
    assert run(body.format(WAIT.format(0)))[0] == []
    found, _, result = run(body.format(READ.format(0)))
    assert found == ["copy in flight"] and "without .read" in result.findings[0].message
    other = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [s], 256;"
    assert set(run(other + body.format(READ.format(0)))[0]) == {"copy in flight"}


def test_groups_are_waited_for_in_order():
    more = STORE.replace("[%rd0]", "[%rd1]")
    body = STORE + COMMIT + more + COMMIT + "{} bar.sync 0; st.global.u32 [%rd3{}], %r0;"
    assert run(body.format(WAIT.format(1), 0))[0] == ["copy in flight"], "the second one may still be read"
    found, _, result = run(body.format(WAIT.format(1) + READ.format(0), 0))
    assert found == [], result.findings
    assert run(body.format(WAIT.format(1) + READ.format(0), 1))[0] == ["copy in flight"]


@pytest.mark.parametrize("wait", ["", COMMIT, COMMIT + READ.format(1)])
def test_the_end_of_a_thread_that_has_not_waited(wait):
    found, c, result = run(STORE + wait)
    assert found == ["copy in flight"] and "the thread ends" in result.findings[0].message, result.findings
    assert c.tolist() == list(range(1000, 1064)), "it happens all the same, if late"


def test_the_source_must_be_written_before():
    body = "setp.eq.u32 %p1, %r0, 40; @%p1 st.shared.u32 [s+160], 7;"
    assert set(run(body + STORE + COMMIT + WAIT.format(0))[0]) & {"shared race", "copy in flight"}
    assert run(body + "fence.proxy.async; bar.sync 0;" + STORE + COMMIT + WAIT.format(0))[0] == []


@pytest.mark.parametrize("wait", ["", WAIT.format(0)])
def test_two_threads_of_a_tile_store_the_same(wait):
    """Two parts of a warp-specialised kernel of Triton's may hold one tile: no harm, as with plain stores."""
    second = """
        .shared .align 128 .b32 t[64]; mov.u32 %r4, t; mad.lo.u32 %r4, %r0, 4, %r4; {0} st.shared.u32 [%r4], %r3;
        fence.proxy.async; bar.sync 0;
    """
    other = (STORE + COMMIT).replace("%p0", "%p1").replace("[s]", "[t]")
    body = second + "setp.eq.u32 %p1, %r0, 40;" + STORE + COMMIT + wait + other
    body += WAIT.format(0) + WAIT.replace("%p0", "%p1").format(0)
    found, c, result = run(body.format("", ""), tiles=True)
    assert found == [] and c.tolist() == list(range(1000, 1064)), result.findings
    assert {note.kind for note in result.notes} == {"same value written"}
    assert set(run(body.format("xor.b32 %r3, %r3, 1;"), tiles=True)[0]) == {"copy in flight"}
    assert set(run(body.format(""), tiles=False)[0]) == {"copy in flight"}


def test_two_blocks_store_to_one_place():
    everybody = STORE + COMMIT + WAIT.format(0)
    found, _, result = run(everybody, grid=(2,))
    assert found == ["copy in flight"] and "or two tiles have the same place" in result.findings[0].message
    reduction = everybody.replace("cp.async.bulk.global.", "cp.reduce.async.bulk.global.").replace(
        "bulk_group [", "bulk_group.add.u32 ["
    )
    found, c, result = run(reduction, grid=(2,))
    assert found == [] and c.tolist() == [2 * (1000 + n) for n in range(64)], result.findings


@pytest.mark.parametrize(
    ("operation", "dtype", "by"),
    [
        *((f"{what}.{type_}", dtype, by) for what, by in (("add", np.add), ("min", np.minimum), ("max", np.maximum))
          for type_, dtype in (("u32", "u4"), ("s32", "i4"), ("u64", "u8"))),
        *((f"{what}.{type_}", dtype, by) for what, by in (("and", np.bitwise_and), ("or", np.bitwise_or),
          ("xor", np.bitwise_xor)) for type_, dtype in (("b32", "u4"), ("b64", "u8"))),
        ("min.s64", "i8", np.minimum), ("max.s64", "i8", np.maximum),
        ("inc.u32", "u4", lambda a, x: np.where(a >= x, 0, a + 1)),
        ("dec.u32", "u4", lambda a, x: np.where((a == 0) | (a > x), x, a - 1)),
        ("add.f32", "f4", np.add), ("add.f64", "f8", np.add), ("add.noftz.f16", "f2", np.add),
        ("min.f16", "f2", np.minimum), ("max.f16", "f2", np.maximum),
    ],
)  # fmt: skip
def test_reductions(operation, dtype, by):
    random, size = np.random.default_rng(len(operation)), 256 // np.dtype(dtype).itemsize
    if dtype[0] == "f":
        c, x = (random.integers(-100, 100, (2, size)) / 8).astype(dtype)
    else:
        c, x = random.integers(0, 256, (2, 256), np.uint8).view(dtype)
        x[0] = c[0]
    c, x = c.copy(), x.copy()
    expected = by(c, x)
    body = "ld.global.u32 %r9, [%rd31]; st.shared.u32 [%r2], %r9; fence.proxy.async; bar.sync 0;"
    body += f"@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation} [%rd0], [s], 256;"
    result = launch(TILE + body + COMMIT + WAIT.format(0), c, x, block=(64,))
    assert kinds(result) == [], result.findings
    assert np.array_equal(c, expected), (c, expected)


REDUCES = """
#include <cuda.h>
#include <cuda_runtime.h>

__global__ void reduce(const __grid_constant__ CUtensorMap map, const uint4 *box, int row, int col) {
  __shared__ __align__(128) uint4 tile[32];
  tile[threadIdx.x] = box[threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x) return;
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(col), "r"(row));
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta." OPERATION ".tile.bulk_group [%0, {%1, %2}], [%3];"
               "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::"l"(&map), "r"(col), "r"(row),
               "r"((unsigned)__cvta_generic_to_shared(tile)) : "memory");
}

extern "C" cudaError_t launch(void *tensor, const void *box, int type, int rows, int cols, int row, int col) {
  void *encode;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
  CUtensorMap map;
  const cuuint64_t size[] = {(cuuint64_t)cols, (cuuint64_t)rows}, stride[] = {64};
  const cuuint32_t sides[] = {(cuuint32_t)cols, 8}, step[] = {1, 1};
  if (decltype(&cuTensorMapEncodeTiled)(encode)(
          &map, (CUtensorMapDataType)type, 2, tensor, size, stride, sides, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
          CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
    return cudaErrorInvalidValue;
  reduce<<<1, 32>>>(map, (const uint4 *)box, row, col);
  return cudaDeviceSynchronize();
}
"""


@pytest.mark.core(every=6)
@pytest.mark.parametrize(
    ("operation", "type_", "dtype", "by"),
    [
        ("add", 7, "f4", np.add), ("add", 6, "f2", np.add), ("add", 2, "u4", np.add), ("add", 5, "u8", np.add),
        ("min", 3, "i4", np.minimum), ("max", 4, "i8", np.maximum), ("max", 6, "f2", np.maximum),
        ("and", 2, "u4", np.bitwise_and), ("or", 2, "u4", np.bitwise_or), ("xor", 5, "u8", np.bitwise_xor),
        ("inc", 2, "u4", lambda a, x: np.where(a >= x, 0, a + 1)),
        ("dec", 2, "u4", lambda a, x: np.where((a == 0) | (a > x), x, a - 1)),
    ],
)  # fmt: skip
def test_reductions_through_a_tensor_map(operation, type_, dtype, by):
    """A box of 8 rows of 64 bytes at row 6 of 12: the last two rows are clipped. The type is the map's."""
    cols = 64 // np.dtype(dtype).itemsize
    tensor, box = np.random.default_rng(type_).integers(0, 100, (2, 12, cols)).astype(dtype)
    box, expected = box[:8].copy(), tensor.copy()
    expected[6:] = by(tensor[6:], box[:6])
    library = cudaemu.load(REDUCES, arch="9.0", defines={"OPERATION": f'"{operation}"'})
    report = library.call("launch", tensor, box, type_, 12, cols, 6, 0)
    report.raise_if_findings()
    assert np.array_equal(tensor, expected), (tensor, expected)
    assert report.counters["bulk_store_bytes"] == 6 * 64


def test_what_has_no_effect_here():
    found, _, result = run("cp.async.bulk.prefetch.L2.global [%rd0], 64; prefetch.tensormap [%rd0];")
    assert found == [], result.findings


# ---- within a cluster ----

SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
INIT = "@%p0 mbarrier.init.shared::cta.b64 [m], 1; @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], {};" + SYNC
LANDED = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [m], 0; @!%p1 bra W;"
RANK = "mov.u32 %r8, %cluster_ctarank;"


def test_from_one_blocks_shared_memory_to_anothers():
    """Each block sends its words, which have its number added, to the other one."""
    other = ".shared .align 16 .b32 got[64]; " + RANK + "xor.b32 %r9, %r8, 1;"
    write = "mad.lo.u32 %r3, %r8, 100, %r3; st.shared.u32 [%r2], %r3; fence.proxy.async; bar.sync 0;"
    send = """mapa.shared::cluster.u32 %r10, got, %r9; mapa.shared::cluster.u32 %r11, m, %r9;
        @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r10], [s], 256, [%r11];"""
    out = """mov.u32 %r12, got; mad.lo.u32 %r12, %r0, 4, %r12; ld.shared.u32 %r13, [%r12];
        mad.lo.u32 %r14, %r8, 32, %r0; setp.lt.u32 %p2, %r0, 32; mad.wide.u32 %rd29, %r14, 4, %rd0;
        @%p2 st.global.u32 [%rd29], %r13;"""
    found, c, result = run(other + write + INIT.format(256) + send + LANDED + out + SYNC, grid=(2,), cluster=(2,))
    assert found == [], result.findings
    assert c.tolist() == [1100 + n for n in range(32)] + [1000 + n for n in range(32)]


TO_OTHER = """.shared .align 16 .b32 got[128]; mov.u32 %r8, %cluster_ctarank; xor.b32 %r9, %r8, 1;
    mapa.shared::cluster.u32 %r10, got, %r9; mapa.shared::cluster.u32 %r11, m, %r9;
    mul.lo.u32 %r12, %r0, {}; add.u32 %r10, %r10, %r12; mov.u32 %r13, got; add.u32 %r12, %r12, %r13;
    mad.lo.u32 %r3, %r8, 100, %r3; add.u32 %r4, %r3, 7;"""
COMPLETE = "shared::cluster.mbarrier::complete_tx::bytes"
FIRST_OF_BLOCK = """mad.lo.u32 %r14, %r8, 32, %r0; setp.lt.u32 %p2, %r0, 32; mad.wide.u32 %rd29, %r14, 4, %rd0;
    @%p2 st.global.u32 [%rd29], %r13;"""


@pytest.mark.parametrize(
    ("size", "store"),
    [
        (4, f"st.async.weak.{COMPLETE}.u32 [%r10], %r4, [%r11];"),
        (8, f"st.async.{COMPLETE}.v2.b32 [%r10], {{%r3, %r4}}, [%r11];"),
        (8, f"mov.b64 %rd2, {{%r3, %r4}}; st.async.{COMPLETE}.s64 [%r10], %rd2, [%r11];"),
    ],
)
def test_asynchronous_stores(size, store):
    """Each thread sends its numbers to the other block, whose mbarrier counts the bytes."""
    load = f"ld.shared.u32 %r13, [%r12+{size - 4}];"
    body = TO_OTHER.format(size) + INIT.format(64 * size) + store
    found, c, result = run(body + LANDED + load + FIRST_OF_BLOCK + SYNC, grid=(2,), cluster=(2,))
    assert found == [], result.findings
    assert c.tolist() == [1107 + n for n in range(32)] + [1007 + n for n in range(32)]
    assert executed(result, "st.async", "cluster_bytes") == 2 * 64 * size
    assert executed(result, "st.async", "cluster_requests") == 4  # of two warps of two blocks
    found, _, result = run(body + load + FIRST_OF_BLOCK + LANDED + SYNC, grid=(2,), cluster=(2,))
    assert "copy in flight" in found, result.findings


@pytest.mark.parametrize(
    ("operation", "by"), [("add.u32", np.add.reduce), ("max.s32", np.max), ("xor.b32", np.bitwise_xor.reduce)]
)
def test_asynchronous_reductions(operation, by):
    """The threads of both blocks reduce to one word of the other block."""
    body = TO_OTHER.format(0) + "@%p0 st.shared.u32 [%r12], 5;" + INIT.format(256)
    body += f"red.async.relaxed.cluster.{COMPLETE}.{operation} [%r10], %r3, [%r11];"
    body += LANDED + "ld.shared.u32 %r13, [%r12];" + FIRST_OF_BLOCK + SYNC
    found, c, result = run(body, grid=(2,), cluster=(2,))
    assert found == [], result.findings
    assert c.tolist() == [by([5, *range(1100, 1164)])] * 32 + [by([5, *range(1000, 1064)])] * 32


def test_what_is_unknown_of_asynchronous_stores():
    found, _, result = run("st.async.release.gpu.global.u32 [%rd0], %r0;")
    assert found == ["unknown instruction"], result.findings


ADD = """@%p0 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32
    [%r10], [s], 256, [%r11];"""


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", set()),
        ("@%p0 red.shared::cluster.add.u32 [%r10], 0;", {"shared race"}),  # with the load at the end alone
        ("@%p0 st.shared::cluster.u32 [%r10], 7;", {"copy in flight", "shared race"}),
        (ADD.replace("reduce.", "").replace(".add.u32", ""), {"copy in flight"}),
    ],
)
def test_reductions_into_shared_memory_are_atomic(more, found):
    """Both blocks add their words to those of block 0, in any order."""
    sum_ = ".shared .align 16 .b32 sum[64]; " + RANK + "mov.u32 %r12, sum; mad.lo.u32 %r12, %r0, 4, %r12;"
    write = "st.shared.u32 [%r12], 0; fence.proxy.async;"
    there = "mapa.shared::cluster.u32 %r10, sum, 0; mapa.shared::cluster.u32 %r11, m, 0;"
    end = (
        "setp.ne.u32 %p4, %r8, 0; @%p4 bra E;" + LANDED + "ld.shared.u32 %r13, [%r12]; st.global.u32 [%rd30], %r13; E:"
    )
    said, c, result = run(
        sum_ + write + INIT.format(1024 if more.startswith("@%p0 cp") else 512) + there + ADD + more + end + SYNC,
        grid=(2,), cluster=(2,),
    )  # fmt: skip
    assert set(said) == found, result.findings
    if not more:
        assert c.tolist() == [2 * (1000 + n) for n in range(64)]


MULTICAST = """setp.eq.and.u32 %p3, %r8, 0, %p0; mov.u16 %h1, {mask};
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [s], [%rd1], 256, [m], %h1;"""


def test_multicast():
    """L2 sends the bytes once; both blocks have them, each when its own mbarrier says so."""
    body = RANK + INIT.format(256) + MULTICAST.format(mask=3) + LANDED
    body += "ld.shared.u32 %r13, [%r2]; setp.eq.u32 %p4, %r8, 1; @%p4 st.global.u32 [%rd30], %r13;" + SYNC
    found, c, result = run(body, grid=(2,), cluster=(2,))
    assert found == [] and c.tolist() == list(range(100, 164)), result.findings
    assert executed(result, "@%p3 cp.async.bulk.shared", "bytes") == 512
    assert executed(result, "@%p3 cp.async.bulk.shared", "sectors") in (8, 9)


def test_multicast_to_a_block_that_nobody_waits_in():
    body = RANK + INIT.format(256) + MULTICAST.format(mask=3) + SYNC
    body += "setp.eq.u32 %p4, %r8, 1; @%p4 exit;" + LANDED
    found, _, result = run(body, grid=(2,), cluster=(2,))
    assert found == ["copy in flight"], result.findings
    assert "block (1, 0, 0) has ended, and this copy may still write" in result.findings[0].message


def test_a_copy_to_the_block_itself_that_nobody_waits_for():
    body = INIT.replace(SYNC, "").format(256)
    body += "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 256, [m];"
    found, _, result = run(body)
    assert found == ["copy in flight"], result.findings
    said = "the block itself has ended, and this copy may still write to its shared memory, at byte 0 of shared memory"
    assert said in result.findings[0].message


# ---- what a trace has of it ----


def test_a_trace():
    """A row for each piece of global memory, one for the tile, and one for each step at the mbarrier."""
    body = "@%p0 mbarrier.init.shared::cta.b64 [m], 1; @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], 256;"
    body += "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 256, [m]; bar.sync 0;"
    _, _, result = run(body + LANDED, trace=range(1), trace_rows=10_000)
    rows = [row for row in result.trace if row["kind"] >= Access.BULK_LOAD and row["thread"] == 0]
    assert [(Access(row["kind"]).name, Space(row["space"]).name, row["size"]) for row in rows] == [
        ("MBARRIER_ARRIVE", "SHARED", 8),
        ("BULK_LOAD", "GLOBAL", 256),
        ("BULK_LOAD", "SHARED", 256),
        ("MBARRIER_WAIT", "SHARED", 8),
    ]


SHIFTED = r"""
#include <cuda.h>
#include <cuda/ptx>
#include <cuda_fp16.h>
namespace ptx = cuda::ptx;
// 72 rows of 64 halves go through a tile with a swizzle of 128 bytes. `read`: who reads or writes it, and whether he
// exchanges chunks by the rows of the tile or by the address. `multiply`: wgmma does, from that row on.
constexpr int ROWS = 72, NONE = -1;
enum { NOBODY, ONCE, ALONG_ROWS, DOWN_COLUMNS, ALONE, BY_LDMATRIX, WRITTEN };
__device__ half *place(half *tile, int row, int col, bool by_address) {
  const unsigned at = __cvta_generic_to_shared(tile + row * 64 + col), key = by_address ? at >> 7 : row;
  return (half *)__cvta_shared_to_generic(at ^ (key & 7) << 4);
}
__device__ void touch(half *tile, float *out, int how, bool by_address) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = 0;
  if (how == ALONG_ROWS)
    for (int row = warp; row < ROWS; row += 4) sum += float(*place(tile, row, lane * 2, by_address));
  if (how == DOWN_COLUMNS)
    for (int col = warp; col < 64; col += 4) sum += float(*place(tile, lane, col, by_address));
  if (how == ALONE && threadIdx.x == 0)
    for (int row = 0; row < ROWS; ++row) sum += float(*place(tile, row, 16, by_address));
  if (how == BY_LDMATRIX) {
    const unsigned at = __cvta_generic_to_shared(place(tile, lane % 16 + warp * 16, lane / 16 * 8, by_address));
    unsigned d[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(at) : "memory");
    sum = d[0] + d[1] + d[2] + d[3];
  }
  if (how == WRITTEN)
    for (int i = threadIdx.x; i < ROWS * 8; i += 128) {
      const uint4 whole = {};
      *(uint4 *)place(tile, i / 8, i % 8 * 8, by_address) = whole;
    }
  if (how > ONCE && how != WRITTEN) out[threadIdx.x] = sum;
}
__global__ void through(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, float *out,
                        int shift, int read, bool by_address, int multiply, int base) {
  __shared__ __align__(1024) half room[ROWS * 64 + 1024];
  __shared__ uint64_t full;
  half *const tile = room + shift / 2;
  const int corner[] = {0, 0};
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full, ROWS * 64 * 2);
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &from, corner, &full);
  }
  __syncthreads();
  while (!ptx::mbarrier_try_wait_parity(&full, 0)) {}
  if (multiply != NONE) {
    const uint64_t start = __cvta_generic_to_shared(tile + multiply * 64);
    const uint64_t matrix = start >> 4 | 1ull << 16 | 64ull << 32 | uint64_t(base) << 49 | 1ull << 62;
    float d[4] = {};
    asm volatile("wgmma.fence.sync.aligned;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;\n"
                 "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(matrix) : "memory");
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
  }
  touch(tile, out, read, by_address);
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    if (read == ONCE) *out = tile[33];
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &to, corner, tile);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
  }
}
extern "C" int move_tile(half *in, half *copy, float *out, int shift, int read, int by_address, int multiply,
                         int base) {
  CUtensorMap maps[2];
  const cuuint64_t size[] = {64, ROWS}, stride[] = {128};
  const cuuint32_t box[] = {64, ROWS}, step[] = {1, 1};
  for (int k = 0; k < 2; ++k)
    cuTensorMapEncodeTiled(&maps[k], CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, k ? copy : in, size, stride, box, step,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  through<<<1, 128>>>(maps[0], maps[1], out, shift, read, by_address, multiply, base);
  return cudaDeviceSynchronize();
}
"""


@pytest.fixture(scope="module")
def shifted():
    return cudaemu.load(SHIFTED, arch="9.0a", flags=["-lcuda"])


@pytest.mark.core(every=4)
@pytest.mark.parametrize(
    ("shift", "multiply", "base", "right", "words"),
    [
        (384, None, 0, True, None),  # from copy to copy
        (0, 0, 0, True, None),
        (384, 0, 0, True, None),  # from copy to wgmma
        (384, 0, 3, False, " reads it at line "),  # wgmma goes by the rows
        (0, 0, 3, False, "must begin in the first row of a pattern"),
        (384, 1, 0, True, "must begin in the first row of a pattern"),  # that of the copy
    ],
)
def test_a_tile_may_begin_within_a_pattern_if_all_go_by_the_address(shifted, shift, multiply, base, right, words):
    """Copies and wgmma do, wherever a tile begins."""
    rng, first = np.random.default_rng(0), multiply or 0
    tile = rng.integers(-4, 5, (72, 64)).astype(np.float16)
    copied, out = np.zeros_like(tile), np.zeros((64, 8), np.float32)
    row = -1 if multiply is None else multiply
    report = shifted.call("move_tile", tile, copied, out, shift, 0, 0, row, base)
    assert report.status == 0 and (copied == tile).all(), report
    assert set(kinds(report)) == ({"misaligned"} if words else set())
    assert all(words in finding.message for finding in report.findings)
    if multiply is not None:
        used = tile[first:, :16].astype(np.float32)
        assert (out == used[:64] @ used[:8].T).all() == right


NOBODY, ONCE, ALONG_ROWS, DOWN_COLUMNS, ALONE, BY_LDMATRIX, WRITTEN = range(7)


@pytest.mark.core(every=5)
@pytest.mark.parametrize("shift", [0, 128, 384])
@pytest.mark.parametrize("by_address", [0, 1])
@pytest.mark.parametrize("read", [ALONG_ROWS, DOWN_COLUMNS, ALONE, BY_LDMATRIX, WRITTEN])
def test_threads_may_go_by_the_address(shifted, read, by_address, shift):
    """Who exchanges the chunks of a row by the row's number is wrong where a tile begins within a pattern. From which
    columns code takes is seen by how it walks."""
    tile, out = np.ones((72, 64), np.float16), np.zeros(128, np.float32)
    report = shifted.call("move_tile", tile, np.zeros_like(tile), out, shift, read, by_address, -1, 0)
    assert report.status == 0 and not report.notes
    assert kinds(report) == (["misaligned"] if shift and not by_address else [])


def test_what_does_not_show_how_a_tile_is_read_is_a_note(shifted):
    tile, out = np.ones((72, 64), np.float16), np.zeros(128, np.float32)
    report = shifted.call("move_tile", tile, np.zeros_like(tile), out, 384, ONCE, 0, -1, 0)
    assert report.ok
    (note,) = report.notes
    assert note.kind == "tile within a pattern" and "cannot be seen from its accesses" in note.message


LOADED = """
__global__ void load(const float *from, float *to) {{
  __shared__ alignas(16) float tile[32];
  __shared__ unsigned long long barrier;
  const unsigned bar = __cvta_generic_to_shared(&barrier), shared = __cvta_generic_to_shared(tile);
  if (threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    {one}
  }}
  {each}
  __syncthreads();
  if (threadIdx.x == {who}) {{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(bar) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                 ::"r"(shared), "l"(from), "r"(bar) : "memory");
  }}
  asm volatile("{{\\n.reg .pred p;\\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\\n@!p bra W;\\n}}"
               ::"r"(bar) : "memory");
  if (threadIdx.x < 32) to[threadIdx.x] = tile[threadIdx.x];
}}"""
INIT_FENCE, PROXY_FENCE = 'asm volatile("fence.mbarrier_init.release.cluster;");', 'asm volatile("fence.proxy.async;");'


@pytest.mark.core(every=6)
@pytest.mark.parametrize(
    "one, each, who, noted",
    [
        ("", "", 0, True),
        (INIT_FENCE, "", 0, False),
        (PROXY_FENCE, "", 0, False),
        ("", PROXY_FENCE, 32, False),
        ("", f"if (threadIdx.x >= 32) {INIT_FENCE}", 32, True),  # it is for what its own thread has initialised
        ('asm volatile("fence.acq_rel.cluster;");', "", 32, True),
    ],
)
def test_an_mbarrier_that_tma_may_not_know(one, each, who, noted):
    """A note, no finding: public kernels do without the fence."""
    source = LOADED.format(one=one, each=each, who=who)
    a, b = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    report = cudaemu.load(source, arch="9.0").launch("load", 1, 64, a, b)
    assert report.ok and (a == b).all()
    assert [note.kind for note in report.notes] == ["mbarrier without a fence"] * noted
    strict = cudaemu.load(source, arch="9.0", strict=True).launch("load", 1, 64, a, b)
    assert kinds(strict) == ["mbarrier without a fence"] * noted and not strict.notes
    if noted:
        (note,) = report.notes
        at = source.split("\n").index(next(line for line in source.split("\n") if "cp.async.bulk" in line)) + 1
        assert "cp.async.bulk" in note.ptx and note.line in (at, at + 1)  # nvcc names either line of the statement


REFILLED = """
__global__ void refill(const float *from, float *to) {{
  __shared__ alignas(16) float tile[32];
  __shared__ unsigned long long barrier;
  const unsigned bar = __cvta_generic_to_shared(&barrier), shared = __cvta_generic_to_shared(tile);
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(bar) : "memory");
  if (threadIdx.x < 32) tile[threadIdx.x] = 1;
  float sum = 0;
  {first} __syncthreads();
  for (int slice = 0; slice < 2; ++slice) {{
    if (threadIdx.x == 32)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], 128;"
                   "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                   ::"r"(shared), "l"(from + 32 * slice), "r"(bar) : "memory");
    asm volatile("{{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra W; }}"
                 ::"r"(bar), "r"(slice) : "memory");
    if (threadIdx.x < 32) sum += tile[threadIdx.x];
    {between} __syncthreads(); {late}
  }}
  if (threadIdx.x < 32) to[threadIdx.x] = sum;
}}
"""


@pytest.mark.core(every=5)
@pytest.mark.parametrize(
    ("first", "between", "late", "lines"),
    [
        (PROXY_FENCE, PROXY_FENCE, "", []),
        (PROXY_FENCE, "", PROXY_FENCE, []),
        (PROXY_FENCE, "", f"if (threadIdx.x == 32) {PROXY_FENCE}", []),  # one that has synchronised is enough
        ("", PROXY_FENCE, "", ["tile[threadIdx.x] = 1"]),
        (PROXY_FENCE, "", "", ["sum += tile"]),
    ],
)
def test_a_refill_without_a_proxy_fence_is_disputed(first, between, late, lines):
    """A bulk copy over what threads have read or written by ordinary accesses: only a strict run says so."""
    source = REFILLED.format(first=first, between=between, late=late)
    a, b = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    for strict in (False, True):
        report = cudaemu.load(source, arch="9.0", strict=strict).launch("refill", 1, 64, a, b)
        assert (b == a[:32] + a[32:]).all() and not report.notes
        assert kinds(report) == ["missing proxy fence"] * len(lines) * strict
    for finding, line in zip(report.findings, lines):
        assert "disputed" in finding.message
        at = re.search(r" at line (\d+)", finding.message)
        assert line in source.split("\n")[int(at[1]) - 1]
