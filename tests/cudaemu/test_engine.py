"""The engine: control flow, calls, barriers, what lanes do together, memory, counters, trace. Arithmetic is in
test_instructions."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

from cudaemu import engine, ptx
from cudaemu.build import compile_host
from cudaemu.errors import UserError
from cudaemu.kernel import Region
from cudaemu.trace import Access, Space
from tests.cudaemu import sources
from tests.cudaemu.machine import executed, kinds, launch, launch_kernel, module

OUT = "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], {};"  # array 0 [thread] = {}


def out(threads: int = 32) -> np.ndarray:
    return np.full(threads, 0xDEADBEEF, np.uint32)


# ---- control flow ----


def test_branches_diverge_and_meet_again():
    c = out()
    result = launch(
        f"""
        and.b32 %r2, %r0, 1;
        setp.eq.u32 %p0, %r2, 0;
        @%p0 bra EVEN;
        mul.lo.u32 %r3, %r0, 3;
        bra.uni JOIN;
    EVEN: add.u32 %r3, %r0, 100;
    JOIN: {OUT.format("%r3")}""",
        c,
    )
    lanes = np.arange(32)
    assert np.array_equal(c, np.where(lanes % 2, 3 * lanes, lanes + 100))
    assert executed(result, "mul.lo.u32 %r3") == executed(result, "add.u32 %r3") == 1
    assert executed(result, "mul.lo.u32 %r3", "threads") == 16
    assert executed(result, "st.global.u32") == 1, "the two halves have to meet before the store"


def test_registers_live_on_past_a_branch_at_the_end_of_the_code():
    """%r3 is read where that branch goes to, and %r4 to %r9 must not take its place."""
    c = out()
    body = "mov.u32 %r3, %r0; setp.lt.u32 %p0, %r0, 16; @%p0 bra LAST;"
    body += f"BACK: {OUT.format('%r3')} bra.uni END; LAST: "
    body += "".join(f"ld.global.u32 %r{n}, [%rd0+{4 * n}]; " for n in range(4, 10)) + "bra.uni BACK;"
    module_ = engine.Module(f""".version 8.3
        .target sm_90
        .address_size 64
        .visible .entry k(.param .u64 p) {{
        .reg .pred %p<2>; .reg .b32 %r<10>; .reg .b64 %rd<32>;
        ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x; {body.replace("bra.uni END;", "ret;")} }}""")
    memory = [Region(c.ctypes.data, c.nbytes, "c")]
    launch_kernel(module_, "k", params=c.ctypes.data.to_bytes(8, "little"), memory=memory)
    assert c.tolist() == list(range(32))


def test_lanes_leave_a_loop_one_by_one():
    c = out()
    result = launch(
        f"""
        mov.u32 %r3, 0; mov.u32 %r4, 0;
    AGAIN: add.u32 %r3, %r3, %r4;
        add.u32 %r4, %r4, 1;
        setp.le.u32 %p0, %r4, %r0;
        @%p0 bra AGAIN;
        {OUT.format("%r3")}""",
        c,
    )
    assert np.array_equal(c, [n * (n + 1) // 2 for n in range(32)])
    assert executed(result, "add.u32 %r3") == 32
    assert executed(result, "add.u32 %r3", "threads") == 32 * 33 // 2
    assert executed(result, "st.global.u32") == 1


def test_code_behind_the_end_still_meets_before_it():
    """The compiler puts rare code last: the join has a smaller pc than the branch's body. The shuffle must wait for
    it."""
    c = out()
    result = launch(
        f"""
        setp.lt.u32 %p0, %r0, 5;
        @%p0 bra RARE;
    JOIN: shfl.sync.bfly.b32 %r3, %r0, 31, 31, -1;
        {OUT.format("%r3")}
        ret;
    RARE: add.u32 %r0, %r0, 0;
        bra.uni JOIN;""",
        c,
    )
    assert not result.findings
    assert np.array_equal(c, np.arange(32)[::-1])


def test_early_exit_of_some_lanes():
    c = out()
    result = launch(
        f"""
        setp.ge.u32 %p0, %r0, 7;
        @%p0 exit;
        {OUT.format("%r0")}""",
        c,
    )
    assert np.array_equal(c[:7], np.arange(7)) and (c[7:] == 0xDEADBEEF).all()
    assert executed(result, "st.global.u32", "threads") == 7


def test_jump_table():
    c = out()
    launch(
        f"""
        rem.u32 %r2, %r0, 3;
        ts: .branchtargets L0, L1, L2;
        brx.idx %r2, ts;
    L0: mov.u32 %r3, 10; bra END;
    L1: mov.u32 %r3, 11; bra END;
    L2: mov.u32 %r3, 12;
    END: {OUT.format("%r3")}""",
        c,
    )
    assert np.array_equal(c, 10 + np.arange(32) % 3)


def test_a_block_of_a_few_lanes_and_three_dimensions():
    c = np.zeros((2, 3, 4, 5, 3, 2), np.uint32)  # block z, y, x; thread z, y, x
    launch(
        """
        mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;
        mad.lo.u32 %r4, %r3, 3, %r2; mad.lo.u32 %r4, %r4, 2, %r0;
        mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %ctaid.z; mov.u32 %r8, %nctaid.y;
        mad.lo.u32 %r9, %r7, %r8, %r6; mov.u32 %r8, %nctaid.x; mad.lo.u32 %r9, %r9, %r8, %r5;
        mad.lo.u32 %r9, %r9, 30, %r4;
        mad.wide.u32 %rd1, %r9, 4, %rd0;
        add.u32 %r9, %r9, 1;
        st.global.u32 [%rd1], %r9;""",
        c,
        grid=(4, 3, 2),
        block=(2, 3, 5),
    )
    assert np.array_equal(c.ravel(), 1 + np.arange(c.size))


def test_special_registers():
    c = np.zeros((12, 64), np.uint32)
    names = (
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%ntid.x",
        "%lanemask_lt",
        "%lanemask_le",
        "%lanemask_eq",
        "%lanemask_ge",
        "%lanemask_gt",
        "%dynamic_smem_size",
        "%total_smem_size",
        "%nctaid.x",
    )
    stores = "".join(f"mov.u32 %r3, {name}; st.global.u32 [%rd1+{256 * n}], %r3;\n" for n, name in enumerate(names))
    launch(
        f".shared .b32 s[4]; mad.wide.u32 %rd1, %r0, 4, %rd0; {stores} st.shared.u32 [s], 0;", c, block=(64,), shared=32
    )
    lane = np.arange(64) % 32
    expected = [
        lane,
        np.arange(64) // 32,
        2,
        64,
        (1 << lane) - 1,
        (2 << lane) - 1,
        1 << lane,
        ~((1 << lane) - 1),
        ~((2 << lane) - 1),
        32,
        48,
        1,
    ]
    for name, row, value in zip(names, c, expected, strict=True):
        assert np.array_equal(row, np.broadcast_to(np.asarray(value, np.int64) & 0xFFFFFFFF, 64)), name


def test_endless_loop_is_found():
    result = launch("FOREVER: bra FOREVER;", out(), instructions=100_000)
    assert kinds(result) == ["endless loop"] and result.code == 702


def test_trap_stops_the_launch():
    result = launch("trap;", out(), grid=(1000,))
    assert kinds(result) == ["trap"] and result.code and result.blocks < 1000


def test_an_unknown_instruction_matters_only_if_it_is_reached():
    c = out()
    text = "setp.eq.u32 %p0, %r0, 77; @%p0 bra ODD; bra END; ODD: frobnicate.u32 %r1, %r2; END: " + OUT.format("5")
    assert not launch(text, c).findings and (c == 5).all()
    (finding,) = launch(text.replace("77", "3"), out()).findings
    assert (
        finding.kind == "unknown instruction"
        and "frobnicate.u32 %r1, %r2" in finding.place.text
        and finding.thread == (3, 0, 0)
    )
    (finding,) = launch("add.u32 %rd1, %rd1, 1;", out()).findings
    assert finding.place.text == "add.u32 %rd1, %rd1, 1" and "64 bits instead of 32" in finding.message


# ---- registers ----


@pytest.mark.parametrize("seed", range(4))
def test_slots_are_never_shared_too_early(seed):
    """Random straight code, loops and branches over many registers: the values must be those of a plain interpreter."""
    rng = np.random.default_rng(seed)
    registers = [f"%r{n}" for n in range(10, 60)]
    state = {register: np.zeros(32, np.uint64) for register in registers}
    text = []
    for n, register in enumerate(registers):
        text.append(f"mad.lo.u32 {register}, %r0, {n + 3}, {n};")
        state[register] = (np.arange(32, dtype=np.uint64) * (n + 3) + n) & 0xFFFFFFFF

    def step(mask):
        d, a, b = rng.choice(registers, 3)
        operation = rng.choice(["add", "xor", "sub"])
        mnemonic = f"{operation}.{'b32' if operation == 'xor' else 'u32'}"
        function = {"add": np.add, "xor": np.bitwise_xor, "sub": np.subtract}[operation]
        return f"{mnemonic} {d}, {a}, {b};", lambda: state.update(
            {d: np.where(mask(), function(state[a], state[b]) & 0xFFFFFFFF, state[d])}
        )

    lanes = np.arange(32)
    for part in range(12):
        steps = [step(lambda: np.ones(32, bool)) for _ in range(6)]
        kind = rng.integers(3)
        if kind == 0:  # a loop of three turns
            text += [
                f"mov.u32 %r2, 0; L{part}:",
                *(code for code, _ in steps),
                f"add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 3; @%p0 bra L{part};",
            ]
            for _ in range(3):
                for _, act in steps:
                    act()
        elif kind == 1:  # a branch that some lanes take
            limit = int(rng.integers(1, 32))
            steps = [step(lambda limit=limit: lanes < limit) for _ in range(6)]
            text += [f"setp.ge.u32 %p0, %r1, {limit}; @%p0 bra L{part};", *(code for code, _ in steps), f"L{part}:"]
            for _, act in steps:
                act()
        else:  # guarded instructions
            bit = int(rng.integers(5))
            steps = [step(lambda bit=bit: lanes >> bit & 1 == 0) for _ in range(6)]
            text += [f"bfe.u32 %r3, %r1, {bit}, 1; setp.ne.u32 %p1, %r3, 0;", *(f"@!%p1 {code}" for code, _ in steps)]
            for _, act in steps:
                act()
    c = np.zeros((len(registers), 32), np.uint32)
    text += [
        "mad.wide.u32 %rd1, %r1, 4, %rd0;",
        *(f"st.global.u32 [%rd1+{128 * n}], {register};" for n, register in enumerate(registers)),
    ]
    result = launch("\n".join(text), c)
    assert not result.findings
    assert np.array_equal(c, np.array([state[register] for register in registers], np.uint32))


def test_frames_of_long_kernels_stay_small():
    registers = "".join(f".reg .f32 %x{n}; mov.f32 %x{n}, 0f3F800000; add.f32 %f1, %f1, %x{n};" for n in range(2000))
    info = module(registers, 1).kernel("k")
    assert info.frame_bytes < 40 * 128


# ---- calls ----

CALLS = """
.func (.param .b32 sum) add_all(.param .align 4 .b8 pair[8], .param .b32 extra)
{
    .reg .b32 %r<5>;
    .local .align 4 .b8 room[16];
    ld.param.u32 %r1, [pair];
    ld.param.u32 %r2, [pair+4];
    ld.param.u32 %r3, [extra];
    st.local.u32 [room+8], %r3;
    add.u32 %r1, %r1, %r2;
    setp_free: ld.local.u32 %r3, [room+8];
    add.u32 %r1, %r1, %r3;
    st.param.b32 [sum], %r1;
    ret;
}
.func (.reg .b32 %d) twice(.reg .b32 %a)
{
    { .param .align 4 .b8 two[8]; .param .b32 none; .param .b32 result;
      st.param.b32 [two], %a; st.param.b32 [two+4], %a; st.param.b32 [none], 0;
      call (result), add_all, (two, none);
      ld.param.b32 %d, [result]; }
    ret;
}
"""


def test_calls_with_parameters_and_within_calls():
    c = out()
    result = launch(
        f"""
        {{ .param .align 4 .b8 a0[8]; .param .b32 a1; .param .b32 back;
          st.param.b32 [a0], %r0; st.param.b32 [a0+4], 1000; st.param.b32 [a1], 7;
          call.uni (back), add_all, (a0, a1);
          ld.param.b32 %r3, [back]; }}
        setp.lt.u32 %p0, %r0, 4;
        @%p0 call (%r3), twice, (%r3);
        {OUT.format("%r3")}""",
        c,
        outside=CALLS,
    )
    lanes = np.arange(32)
    assert not result.findings
    assert np.array_equal(c, np.where(lanes < 4, 2, 1) * (lanes + 1007))


def test_a_call_of_nothing():
    (finding,) = launch("call nowhere;", out(), outside=".extern .func nowhere;").findings
    assert finding.kind == "unknown instruction" and "nowhere" in finding.place.text


# ---- barriers ----

REVERSE = """
    .shared .align 4 .b8 s[1024];
    shl.b32 %r2, %r0, 2; mov.u32 %r3, s; add.u32 %r2, %r2, %r3;
    st.shared.u32 [%r2], %r0;
    {barrier}
    sub.u32 %r4, 255, %r0; shl.b32 %r4, %r4, 2; add.u32 %r4, %r4, %r3;
    ld.shared.u32 %r5, [%r4];
