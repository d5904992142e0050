"""What orders accesses to shared memory: barriers of all kinds, fences and flags, locks; and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cudaemu.machine import kinds, launch

OUT = "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], %r5;"
# %r2: the thread's own word; %r4: that of the lane with the other half's number; %r6: of thread 0 of the next warp.
SLOTS = """
    .shared .align 4 .b32 s[256]; .shared .align 4 .b32 flag[4];
    mov.u32 %r3, s; mad.lo.u32 %r2, %r0, 4, %r3; xor.b32 %r4, %r0, 16; mad.lo.u32 %r4, %r4, 4, %r3;
    mov.u32 %r7, flag;
"""


def run(body: str, threads: int = 32, **options):
    c = np.zeros(256, np.uint32)
    result = launch(SLOTS + body + OUT, c, block=(threads,), **options)
    return kinds(result), c[:threads], result


# ---- within a warp ----


@pytest.mark.parametrize(
    ("mask", "other", "fine"),
    [
        ("-1", "xor.b32 %r4, %r0, 16;", True),
        ("%r9", "xor.b32 %r4, %r0, 1;", True),  # both lanes are of one half
        ("%r9", "xor.b32 %r4, %r0, 16;", False),  # each half has synchronised itself only
    ],
)
def test_syncwarp_orders_the_lanes_that_it_names(mask, other, fine):
    body = f"""
        setp.lt.u32 %p0, %r1, 16; selp.b32 %r9, 0x0000ffff, 0xffff0000, %p0;
        st.shared.u32 [%r2], %r0; bar.warp.sync {mask};
        {other} mad.lo.u32 %r4, %r4, 4, %r3; ld.shared.u32 %r5, [%r4];"""
    found, c, result = run(body)
    assert found == ([] if fine else ["shared race"]), result.findings
    if not fine:
        (finding,) = result.findings
        assert finding.thread == (0, 0, 0) and finding.other_thread == (16, 0, 0)


def test_what_lanes_know_is_passed_on():
    """Lanes 0-15 and 16-31 synchronise among themselves, then 8 with 24: 9 knows nothing of 25, 8 does."""
    body = """
        setp.lt.u32 %p0, %r1, 16; selp.b32 %r9, 0x0000ffff, 0xffff0000, %p0;
        st.shared.u32 [%r2], %r0; bar.warp.sync %r9;
        and.b32 %r10, %r1, 15; setp.eq.u32 %p1, %r10, 8; @!%p1 bra SKIP; bar.warp.sync 0x01000100; SKIP: {}
        setp.eq.u32 %p2, %r1, {}; @!%p2 bra END; ld.shared.u32 %r5, [s+100]; END: mov.u32 %r5, 0;"""
    assert run(body.format("", 8))[0] == [], "25 is in the half of 24, which knows it"
    assert run(body.format("", 9))[0] == ["shared race"]
    assert run(body.format("bar.warp.sync -1;", 9))[0] == []


def test_a_race_of_a_broadcast_names_both_threads():
    """All lanes read a word that one of them has just written, or is about to write: the opponent is another lane."""
    written = "setp.eq.u32 %p0, %r1, 0; @%p0 st.shared.u32 [s], %r0; ld.shared.u32 %r5, [s];"
    found, _, result = run(written)
    assert found == ["shared race"]
    assert result.findings[0].thread == (1, 0, 0) and result.findings[0].other_thread == (0, 0, 0)
    for writer in (0, 5, 31):
        read = f"""@!%p1 st.shared.u32 [s], 1; bar.warp.sync -1; ld.shared.u32 %r5, [s];
            setp.eq.u32 %p0, %r1, {writer}; @%p0 st.shared.u32 [s], 2;"""
        found, _, result = run("setp.ne.u32 %p1, %r1, 0;" + read)
        assert found == ["shared race"], "read by all, written by one"
        (finding,) = result.findings
        assert finding.thread == (writer, 0, 0) and finding.other_thread not in (None, (writer, 0, 0))
        assert finding.other_thread[0] < 32 and "written here and read by" in finding.message


def test_volatile_accesses_are_no_substitute_for_syncwarp():
    """The reduction of an old book: right only as long as the lanes of a warp march in step."""
    body = """mov.u32 %r5, 0; st.volatile.shared.u32 [%r2], %r0; setp.ge.u32 %p0, %r1, 16; @%p0 bra END;
        ld.volatile.shared.u32 %r5, [%r2+64]; ld.volatile.shared.u32 %r6, [%r2]; add.u32 %r5, %r5, %r6; END:"""
    assert set(run(body)[0]) == {"shared race"}
    assert run(body.replace("setp.ge", "bar.warp.sync -1; setp.ge"))[0] == []


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize(("other", "found"), [("%r1, 32", False), ("%r1, 1", True)])
def test_a_load_that_the_compiler_has_moved_above_a_short_circuit(space, other, found):
    """`if (done || s[0] > 1000) …`: nothing comes of the load where `done` is true."""
    base = {"shared": "%r2", "global": "%rd5"}[space]
    body = f"""mad.wide.u32 %rd5, %r0, 4, %rd0; {"" if space == "shared" else "add.s64 %rd5, %rd5, 512;"}
        st.{space}.u32 [{base}], %r0; mov.u32 %r5, 0;
        xor.b32 %r8, %r0, 1; mad.lo.u32 %r4, %r8, 4, %r3; mad.wide.u32 %rd6, %r8, 4, %rd0; add.s64 %rd6, %rd6, 512;
        bra HERE; HERE:
        ld.{space}.u32 %r9, [{"%r4" if space == "shared" else "%rd6"}];
        setp.lt.u32 %p1, {other}; setp.gt.u32 %p2, %r9, 1000; or.pred %p3, %p1, %p2; @%p3 bra END;
        mov.u32 %r5, %r9; END:"""
    assert run(body)[0] == ([f"{space} race"] if found else [])


def test_a_load_that_comes_first_is_made_in_any_case():
    """`if (s[0] > 1000 || done)`; and one whose value is used behind the branch."""
    body = """st.shared.u32 [%r2], %r0; bra HERE; HERE: ld.shared.u32 %r9, [%r4]; setp.gt.u32 %p2, %r9, 1000;
        ld.global.u32 %r10, [%rd0+512]; setp.eq.u32 %p1, %r10, 0; or.pred %p3, %p2, %p1; @%p3 bra END;
        END: mov.u32 %r5, 0;"""
    assert run(body)[0] == ["shared race"]
    body = """st.shared.u32 [%r2], %r0; bra HERE; HERE: ld.shared.u32 %r5, [%r4]; setp.gt.u32 %p2, %r5, 1000;
        setp.lt.u32 %p1, %r1, 32; or.pred %p3, %p2, %p1; @%p3 bra END; END:"""
    assert run(body)[0] == ["shared race"]


# ---- barriers of some warps ----

# Warps 0 and 1 produce, warps 2 and 3 consume; `ready` says that the data are there, `free` that the place is.
PRODUCER = """
    mov.u32 %r20, 0; setp.ge.u32 %p1, %r0, 64; @%p1 bra CONSUMER;
  PRODUCE: {wait_free}
    add.u32 %r21, %r0, %r20; st.shared.u32 [%r2], %r21;
    {arrive_ready}
    add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 3; @%p2 bra PRODUCE;
    exit;
  CONSUMER: mov.u32 %r5, 0; {first_free}
  CONSUME: {wait_ready}
    ld.shared.u32 %r21, [%r2+-256]; add.u32 %r5, %r5, %r21;
    add.u32 %r20, %r20, 1; setp.ge.u32 %p2, %r20, 3; @%p2 bra DONE;
    {arrive_free}
    bra CONSUME;
  DONE:
"""
RIGHT = {
    "wait_free": "bar.sync 2, 128;",
    "arrive_ready": "bar.arrive 1, 128;",
    "first_free": "bar.arrive 2, 128;",
    "wait_ready": "bar.sync 1, 128;",
    "arrive_free": "bar.arrive 2, 128;",
}


def test_producers_and_consumers():
    found, c, result = run(PRODUCER.format(**RIGHT), 128)
    assert found == [], result.findings
    assert np.array_equal(c[64:], 3 * np.arange(64) + 3)


BROKEN = {
    "nobody says that the place is free": {"wait_free": "", "first_free": "", "arrive_free": ""},
    "data are announced before they are written": {
        "wait_free": "bar.sync 2, 128; bar.arrive 1, 128;",
        "arrive_ready": "",
    },
    "consumers arrive, but do not wait": {"wait_ready": "bar.arrive 1, 128;", "arrive_ready": "bar.sync 1, 128;"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_producers_and_consumers(name):
    assert "shared race" in run(PRODUCER.format(**RIGHT | BROKEN[name]), 128)[0]


def test_a_barrier_that_two_groups_use_in_turn():
    """Warps 0 and 1 meet at barrier 1, then warps 2 and 3: if nothing orders the two, it may count one of each."""
    body = (
        "mov.u32 %r5, 0; setp.ge.u32 %p1, %r0, 64; @%p1 bra LATER; bar.sync 1, 64; {} exit; LATER: {} bar.sync {}, 64;"
    )
    assert (
        run(body.format("", "", 2), 128)[0]
        == run(body.format("bar.arrive 3, 128;", "bar.sync 3, 128;", 1), 128)[0]
        == []
    )
    found, _, result = run(body.format("", "", 1), 128)
    assert found == ["barrier divergence"] and "nothing orders this thread after that" in result.findings[0].message


def test_an_arrival_hands_over_what_was_done_before_it_only():
    body = """
        setp.ge.u32 %p1, %r0, 32; @%p1 bra READ;
        {} st.shared.u32 [%r2], %r0; {} exit;
        READ: bar.sync 1, 64; ld.shared.u32 %r5, [%r2+-128];"""
    assert run(body.format("", "bar.arrive 1, 64;"), 64)[0] == []
    assert "shared race" in run(body.format("bar.arrive 1, 64;", ""), 64)[0]


def test_the_barrier_comes_before_the_races_that_it_causes():
    body = """
        setp.lt.u32 %p1, %r0, 32; st.shared.u32 [%r2], %r0; @%p1 bra OTHER;
        bar.sync 0; xor.b32 %r4, %r0, 32; mad.lo.u32 %r4, %r4, 4, %r3; ld.shared.u32 %r5, [%r4];
        xor.b32 %r4, %r0, 1; mad.lo.u32 %r4, %r4, 4, %r3; st.shared.u32 [%r4], %r0; bra END;
        OTHER: bar.sync 0; ld.shared.u32 %r5, [%r2+128]; END:"""
    found, *_ = run(body, 64)
    assert found[0] == "barrier divergence" and "shared race" in found[1:]


# ---- flags and locks in shared memory ----

# Warp 0 writes, and its first lane sets a flag for warp 1.
FLAG = """
    setp.ne.u32 %p0, %r0, 0; @%p0 bra A; st.shared.u32 [flag], 0; A: bar.sync 0;
    setp.ge.u32 %p1, %r0, 32; @%p1 bra WAIT; setp.ne.u32 %p2, %r1, 0;
    {early} bar.warp.sync -1; @%p2 bra LATE; {set} LATE: {late} exit;
  WAIT: {poll} setp.eq.u32 %p3, %r8, 0; @%p3 bra WAIT;
    membar.cta; ld.shared.u32 %r5, [%r2+-128];