"""


def test_a_barrier_orders_the_block_and_its_absence_is_a_race():
    c = out(256)
    assert not launch(REVERSE.format(barrier="bar.sync 0;") + OUT.format("%r5"), c, block=(256,)).findings
    assert np.array_equal(c, np.arange(256)[::-1])
    result = launch(REVERSE.format(barrier="") + OUT.format("%r5"), c, block=(256,))
    assert set(kinds(result)) <= {"shared race", "uninitialised shared read"} and "shared race" in kinds(result)
    race = next(finding for finding in result.findings if "is read here" in finding.message)
    assert "ld.shared.u32 %r5" in race.place.text and "st.shared.u32" in race.message


def test_a_write_after_a_read_is_a_race_too():
    body = REVERSE.format(barrier="bar.sync 0;") + "{} st.shared.u32 [%r2], %r5;"
    assert not launch(body.format("bar.sync 0;"), out(), block=(256,)).findings
    result = launch(body.format(""), out(), block=(256,))
    assert set(kinds(result)) == {"shared race"} and any(
        "written here and read by" in finding.message for finding in result.findings
    )


def test_a_warp_may_synchronise_itself_only():
    body = REVERSE.replace("255", "31").format(barrier="bar.warp.sync -1;") + OUT.format("%r5")
    c = out()
    assert not launch(body, c).findings and np.array_equal(c, np.arange(32)[::-1])
    crossed = REVERSE.replace("255", "63").format(barrier="bar.warp.sync -1;")
    assert "shared race" in kinds(launch(crossed, out(64), block=(64,)))


def test_named_barriers_order_their_warps_only():
    """Warps 0 and 1 hand over through barrier 1; warps 2 and 3 take no part."""
    body = """
        .shared .align 4 .b32 s[128];
        shl.b32 %r2, %r0, 2; mov.u32 %r3, s; add.u32 %r2, %r2, %r3;
        setp.ge.u32 %p0, %r0, 64; @%p0 exit;
        setp.ge.u32 %p1, %r0, 32;
        @%p1 bra CONSUMER;
        st.shared.u32 [%r2], %r0;
        bar.arrive 1, 64;
        exit;
    CONSUMER: {}
        ld.shared.u32 %r5, [%r2+-128];
        """ + OUT.format("%r5")
    c = out(128)
    assert not launch(body.format("bar.sync 1, 64;"), c, block=(128,)).findings
    assert np.array_equal(c[32:64], np.arange(32))
    assert "shared race" in kinds(launch(body.format(""), out(128), block=(128,)))


@pytest.mark.parametrize(
    ("operation", "target", "expected"), [("popc.u32", "%r5", 20), ("and.pred", "%p2", 0), ("or.pred", "%p2", 1)]
)
def test_barrier_reductions(operation, target, expected):
    c = out(96)
    launch(
        f"""
        setp.lt.u32 %p1, %r0, 20;
        barrier.red.{operation} {target}, 3, %p1;
        {"" if target == "%r5" else "selp.u32 %r5, 1, 0, %p2;"}
        {OUT.format("%r5")}""",
        c,
        block=(96,),
    )
    assert (c == expected).all()


def test_threads_at_different_barriers():
    result = launch(
        "setp.lt.u32 %p0, %r0, 32; @%p0 bra B; bar.sync 0; bra END; B: bar.sync 0; END:", out(), block=(64,)
    )
    assert kinds(result) == ["barrier divergence"] and result.findings[0].place.text == "bar.sync 0"


def test_lanes_that_go_round_a_barrier():
    """To the end of the kernel, so that nobody waits for ever: it is wrong all the same."""
    body = "setp.lt.u32 %p0, %r0, 16; {} bar.sync 0; ROUND: add.u32 %r5, %r0, 1; " + OUT.format("%r5")
    for how in ("@!%p0 bra ROUND;", "@%p0"):
        c = out()
        result = launch(body.format(how), c)
        (finding,) = result.findings
        assert finding.kind == "barrier divergence" and finding.place.text.endswith("bar.sync 0")
        assert finding.thread == (0, 0, 0) and finding.other_thread == (16, 0, 0)
        assert "thread (16, 0, 0) misses it" in finding.message
        assert (c == np.arange(32) + 1).all() and result.code == 0


@pytest.mark.parametrize("who", ["lt", "ge"])  # the warp that goes round it is the second one to run, and the first
def test_a_warp_that_goes_round_a_barrier(who):
    body = f"setp.{who}.u32 %p0, %r0, 32; @!%p0 bra ROUND; bar.sync 0; ROUND: add.u32 %r5, %r0, 1; " + OUT.format("%r5")
    result = launch(body, out(64), block=(64,))
    (finding,) = result.findings
    assert finding.kind == "barrier divergence" and finding.place.text.endswith("bar.sync 0")
    assert (finding.thread[0], finding.other_thread[0]) == ((0, 32) if who == "lt" else (32, 0))


@pytest.mark.parametrize(
    "body",
    [
        "setp.lt.u32 %p0, %r0, 16; @!%p0 bra END; bar.sync 0; END:",  # an early return
        # A loop that all leave together, by a branch over the barrier.
        "mov.u32 %r5, 0; TOP: setp.ge.u32 %p0, %r5, 3; @%p0 bra AFTER; bar.sync 0; add.u32 %r5, %r5, 1; bra TOP;"
        "AFTER: add.u32 %r5, %r5, 1;",
        # Barriers of a few warps, with a count: the others have nothing to do with them.
        "setp.lt.u32 %p0, %r0, 32; @!%p0 bra AFTER; bar.sync 1, 32; AFTER: add.u32 %r5, %r0, 1;",
        # One with work to do, which the compiler put behind all the rest.
        "setp.lt.u32 %p0, %r0, 16; @!%p0 bra LAST; bar.sync 0; add.u32 %r5, %r0, 1; exit; LAST: add.u32 %r5, %r0, 2;",
        # Even lanes come to the barrier in the first turn, odd ones in the second: they wait for each other.
        "and.b32 %r6, %r1, 1; mov.u32 %r5, 0; TOP: setp.eq.u32 %p0, %r5, %r6; @!%p0 bra NEXT; bar.sync 0;"
        "NEXT: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 2; @%p1 bra TOP;",
    ],
)
def test_lanes_that_do_not_go_round_a_barrier(body):
    assert launch(body, out()).findings == [] and launch(body, out(), block=(64,)).findings == []


def test_half_a_warp_at_a_barrier_blocks_for_ever():
    result = launch(
        "setp.lt.u32 %p0, %r0, 16; @%p0 bra B; shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; B: bar.sync 1, 64;",
        out(),
        block=(32,),
    )
    assert "barrier divergence" in kinds(result) and result.code == 719


def test_threads_that_have_exited_are_not_waited_for():
    c = out(64)
    result = launch("setp.lt.u32 %p0, %r0, 40; @%p0 exit; bar.sync 0; " + OUT.format("1"), c, block=(64,))
    assert not result.findings and (c[40:] == 1).all()


# ---- lanes together ----


def test_shuffles():
    c = np.zeros((6, 32), np.uint32)
    forms = (
        "up.b32 %r3|%p0, %r0, 3, 0",
        "down.b32 %r3|%p0, %r0, 3, 31",
        "bfly.b32 %r3|%p0, %r0, 5, 31",
        "idx.b32 %r3|%p0, %r0, 40, 31",
        "down.b32 %r3|%p0, %r0, 3, 0x181f",
        "up.b32 %r3|%p0, %r0, 1, 0x1800",
    )
    body = "".join(
        f"shfl.sync.{form}, -1; selp.u32 %r4, 1000, 0, %p0; add.u32 %r3, %r3, %r4; "
        f"st.global.u32 [%rd1+{128 * n}], %r3;\n"
        for n, form in enumerate(forms)
    )
    launch("mad.wide.u32 %rd1, %r1, 4, %rd0;" + body, c)
    lane = np.arange(32)

    def expect(source, inside):
        return np.where(inside, source + 1000, lane)

    assert np.array_equal(c[0], expect(lane - 3, lane >= 3))
    assert np.array_equal(c[1], expect(lane + 3, lane < 29))
    assert np.array_equal(c[2], expect(lane ^ 5, True))
    assert np.array_equal(c[3], expect(8, True))
    assert np.array_equal(c[4], expect(lane + 3, lane % 8 < 5)), "segments of 8 lanes"
    assert np.array_equal(c[5], expect(lane - 1, lane % 8 >= 1))


def test_votes_matches_and_reductions():
    c = np.zeros((8, 32), np.uint32)
    launch(
        """
        mad.wide.u32 %rd1, %r1, 4, %rd0;
        setp.lt.u32 %p0, %r0, 9;
        vote.sync.ballot.b32 %r3, %p0, -1; st.global.u32 [%rd1], %r3;
        vote.sync.all.pred %p1, %p0, 0x1ff; selp.u32 %r3, 1, 0, %p1; st.global.u32 [%rd1+128], %r3;
        vote.sync.any.pred %p1, !%p0, -1; selp.u32 %r3, 1, 0, %p1; st.global.u32 [%rd1+256], %r3;
        shr.u32 %r4, %r0, 3;
        match.any.sync.b32 %r3, %r4, -1; st.global.u32 [%rd1+384], %r3;
        redux.sync.add.u32 %r3, %r0, -1; st.global.u32 [%rd1+512], %r3;
        sub.s32 %r5, 3, %r0;
        redux.sync.min.s32 %r3, %r5, -1; st.global.u32 [%rd1+640], %r3;
        elect.sync %r3|%p1, -1; selp.u32 %r3, 1, 0, %p1; st.global.u32 [%rd1+768], %r3;
        @%p0 activemask.b32 %r3; st.global.u32 [%rd1+896], %r3;""",
        c,
    )
    lane = np.arange(32)
    assert (c[0] == 0x1FF).all() and (c[2] == 1).all() and (c[4] == 31 * 16).all()
    assert np.array_equal(c[3], 0xFF << (lane // 8 * 8))
    assert (c[5].astype(np.int32) == -28).all()
    assert np.array_equal(c[6], lane == 0)
    assert (c[7][:9] == 0x1FF).all()


# ---- memory ----


def test_vectors_sinks_and_extension():
    c = np.zeros((5, 32), np.uint32)
    source = np.arange(256, dtype=np.uint8) + 128
    launch(
        """
        mad.wide.u32 %rd2, %r0, 4, %rd0;
        mad.wide.u32 %rd3, %r0, 8, %rd1;
        ld.global.v4.u8 {%h1, _, %h2, %h3}, [%rd3+4];
        cvt.u32.u16 %r3, %h1; cvt.u32.u16 %r4, %h3; shl.b32 %r4, %r4, 8; or.b32 %r3, %r3, %r4;
        st.global.u32 [%rd2], %r3;
        ld.global.s8 %r3, [%rd3+1]; st.global.u32 [%rd2+128], %r3;
        ld.global.u16 %r3, [%rd3+2]; st.global.u32 [%rd2+256], %r3;
        mov.u32 %r3, 0; st.global.u8 [%rd2+385], 255;
        ld.global.v2.b32 {%r3, %r4}, [%rd3]; st.global.b32 [%rd2+512], %r4;""",
        c,
        source,
    )
    by_thread = source.reshape(32, 8).astype(np.uint32)
    assert np.array_equal(c[0], by_thread[:, 4] | by_thread[:, 7] << 8)
    assert np.array_equal(c[1], source.reshape(32, 8)[:, 1].view(np.int8).astype(np.int32).view(np.uint32))
    assert np.array_equal(c[2], by_thread[:, 2] | by_thread[:, 3] << 8)
    assert (c[3] == 0xFF00).all()
    assert np.array_equal(c[4], source.view(np.uint32).reshape(32, 2)[:, 1])


def test_generic_addresses_reach_every_space():
    c = out(64)
    result = launch(
        """
        .shared .align 4 .b32 s[64]; .local .align 8 .b8 depot[16];
        mov.u32 %r2, s; mad.lo.u32 %r2, %r0, 4, %r2; cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd1, %rd1;
        mov.u64 %rd2, depot; cvta.local.u64 %rd2, %rd2;
        mad.wide.u32 %rd3, %r0, 4, %rd0;
        and.b32 %r3, %r0, 1; setp.eq.u32 %p0, %r3, 0; selp.b64 %rd4, %rd1, %rd2, %p0;
        st.u32 [%rd4], %r0; ld.u32 %r5, [%rd4];
        isspacep.shared %p1, %rd4; selp.u32 %r6, 1000, 0, %p1; add.u32 %r5, %r5, %r6;
        st.u32 [%rd3], %r5;""",
        c,
        block=(64,),
    )
    assert not result.findings
    threads = np.arange(64)
    assert np.array_equal(c, threads + 1000 * (threads % 2 == 0))


def test_local_arrays_belong_to_their_threads():
    c = out(64)
    launch(
        """
        .local .align 4 .b8 a[64];
        mov.u64 %rd1, a; and.b32 %r2, %r0, 15; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd2, %rd1, %rd2;
        st.local.u32 [%rd2], %r0; ld.local.u32 %r3, [%rd2];"""
        + OUT.format("%r3"),
        c,
        block=(64,),
    )
    assert np.array_equal(c, np.arange(64))


def test_module_variables():
    outside = """
        .const .align 4 .f32 half[2] = {0f3F000000, 2.5};
        .global .align 8 .u64 there = generic(half)+4;
        .global .align 1 .b8 text[5] = {72, 105, 0x21};
        .visible .global .align 4 .u32 calls;"""
    body = """
        ld.const.f32 %f1, [half]; ld.global.u64 %rd1, [there]; ld.f32 %f2, [%rd1]; add.f32 %f3, %f1, %f2;
        mov.b32 %r3, %f3;
        ld.global.u8 %r4, [text+1]; shl.b32 %r4, %r4, 24; or.b32 %r3, %r3, %r4;
        atom.global.add.u32 %r5, [calls], 1;""" + OUT.format("%r3")
    built = module(body, 1, outside)
    c = out()
    params, memory = c.ctypes.data.to_bytes(8, "little"), [Region(c.ctypes.data, c.nbytes, "c")]
    for launches in (1, 2):
        launch_kernel(built, "k", (3,), params=params, memory=memory)
        calls = built.variables["calls"]
        assert np.ctypeslib.as_array((engine.ctypes.c_uint32 * 1).from_address(calls.base))[0] == 96 * launches
    assert (c == np.float32(3.0).view(np.uint32) | 105 << 24).all()


def test_atomics_lose_nothing():
    counts, bins = np.zeros(8, np.uint32), np.zeros(1, np.float32)
    result = launch(
        """
        .shared .align 4 .u32 s[8];
        setp.lt.u32 %p0, %r0, 8; mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r2;
        @%p0 st.shared.u32 [%r3], 0;
        bar.sync 0;
        and.b32 %r4, %r0, 7; shl.b32 %r5, %r4, 2; add.u32 %r5, %r5, %r2;
        atom.shared.add.u32 %r6, [%r5], 1;
        red.shared.max.u32 [%r5], 0;
        red.global.add.f32 [%rd1], 0f3F000000;
        bar.sync 0;
        @!%p0 exit;
        ld.shared.u32 %r7, [%r3]; mul.wide.u32 %rd2, %r0, 4; add.s64 %rd2, %rd2, %rd0;
        red.global.add.u32 [%rd2], %r7;""",
        counts,
        bins,
        grid=(50,),
        block=(256,),
    )
    assert not result.findings
    assert (counts == 50 * 32).all() and bins[0] == 50 * 256 / 2


def test_atomics_of_128_bits():
    """Each thread adds to both halves by compare-and-swap, and then puts something else there."""
    pair = np.zeros(4, np.uint64)
    result = launch(
        """
        .reg .b128 %q0, %q1, %q2; .reg .b64 %o<8>; mov.u64 %o0, 0; mov.u64 %o1, 0; cvt.u64.u32 %o6, %r0;
        AGAIN: mov.b128 %q0, {%o0, %o1}; add.u64 %o2, %o0, 1; add.u64 %o3, %o1, %o6; mov.b128 %q1, {%o2, %o3};
        atom.global.cas.b128 %q2, [%rd0], %q0, %q1; mov.b128 {%o4, %o5}, %q2;
        setp.ne.u64 %p0, %o4, %o0; setp.ne.or.u64 %p0, %o5, %o1, %p0; mov.u64 %o0, %o4; mov.u64 %o1, %o5;
        @%p0 bra AGAIN;
        setp.eq.u32 %p1, %r0, 0; @!%p1 exit;
        mov.u64 %o2, 5; mov.u64 %o3, 6; mov.b128 %q1, {%o2, %o3};
        atom.global.exch.b128 %q2, [%rd0+16], %q1; mov.b128 {%o4, %o5}, %q2;
        atom.global.exch.b128 %q0, [%rd0+16], %q1;""",
        pair,
        grid=(4,),
        block=(64,),
    )
    assert not result.findings
    assert pair.tolist() == [256, 4 * 63 * 64 // 2, 5, 6]


@pytest.mark.parametrize(("uses", "found"), [("", []), ("st.global.u32 [%rd1], %r6;", ["uninitialised global read"])])
def test_an_exchange_for_the_sake_of_the_store_reads_nothing(uses, found):
    """Where the compiler has no use for the result, the place may be unwritten."""
    new, other = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    result = launch("atom.global.exch.b32 %r6, [%rd0], 7;" + uses, new, other, block=(1,), unwritten=(0,))
    assert kinds(result) == found and new[0] == 7


@pytest.mark.parametrize(
    ("load", "found"),
    [
        ("ld.global.u64 %rd5, [%rd0]; st.global.u32 [%rd1], %rd5;", []),
        ("ld.global.v2.u32 {%r2, %r3}, [%rd0]; st.global.u32 [%rd1], %r2;", []),
        ("ld.global.v2.f32 {%f2, %f3}, [%rd0]; st.global.f32 [%rd1], %f2;", ["uninitialised global read"]),
    ],
)
def test_a_structure_with_padding_may_be_read_as_one_number(load, found):
    """Or as several integers, by which nvcc copies structures."""
    result = launch("st.global.u32 [%rd0], 7;" + load, np.zeros(2, np.uint32), np.zeros(1, np.uint32), block=(1,),
                    unwritten=(0,))  # fmt: skip
    assert kinds(result) == found


@pytest.mark.parametrize(("order", "found"), [("relaxed.cta", []), ("weak", ["shared race"])])
def test_lanes_of_a_warp_may_meet_at_an_atomic_object(order, found):
    """C++ makes relaxed loads and stores of an atomic: no race, also within a warp."""
    result = launch(
        f"""
        .shared .align 4 .u32 s; setp.eq.u32 %p0, %r0, 0; setp.eq.u32 %p1, %r0, 5;
        @%p0 st.shared.u32 [s], 3; bar.sync 0;
        @%p0 st.{order}.shared.u32 [s], 4;
        @%p1 ld.{order}.shared.u32 %r2, [s]; @%p1 st.global.u32 [%rd0], %r2;""",
        np.zeros(1, np.uint32),
    )
    assert kinds(result) == found


@pytest.mark.parametrize("form", ["atom", "red"])
def test_atomics_on_vectors_of_floats(form):
    """Each element by itself; `atom` gives what was there before."""
    data, old = np.arange(8, dtype=np.float32), np.zeros((32, 4), np.float32)
    target = "{%f1, %f2, %f3, %f4}, " if form == "atom" else ""
    result = launch(
        f"""mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
        cvt.rn.f32.u32 %f5, %r0; mov.f32 %f6, 0f3F800000; mov.f32 %f7, 0fBF800000; mov.f32 %f8, 0f00000000;
        {form}.global.add.v4.f32 {target}[%rd0+16], {{%f5, %f6, %f7, %f8}};
        mad.wide.u32 %rd2, %r0, 16, %rd1; st.global.v4.f32 [%rd2], {{%f1, %f2, %f3, %f4}};""",
        data,
        old,
    )
    assert not result.findings
    assert np.array_equal(data, [0, 1, 2, 3, 4 + 31 * 16, 5 + 32, 6 - 32, 7])
    if form == "atom":
        assert sorted(old[:, 1]) == list(range(5, 37)) and (old[:, 3] == 7).all()
    assert "misaligned" in kinds(
        launch(f"{form}.global.add.v2.f32 {target and '{%f1, %f2}, '}[%rd0+4], {{%f1, %f2}};", data)
    )


@pytest.mark.parametrize(("operation", "function"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f16x2", "bf16x2"])
def test_atomics_on_vectors_of_halves(operation, function, kind):
    count = 4 if kind.endswith("x2") else 8
    start, values = np.array([1, -2, 3, 0.5, 9, -7, 2, 4]), np.array([2, -3, 1, 0.25, -9, 8, 2, 5])
    bits = {
        "f16": lambda x: x.astype(np.float16).view(np.uint16),
        "bf16": lambda x: (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
    }[kind.removesuffix("x2")]
    data, operand = bits(start), bits(values)
    registers = [f"%{'r' if count == 4 else 'h'}{10 + n if count == 4 else n}" for n in range(count)]
    loads = "".join(f"ld.global.b{128 // count} {name}, [%rd1+{16 // count * n}];" for n, name in enumerate(registers))
    noftz = ".noftz" * (operation == "add")
    vector = f"red.global.{operation}{noftz}.v{count}.{kind} [%rd0], {{{', '.join(registers)}}};"
    result = launch(f"setp.ne.u32 %p0, %r0, 0; @%p0 exit; {loads} {vector}", data, operand)
    assert not result.findings and np.array_equal(data, bits(function(start, values)))


def test_compare_and_swap_as_a_lock_free_loop():
    c = np.zeros(1, np.uint32)
    launch(
        """
    AGAIN: ld.global.relaxed.gpu.u32 %r3, [%rd0];
        add.u32 %r4, %r3, 2;
        atom.global.cas.b32 %r5, [%rd0], %r3, %r4;
        setp.ne.u32 %p0, %r5, %r3;
        @%p0 bra AGAIN;""",
        c,
        grid=(20,),
        block=(64,),
    )
    assert c[0] == 2 * 20 * 64


# ---- what must not be done ----

MISTAKES = {
    "out of bounds global": "ld.global.u32 %r3, [%rd0+128];",
    "null pointer": "mov.u64 %rd1, 16; ld.global.u32 %r3, [%rd1];",
    "misaligned": "ld.global.u32 %r3, [%rd0+2];",
    "uninitialised global read": "ld.global.u32 %r3, [%rd0+20];",
    "out of bounds shared": ".shared .b32 s[4]; ld.shared.u32 %r3, [s+128];",
    "uninitialised shared read": ".shared .b32 s[4]; ld.shared.u32 %r3, [s];",
    "out of bounds local": ".local .b32 l[4]; st.local.u32 [l+16], %r0;",
}
FATAL = {
    "out of bounds global": 700,
    "null pointer": 700,
    "misaligned": 716,
    "out of bounds shared": 700,
    "out of bounds local": 700,
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes(kind):
    c = out()
    result = launch(
        f"setp.ne.u32 %p0, %r0, 5; @%p0 bra END; {MISTAKES[kind]} END: {OUT.format('1')}", c, unwritten=(0,)
    )
    (finding,) = result.findings
    assert finding.kind == kind and finding.thread == (5, 0, 0) and finding.place.text in MISTAKES[kind]
    assert result.code == FATAL.get(kind, 0)
    quiet = launch(MISTAKES[kind], out(), unwritten=(0,), sanitize=False)
    assert kinds(quiet) == ([kind] if kind in FATAL else []), "a fatal mistake stops the launch, checked or not"


def test_shared_memory_that_nobody_wrote_reads_as_nan():
    c = out()
    launch(".shared .align 4 .b32 s[4]; ld.shared.u32 %r3, [s];" + OUT.format("%r3"), c)
    assert np.isnan(c.view(np.float32)).all()


def test_two_lanes_write_one_place():
    body = ".shared .align 4 .b32 s[1]; {} st.shared.u32 [s], %r3;"
    assert not launch(body.format("mov.u32 %r3, 9;"), out()).findings, "the same value from all of them is no mistake"
    assert kinds(launch(body.format("mov.u32 %r3, %r0;"), out())) == ["shared race"]


def test_a_finding_counts_its_occurrences_and_names_the_first_block():
    result = launch(
        ".shared .align 4 .b32 s[32]; mov.u32 %r2, s; mad.lo.u32 %r2, %r0, 4, %r2; ld.shared.u32 %r3, [%r2];",
        out(),
        grid=(7,),
    )
    (finding,) = result.findings
    assert (finding.count, finding.block, finding.thread) == (7 * 32, (0, 0, 0), (0, 0, 0))


def test_sanitizer_granules_follow_the_smallest_access():
    """Neighbouring bytes by different threads are no race, also when others use whole words."""
    result = launch(
        """
        .shared .align 16 .b8 s[128];
        mov.u32 %r2, s; add.u32 %r3, %r2, %r0;
        st.shared.u8 [%r3], %r0;
        bar.sync 0;
        shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r2;
        setp.lt.u32 %p0, %r0, 8;
        @%p0 ld.shared.u32 %r5, [%r4];""",
        out(),
    )
    assert not result.findings


# ---- counters and trace ----

SHARED = ".shared .align 16 .b8 s[8192]; mov.u32 %r2, s; mad.lo.u32 %r3, %r0, {stride}, %r2; "


@pytest.mark.parametrize(
    ("stride", "instruction", "wavefronts", "conflicts"),
    [  # REFERENCE: ncu on an H200
        (4, "st.shared.u32 [%r3], %r0", 1, 0),
        (128, "st.shared.u32 [%r3], %r0", 32, 31),
        (8, "st.shared.u32 [%r3], %r0", 2, 1),
        (0, "ld.shared.u32 %r5, [%r3]", 1, 0),
        (16, "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r3]", 4, 0),
        (2, "ld.shared.u16 %h1, [%r3]", 1, 0),
        (8, "ld.shared.v2.f32 {%f1, %f2}, [%r3]", 2, 0),
        (132, "ld.shared.u32 %r5, [%r3]", 1, 0),
        (64, "ld.shared.u32 %r5, [%r3]", 16, 15),
    ],
)
def test_wavefronts(stride, instruction, wavefronts, conflicts):
    result = launch(SHARED.format(stride=stride) + instruction + ";", out(), sanitize=False)
    assert executed(result, instruction, "wavefronts") == wavefronts
    assert executed(result, instruction, "conflicts") == conflicts


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (0, 1), (8, 8), (32, 32), (128, 32)])
def test_sectors(stride, sectors):
    data = np.zeros(4096 + 32, np.uint8)
    data = data[-data.ctypes.data % 32 :][:4096]
    instruction = "ld.global.u32 %r5, [%rd2]"
    result = launch(f"mad.wide.u32 %rd2, %r0, {stride}, %rd0; {instruction}; @%p0 ld.global.u32 %r6, [%rd0];", data)
    assert executed(result, instruction, "sectors") == sectors
    assert executed(result, instruction, "bytes") == 128
    assert executed(result, instruction, "requests") == 1
    assert executed(result, "@%p0 ld.global", "requests") == 0, "no lane takes part, so nothing is asked of memory"


def test_trace_tells_who_touched_what_and_when():
    c = out(64)
    result = launch(
        f"""
        .shared .align 4 .b8 s[256];
        mov.u32 %r2, s; mad.lo.u32 %r2, %r0, 4, %r2;
        st.shared.u32 [%r2], %r0;
        ld.shared.u32 %r3, [%r2];
        {OUT.format("%r3")}""",
        c,
        grid=(3,),
        block=(64,),
        trace=range(1, 2),
    )
    rows = result.trace
    assert set(rows["block"]) == {1} and len(rows) == 3 * 64
    store = rows[rows["seq"] == 2]
    assert np.array_equal(np.sort(store["addr"]), c.ctypes.data + 4 * np.arange(64))
    for row in rows:
        assert row["space"] == (Space.GLOBAL if row["seq"] == 2 else Space.SHARED)
        assert row["kind"] == (Access.LOAD if row["seq"] == 1 else Access.STORE)
        assert row["size"] == 4 and (row["seq"] == 2 or row["addr"] == 4 * row["thread"])
    assert len(launch(OUT.format("1"), c, trace=range(1), trace_rows=10).trace) == 10


def test_results_do_not_depend_on_the_number_of_threads():
    body = REVERSE.format(barrier="bar.sync 0;") + "red.global.add.u32 [%rd0], %r5;"
    results = [launch(body, np.zeros(1, np.uint32), grid=(40,), block=(256,), threads=threads) for threads in (1, 3)]
    assert np.array_equal(results[0].counters, results[1].counters)


def test_progress_is_told():
    seen = []
    launch(
        "mov.u32 %r3, 0; L: add.u32 %r3, %r3, 1; setp.lt.u32 %p0, %r3, 50000; @%p0 bra L;",
        out(),
        grid=(64,),
        progress=lambda done, blocks: seen.append((done, blocks)),
    )
    assert seen[-1] == (64, 64) and seen == sorted(seen)


# ---- reading PTX ----


def test_scopes_have_their_own_registers_and_labels():
    c = out()
    launch(
        """
        mov.u32 %r3, 0;
        { .reg .pred p; .reg .b32 x; mov.u32 x, %r0;
          L: add.u32 %r3, %r3, 1; sub.u32 x, x, 1; setp.ne.s32 p, x, -1; @p bra L; }
        { .reg .pred p; .reg .u32 x; mov.u32 x, 2;
          L: add.u32 %r3, %r3, 100; sub.u32 x, x, 1; setp.ne.s32 p, x, 0; @p bra L; }
        """
        + OUT.format("%r3"),
        c,
    )
    assert np.array_equal(c, np.arange(32) + 201)


def test_syntax():
    parsed = ptx.parse("""
        .version 8.0 // a comment ; with { marks
        .target sm_80 /* another
        one */
        .file 1 "/a//b \\"c\\".cu"
        .visible .entry f(.param .align 8 .b8 p[24], .param .u32 q) .maxntid 64, 2, 1 .minnctapersm 2
        {
            .reg.b16 %rs<3>; .reg .b32 %r<2>; .reg .pred %p1;
            .loc 1 10 3
            {mov.b32 %r1, {%rs1, %rs2};} mov.b32 {%rs1, _}, %r1;
            .loc 1 20 5, function_name x, inlined_at 1 10 3
            .loc 1 30 5, function_name y, inlined_at 1 20 5
            @!%p1 st.global.u32 [%rd1+-8], 0x1F;
        }""")
    function = parsed.functions["f"]
    assert parsed.files == {1: '/a//b "c".cu'} and function.max_threads == 128
    assert [(p.name, p.size, p.align) for p in function.params] == [("p", 24, 8), ("q", 4, 4)]
    pack, unpack, store = function.instructions
    assert [r.name for r in pack.operands[1].elements] == ["%rs1", "%rs2"] and unpack.operands[0].elements[
        1
    ] is ptx.SINK
    assert (
        store.negated and store.guard.name == "%p1" and store.operands[0].offset == -8 and store.operands[1].value == 31
    )
    assert (store.location.line, store.location.call_line) == (30, 10), (
        "through two inlined calls to the outermost line"
    )
    function.forget()
    assert function.instructions[0] is not pack and [i.text for i in function.instructions] == [
        i.text for i in (pack, unpack, store)
    ]


def test_the_calls_of_a_template_that_calls_itself():
    """Its line calls the same line of another instance, as in CuTe's copies. The outer one comes up again later."""
    parsed = ptx.parse("""
        .version 8.0
        .target sm_80
        .file 1 "kernel.cu"
        .file 2 "recursive.h"
        .visible .entry f() {
            .reg .b32 %r<4>;
            .loc 2 5 3, function_name outer, inlined_at 1 10 3
            .loc 2 9 3, function_name passes_on, inlined_at 2 5 3
            .loc 2 5 3, function_name inner, inlined_at 2 9 3
            .loc 2 20 3, function_name last, inlined_at 2 5 3
            mov.u32 %r1, 0;
            .loc 2 9 3, function_name passes_on, inlined_at 2 5 3
            mov.u32 %r2, 0;
            .loc 2 5 3, function_name outer, inlined_at 1 30 3
            mov.u32 %r3, 0;
        }""")
    chains = [each.location.chain for each in parsed.functions["f"].instructions]
    assert chains == [
        ((2, 20), (2, 5), (2, 9), (2, 5), (1, 10)),
        ((2, 9), (2, 5), (1, 10)),
        ((2, 5), (1, 30)),
    ]
    assert [each.location.call_line for each in parsed.functions["f"].instructions] == [10, 10, 30]