"""
WRITE = "st.shared.u32 [%r2], %r0;"
FLAGS = {
    "volatile": ("st.volatile.shared.u32 [flag], 1;", "ld.volatile.shared.u32 %r8, [flag];"),
    "exchange": ("atom.shared.exch.b32 %r9, [flag], 1;", "atom.shared.or.b32 %r8, [flag], 0;"),
    "release": ("st.release.cta.shared.u32 [flag], 1;", "ld.acquire.cta.shared.u32 %r8, [flag];"),
    "add": ("membar.cta; atom.shared.add.u32 %r9, [flag], 1;", "ld.relaxed.cta.shared.u32 %r8, [flag];"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name):
    set_, poll = FLAGS[name]
    found, c, result = run(FLAG.format(early=WRITE, late="", set=set_, poll=poll), 64)
    assert found == [], result.findings
    assert np.array_equal(c[32:], np.arange(32))
    assert "shared race" in run(FLAG.format(early="", late=WRITE, set=set_, poll=poll), 64)[0]


def test_a_flag_that_is_a_plain_variable_is_a_race():
    poll = "ld.volatile.shared.u32 %r8, [flag];"
    assert "shared race" in run(FLAG.format(early=WRITE, late="", set="st.shared.u32 [flag], 1;", poll=poll), 64)[0]


def test_an_atomic_that_counts_hands_nothing_over_without_a_fence():
    set_, poll = FLAGS["add"]
    assert (
        "shared race" in run(FLAG.format(early=WRITE, late="", set=set_.replace("membar.cta;", ""), poll=poll), 64)[0]
    )


LOCK = """
    setp.ne.u32 %p0, %r0, 0; @%p0 bra A; st.shared.u32 [flag], 0; st.shared.u32 [s], 0; A: bar.sync 0;
  TAKE: {take} setp.ne.u32 %p3, %r8, 0; @%p3 bra TAKE;
    ld.shared.u32 %r9, [s]; add.u32 %r9, %r9, 1; st.shared.u32 [s], %r9;
    {give} bar.sync 0; ld.shared.u32 %r5, [s];