@pytest.mark.parametrize(
    "text", [".visible .entry k() {", ".visible .entry k() { add.u32 %r1, ?; }", ".visible .entry k() { .reg .q9 %r; }"]
)
def test_broken_ptx_is_an_error_with_its_line(text):
    with pytest.raises(UserError, match=r"PTX line \d"):
        ptx.parse(text)


def test_lines_of_inlined_functions_are_those_of_the_kernel(tmp_path):
    source = tmp_path / "inline.cu"
    source.write_text("""#include <cuda_fp16.h>
__device__ inline float deep(const float *p) { return p[threadIdx.x] * 3.0f; }
__device__ __noinline__ float apart(float x) { return x * x + 1.0f; }
extern "C" __global__ void k(const float *a, float *b) {
  float x = deep(a);
  b[threadIdx.x] = apart(x);
}
""")
    built = engine.Module(compile_host(source).ptx)
    a, b = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    memory = [Region(x.ctypes.data, x.nbytes, "") for x in (a, b)]
    params = np.array([x.ctypes.data for x in (a, b)], np.uint64).tobytes()
    result = launch_kernel(built, "k", params=params, memory=memory)
    assert not result.findings and np.array_equal(b, (a * 3) ** 2 + 1)
    (load,) = [place for place in built.kernel("k").instructions if re.match(r"ld\.global", place.text)]
    assert (load.line, load.inner_line) == (5, 2) and load.file.endswith("inline.cu")