"""


def test_locks():
    lock = {"take": "atom.shared.cas.b32 %r8, [flag], 0, 1;", "give": "atom.shared.exch.b32 %r8, [flag], 0;"}
    found, c, result = run(LOCK.format(**lock), 96)
    assert found == [] and (c == 96).all(), result.findings
    assert "shared race" in run(LOCK.format(take="mov.u32 %r8, 0;", give=""), 96)[0]


# ---- instructions of a whole warp ----


@pytest.mark.parametrize(
    ("read", "other", "fine"),
    [
        ("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%r10, %r11, %r12, %r13}, [%r2];", 31, True),
        ("ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r2];", 31, False),
        ("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%r10, %r11, %r12, %r13}, [%r2];", 63, False),  # of another warp
    ],
)
def test_a_lane_writes_what_its_warp_has_read_by_ldmatrix(read, other, fine):
    """ldmatrix lets no lane go on before all have executed it, and so have read."""
    body = f""".shared .align 16 .b8 m[1024]; mov.u32 %r5, m; mad.lo.u32 %r2, %r0, 16, %r5; xor.b32 %r4, %r0, {other};
        mad.lo.u32 %r4, %r4, 16, %r5; st.shared.v4.u32 [%r2], {{%r0, %r0, %r0, %r0}}; bar.sync 0; {read}
        st.shared.u32 [%r4], 99; mov.u32 %r5, 0;"""
    result = launch(body + OUT, np.zeros(64, np.uint32), block=(64,))
    assert set(kinds(result)) == (set() if fine else {"shared race"}), result.findings


# ---- the window ----


def test_a_read_just_past_the_array_is_reported_and_goes_on():
    """Hardware gives a block shared memory in units of 128 bytes: what lies behind the arrays is there, but
    nobody's."""
    c = np.zeros(32, np.uint32)
    body = (
        ".shared .align 4 .b32 a[5]; mov.u32 %r2, a; mad.lo.u32 %r2, %r0, 4, %r2; "
        "st.shared.u32 [a], 1; {} mov.u32 %r5, 9;"
    )
    result = launch(body.format("ld.shared.u32 %r6, [a+20];") + OUT, c)
    assert kinds(result) == ["out of bounds shared"] and result.code == 0 and (c == 9).all()
    assert "past the end" in result.findings[0].message and "a" in result.findings[0].message
    result = launch(body.format("ld.shared.u32 %r6, [a+128];") + OUT, c)
    assert kinds(result) == ["out of bounds shared"] and result.code == 700