def test_printf(tmp_path):
    source = tmp_path / "print.cu"
    source.write_text(r"""#include <cstdio>
extern "C" __global__ void k(const float *a) {
  if (threadIdx.x == 1)
    printf("block %d of %u: %s %.3f %5lld|%-4c|%x%%\n", blockIdx.x, gridDim.x, "half", a[0] / 2, -7ll, 'z', 255);
  if (threadIdx.x == 2 && blockIdx.x == 2) printf("done\n");
}
""")
    built = engine.Module(compile_host(source).ptx)
    a = np.ones(1, np.float32)
    memory = [Region(a.ctypes.data, a.nbytes, "a")]
    result = launch_kernel(built, "k", (3,), params=a.ctypes.data.to_bytes(8, "little"), memory=memory)
    assert not result.findings
    lines = [f"block {n} of 3: half 0.500    -7|z   |ff%" for n in range(3)]
    assert result.output.splitlines() == [*lines, "done"]


@pytest.mark.parametrize("align", [4, 512, 1 << 16])
def test_variables_lie_in_memory_of_their_own_however_they_are_aligned(align: int):
    text = f".version 8.3\n.target sm_90\n.address_size 64\n.global .align {align} .b8 x[8] = {{1, 2}};"
    built = engine.Module(text)
    base, (storage,) = built.variables["x"].base, built._storage
    assert base % align == 0 and bytes(storage[base - storage.ctypes.data :][:2]) == b"\1\2"
    assert storage.ctypes.data + 256 <= base and base + 8 + 128 <= storage.ctypes.data + storage.size


# ---- addresses that host code made up, and modules that nobody would write ----


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("space", [".global", "", ".local"])
@pytest.mark.parametrize("access", ["ld{space}.{type} {to}, [%rd9];", "st{space}.{type} [%rd9], {to};"])
def test_the_last_addresses_that_there_are(width, access, space):
    """p[-1] of a null pointer: address + size is 2^64, which no check may take for 0."""
    kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "v2.u64"}[width]
    to = {1: "%h9", 2: "%h9", 4: "%r9", 8: "%rd7", 16: "{%rd7, %rd8}"}[width]
    ready = ".local .b8 room[64]; mov.u64 %rd7, 1; mov.u64 %rd8, 1; mov.u32 %r9, 1; mov.u16 %h9, 1;"
    text = access.format(space=space, type=kind, to=to)
    result = launch(f"{ready} mov.u64 %rd9, {(1 << 64) - width}; {text}", out())
    assert kinds(result) == [f"out of bounds {space[1:] or 'global'}"] and result.code == 700


def test_an_atomic_on_the_last_address_that_there_is():
    result = launch(f"mov.u64 %rd9, {(1 << 64) - 4}; atom.global.add.u32 %r9, [%rd9], 1;", out())
    assert kinds(result) == ["out of bounds global"]


def test_a_variable_as_large_as_a_gpu_is_no_trouble():
    """Its zeros are nobody's to write one by one."""
    started = time.process_time()
    write_and_read = "st.global.u32 [table], 5; bar.warp.sync -1; ld.global.u32 %r2, [table]; "
    result = launch(write_and_read + OUT.format("%r2"), c := out(), outside=".global .align 4 .b8 table[4294967292];")
    assert not result.findings and (c == 5).all() and time.process_time() - started < 5


def test_constants_have_room_for_64_kb_in_all():
    with pytest.raises(UserError, match="__constant__ .*65,536 .*120,000"):
        module("", 0, outside=".const .b8 a[60000]; .const .b8 b[60000];")


def test_debug_sections_are_read_whatever_they_hold():
    launch("", outside=".section .debug_str { $L__1: .b8 300, 65, 0 }".replace(".section ", ".section\t"))


def test_past_constant_memory_is_told_as_that():
    result = launch("mov.u64 %rd3, a; ld.const.u32 %r3, [%rd3+400000];", outside=".const .align 4 .b8 a[64];")
    assert kinds(result) == ["out of bounds constant"]


# ---- what is printed comes as it is printed ----


def test_what_blocks_print_comes_in_their_order_while_they_run():
    source = sources.source(PRINTING, "printing")
    build = compile_host(source)
    pieces: list[str] = []
    module_ = engine.Module(build.ptx)
    result = launch_kernel(module_, "many", (200,), printed=pieces.append, threads=2)
    lines = "".join(pieces).splitlines()
    assert lines == [f"block {block} line {line}" for block in range(200) for line in range(100)]
    assert result.output == ""
    assert launch_kernel(module_, "many", (2,)).output.splitlines() == lines[:200]


@pytest.mark.full
def test_a_block_prints_a_megabyte_and_no_more():
    module_ = engine.Module(compile_host(sources.source(PRINTING, "printing")).ptx)
    output = launch_kernel(module_, "endless", instructions=30_000_000).output
    assert 1 << 20 < len(output) < 1.1 * (1 << 20) and "the rest is left out" in output[-100:]


def test_what_a_block_prints_appears_while_it_runs():
    """The host answers the first line; both blocks print in pieces, and each one's lines come together."""
    module_ = engine.Module(compile_host(sources.source(PRINTING, "printing")).ptx)
    a, pieces = np.zeros(1, np.int32), []

    def printed(text: str) -> None:
        pieces.append(text)
        a[0] = 1

    params = a.ctypes.data.to_bytes(8, "little")
    launch_kernel(module_, "asks", (2,), params=params, memory=[Region(a.ctypes.data, a.nbytes, "a")], printed=printed)
    assert pieces[0] == "block 0 asks\n", pieces
    assert "".join(pieces).splitlines() == [
        line for n in range(2) for line in (f"block {n} asks", *(f"block {n} hears {k}" for k in (1, 2)))
    ]


PRINTING = r"""
#include <cstdio>
extern "C" __global__ void asks(volatile int *a) {
  if (threadIdx.x) return;
  printf("block %d asks\n", blockIdx.x);
  int answer = 0;
  for (int i = 0; i < 20000000 && !answer; ++i) answer = *a;
  for (int k = 1; answer && k < 3; ++k) printf("block %d hears %d\n", blockIdx.x, k);
}
extern "C" __global__ void many() {
  if (threadIdx.x == 0)
    for (int line = 0; line < 100; ++line) printf("block %d line %d\n", blockIdx.x, line);
}
extern "C" __global__ void endless() {
  for (int line = 0; line >= 0; ++line) printf("again and again %d\n", line);
}
"""
