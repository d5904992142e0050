"""mbarriers, and the bulk copies that complete on them: what they do, and what is found."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cudaemu.machine import kinds, launch

# 64 threads; %r2: the thread's word of s, %r3: that of the thread with which it shares a lane, %r5: stored at the end.
FIRST = """
    .shared .align 16 .b32 s[64]; .shared .align 8 .b64 m;
    mov.u32 %r4, s; mad.lo.u32 %r2, %r0, 4, %r4; xor.b32 %r3, %r0, 32; mad.lo.u32 %r3, %r3, 4, %r4; mov.u32 %r5, 0;
    setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared::cta.b64 [m], {count}; bar.sync 0;
"""
WAIT = "W{0}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [m], {1}; @%p1 bra D{0}; bra W{0}; D{0}:"
LAST = "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], %r5;"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], {0}, [m];"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], {0};"


def run(body: str, count: int = 64, **options):
    c, x = np.zeros(64, np.uint32), np.arange(100, 164, dtype=np.uint32)
    result = launch(FIRST.replace("{count}", str(count)) + body + LAST, c, x, block=(64,), **options)
    return kinds(result), c, result


# ---- mbarriers ----


@pytest.mark.parametrize(
    ("arrive", "fine"),
    [
        ("mbarrier.arrive.shared::cta.b64 _, [m];", True),
        ("mbarrier.arrive.release.cta.shared::cta.b64 %rd5, [m];", True),
        ("mbarrier.arrive.shared::cta.b64 %rd5, [m], 1;", True),
        ("fence.acq_rel.cta; mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [m];", False),  # a fence of the block alone
        ("fence.acq_rel.gpu; mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [m];", True),
        ("mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [m];", False),
    ],
)
def test_who_waits_knows_what_they_did_that_arrived(arrive, fine):
    found, c, result = run("st.shared.u32 [%r2], %r0;" + arrive + WAIT.format(0, 0) + "ld.shared.u32 %r5, [%r3];")
    assert set(found) == (set() if fine else {"shared race"}), result.findings
    assert c.tolist() == [n ^ 32 for n in range(64)]


@pytest.mark.parametrize(
    ("arrive", "wait", "fine"),
    [
        ("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [m];", True, True),
        ("cp.async.mbarrier.arrive.shared::cta.b64 [m]; mbarrier.arrive.shared::cta.b64 _, [m];", True, True),
        ("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [m];", False, False),
    ],
)
def test_an_arrival_of_copies(arrive, wait, fine):
    """Without .noinc the phase expects one arrival more, and gets it."""
    copy = "mad.wide.u32 %rd5, %r0, 4, %rd1; cp.async.ca.shared.global [%r2], [%rd5], 4;"
    found, c, result = run(copy + arrive + WAIT.format(0, 0) * wait + "ld.shared.u32 %r5, [%r3];")
    assert ("shared race" in found) == (not fine), result.findings
    assert not fine or c.tolist() == [100 + (n ^ 32) for n in range(64)]


COPIES = "mad.wide.u32 %rd5, %r0, 4, %rd1; cp.async.ca.shared.global [%r2], [%rd5], 4;"
LATE = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [m];"
OWN, OTHERS = "ld.shared.u32 %r5, [%r2];", "ld.shared.u32 %r5, [%r3];"
OVER = "xor.b32 %r7, %r0, 32; mad.wide.u32 %rd6, %r7, 4, %rd1; st.global.u32 [%rd6], %r0;"
PUT = (
    "@!%p0 ret; cp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], 256;"
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret;"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (COPIES + LATE + OWN, {"copy in flight"}),  # it is not a wait
        (COPIES + LATE + "cp.async.wait_all;" + OWN, set()),
        (COPIES + LATE + "cp.async.wait_all; bar.sync 0;" + OTHERS, set()),
        (COPIES + LATE + "bar.sync 0;" + OTHERS, {"copy in flight"}),
        ("st.shared.u32 [%r2], %r0;" + LATE + WAIT.format(0, 0) + OTHERS, {"shared race"}),  # of copies alone
        (COPIES + LATE + LATE.replace("[m]", "[m2]") + WAIT.format(0, 0).replace("[m]", "[m2]") + OTHERS, set()),
        (COPIES + LATE + WAIT.format(0, 0) + OVER, set()),  # and of what they read
        (COPIES + LATE + OVER, {"global race"}),
        (COPIES + LATE + WAIT.format(0, 0) + "fence.proxy.async;" + PUT, set()),
        (COPIES + LATE + "fence.proxy.async;" + WAIT.format(0, 0) + PUT, {"missing proxy fence"}),
    ],
)
def test_an_arrival_after_copies_tells_of_them_alone(body, expected):
    second = ".shared .align 8 .b64 m2; @%p0 mbarrier.init.shared::cta.b64 [m2], 64; bar.sync 0;"
    found, c, result = run(second + body)
    assert set(found) == expected, result.findings


@pytest.mark.parametrize("noinc", [True, False])
def test_the_copies_of_a_thread_that_has_ended_arrive(noinc):
    """32 threads copy and end. Without .noinc the phase is not over before their copies, though all others arrive."""
    arrive = LATE if noinc else LATE.replace(".noinc", "")
    body = f"""setp.ge.u32 %p3, %r0, 32; @%p3 bra WAITS; {COPIES} {arrive} ret;
        WAITS: mov.u32 %r7, 0; AGAIN: add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 20000; @%p4 bra AGAIN;
        mbarrier.arrive.shared::cta.b64 _, [m]; {WAIT.format(0, 0)} {OTHERS}"""
    found, c, result = run(body, 64 if noinc else 32)
    assert not found and c[32:].tolist() == list(range(100, 132)), result.findings


@pytest.mark.parametrize(("wait", "fine"), [(True, True), (False, False)])
def test_warps_that_have_read_at_different_times(wait, fine):
    """Each says at the mbarrier that it has, the second one after more fences than the first."""
    body = """@%p0 st.shared.u32 [s], 7; bar.sync 0; setp.lt.u32 %p3, %r0, 32; @%p3 bra READ;
        fence.acq_rel.cta; fence.acq_rel.cta; fence.acq_rel.cta; fence.acq_rel.cta;
        READ: ld.shared.u32 %r5, [s]; mbarrier.arrive.shared::cta.b64 _, [m];"""
    found, _, result = run(body + WAIT.format(0, 0) * wait + "@%p0 st.shared.u32 [s], 8;")
    assert set(found) == (set() if fine else {"shared race"}), result.findings


@pytest.mark.parametrize(("more", "expected"), [("", []), ("ld.shared.u32 %r6, [s];", ["shared race"])])
def test_readers_at_the_same_time(more, expected):
    """Warps 1 and 2 read, meet, and say so at the mbarrier. Warp 3 says nothing, which matters only if it has read."""
    body = f"""@%p0 st.shared.u32 [s], 7; bar.sync 0; setp.ge.u32 %p3, %r0, 96; @%p3 bra SILENT;
        setp.ge.u32 %p3, %r0, 32; @%p3 bra READS; {WAIT.format(0, 0)} @%p0 st.shared.u32 [s], 8; bra OUT;
        READS: ld.shared.u32 %r5, [s]; bar.sync 1, 64;
        setp.eq.u32 %p3, %r0, 32; @%p3 mbarrier.arrive.shared::cta.b64 _, [m]; bra OUT;
        SILENT: {more} OUT:"""
    c = np.zeros(128, np.uint32)
    result = launch(FIRST.replace("{count}", "1") + body + LAST, c, c.copy(), block=(128,))
    assert kinds(result) == expected, result.findings
    assert c[32:96].tolist() == [7] * 64


def test_phases_and_parity():
    """A fresh mbarrier lets a wait for parity 1 pass; each phase is for one parity."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [m];"
    body = WAIT.format(9, 1)
    for phase in range(5):
        write = f"add.u32 %r6, %r0, {phase}; st.shared.u32 [%r2], %r6;"
        body += write + arrive + WAIT.format(phase, phase % 2) + "ld.shared.u32 %r5, [%r3]; bar.sync 0;"
    found, c, result = run(body)
    assert found == [], result.findings
    assert c.tolist() == [(n ^ 32) + 4 for n in range(64)]


def test_the_state_of_an_arrival_names_its_phase():
    """And test_wait only looks."""
    body = """
        mbarrier.arrive.shared::cta.b64 %rd5, [m]; mbarrier.test_wait.shared::cta.b64 %p2, [m], %rd5;
        L: mbarrier.try_wait.shared::cta.b64 %p1, [m], %rd5; @!%p1 bra L;
        selp.u32 %r5, 1, 0, %p2;"""
    found, c, result = run(body)
    assert found == [] and set(c[:32]) | set(c[32:]) == {0, 1}, result.findings
    assert len(set(c[:32])) == len(set(c[32:])) == 1, "the warp that arrives last completes the phase"


def test_arrivals_that_drop_are_not_waited_for_again():
    body = """
        setp.lt.u32 %p3, %r0, 32; @%p3 bra STAY; mbarrier.arrive_drop.shared::cta.b64 _, [m]; bra OUT;
        STAY: mbarrier.arrive.shared::cta.b64 _, [m];""" + WAIT.format(0, 0) + """
        mbarrier.arrive.shared::cta.b64 _, [m];""" + WAIT.format(1, 1) + "mov.u32 %r5, 1; OUT:"  # fmt: skip
    found, c, result = run(body)
    assert found == [] and c.tolist() == [1] * 32 + [0] * 32, result.findings


@pytest.mark.parametrize(
    "drop",
    [
        "arrive_drop.shared::cta.b64 _, [m], 2;",
        "arrive_drop.noComplete.shared::cta.b64 %rd5, [m], 2;",
        "arrive_drop.expect_tx.shared::cta.b64 _, [m], 256; @%p0 mbarrier.arrive_drop.shared::cta.b64 _, [m]; @%p0 "
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 256, [m];",
    ],
)
def test_an_arrival_drops_as_many_as_it_counts(drop):
    """Thread 0 brings two arrivals of 65; from then on the other 63 are all."""
    others = "@!%p0 mbarrier.arrive.shared::cta.b64 _, [m];"
    once = "@%p0 mbarrier." + drop + others + WAIT.format(0, 0)
    found, c, result = run(once + others + WAIT.format(1, 1) + "mov.u32 %r5, 1;", count=65)
    assert set(found) <= {"mbarrier without a fence"} and c.tolist() == [1] * 64, result.findings


def test_a_wait_is_not_called_a_write():
    """Thread 0 makes an mbarrier anew, for which others may still wait."""
    again = "@%p0 mbarrier.init.shared::cta.b64 [m], 64; bar.sync 0;"
    _, _, result = run("mbarrier.arrive.shared::cta.b64 _, [m];" + WAIT.format(0, 0) + again)
    says = {finding.message for finding in result.findings if finding.kind == "shared race"}
    assert says and all("waited for" in each for each in says), result.findings


def test_an_arrival_at_another_blocks_mbarrier():
    """Every thread of both blocks arrives at that of block 0, which waits for them all."""
    sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = (
        sync
        + """mapa.shared::cluster.u32 %r8, m, 0; mov.u32 %r9, %cluster_ctarank; mapa.shared::cluster.u32 %r10, %r2, 0;
        setp.eq.u32 %p3, %r9, 0; @%p3 bra HERE; st.shared::cluster.u32 [%r10], 7;
        HERE: mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8]; @!%p3 bra OUT;"""
        + WAIT.format(0, 0).replace("parity.shared", "parity.acquire.cluster.shared")
        + "ld.shared.u32 %r5, [%r3]; mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], %r5; OUT:"
        + sync
        + "exit;"
    )
    found, c, result = run(body, count=128, grid=(2,), cluster=(2,))
    assert found == [] and c.tolist() == [7] * 64, result.findings


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("mbarrier.arrive.shared::cta.b64 _, [%r8];", "needs .shared::cluster"),
        ("mbarrier.arrive.shared.b64 _, [%r8];", "needs .shared::cluster"),
        ("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [%r8], 0;", "needs .shared::cluster"),
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];", None),
        ("mbarrier.arrive.b64 _, [%rd8];", None),
        ("mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r8], 1;", "only its own threads can wait"),
        ("mbarrier.try_wait.parity.b64 %p1, [%rd8], 1;", "only its own threads can wait"),
        ("mbarrier.inval.shared::cta.b64 [%r8];", "only its own threads can wait"),
        ("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r8];", "only its own threads can wait"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_another_blocks_mbarrier_by_an_instruction_for_ones_own(use, says, rank):
    """Of both blocks the first thread uses the mbarrier of block `rank`: for one of them it is its own."""
    sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = f"""{sync} mapa.shared::cluster.u32 %r8, m, {rank}; cvt.u64.u32 %rd8, %r8; cvta.shared.u64 %rd8, %rd8;
        mov.u32 %r9, %cluster_ctarank; setp.eq.u32 %p3, %r9, {rank}; @!%p0 bra OUT;
        @%p3 bra OUT; {use} OUT: {sync}"""
    found, _, result = run(body, grid=(2,), cluster=(2,))
    assert found == ["mbarrier"] * (says is not None), result.findings
    if says:
        (finding,) = result.findings
        assert says in finding.message and f"the block of rank {rank} in the cluster" in finding.message
        assert finding.place.text + ";" == use and finding.block == (1 - rank, 0, 0)
    assert not run(body.replace("@%p3 bra", "@!%p3 bra"), grid=(2,), cluster=(2,))[0], "one's own"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("mbarrier.inval.shared::cta.b64 [s];", "none was initialised"),
        ("mbarrier.arrive.shared::cta.b64 _, [m], 65;", "more arrivals"),
        ("@%p0 mbarrier.init.shared::cta.b64 [m], 0;", "1 to 1,048,575 arrivals, got 0"),
        (
            "@%p0 mbarrier.inval.shared::cta.b64 [m]; bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [m];",
            "no longer valid",
        ),
    ],
)
def test_misuse(body, says):
    found, _, result = run("st.shared.u32 [%r2], 0; bar.sync 0;" + body)
    assert "mbarrier" in found and any(says in finding.message for finding in result.findings), result.findings


def test_a_phase_that_never_ends():
    found, _, result = run("@!%p0 mbarrier.arrive.shared::cta.b64 _, [m];" + WAIT.format(0, 0))
    assert found == ["deadlock"] and result.code == 702
    assert "byte 256 of shared memory (m + 0)" in result.findings[0].message
    assert "arrivals missing: 1 of the 64 for which thread (0, 0, 0) initialised it" in result.findings[0].message
    assert "mbarrier.init" in result.findings[0].other_place.text


@pytest.mark.parametrize(("count", "fine"), [(64, True), (32, True), (16, False), (1, False)])
def test_lanes_that_arrive_at_once_must_all_be_expected(count, fine):
    """A warp may end one phase, and the next warp another; but not one instruction of a warp more than one. (An H200
    ends such a launch, and compute-sanitizer calls it a barrier overflow.)"""
    found, _, result = run("mbarrier.arrive.shared::cta.b64 _, [m];", count=count)
    assert found == ([] if fine else ["mbarrier"]) and bool(result.code) != fine, result.findings
    if not fine:
        (finding,) = result.findings
        assert "they are more than the phase lacks" in finding.message
        assert finding.place.text.startswith("mbarrier.arrive") and finding.thread[0] % 32 == count


TOLD = "before the deadlock"  # what may have led to it


def test_a_phase_too_many_is_told_in_a_deadlock():
    """Two threads arrive where one is expected: two phases end, and who waits for the first one waits for the third."""
    arrive = "setp.eq.u32 %p3, %r1, 0; @%p3 mbarrier.arrive.shared::cta.b64 _, [m]; bar.sync 0;"
    found, _, result = run(arrive + WAIT.format(0, 0), count=1)
    assert set(found) == {"deadlock"} and result.code == 702
    (told,) = [finding for finding in result.findings if TOLD in finding.message]
    assert "this arrival ended a phase" in told.message and "(1 phase in all)" in told.message
    assert "mbarrier.arrive" in told.place.text and told.thread[0] % 32 == 0
    assert told.other_place is not None and "mbarrier.init" in told.other_place.text
    # As many arrivals as are expected, or a wait between the phases: the deadlock has another cause.
    never = "@%p0 mbarrier.init.shared::cta.b64 [s], 2; bar.sync 0;" + WAIT.format(9, 0).replace("[m]", "[s]")
    for body, count in ((arrive, 2), (arrive + WAIT.format(0, 0) + arrive + WAIT.format(1, 1), 2)):
        found, _, result = run(body + never, count=count)
        assert found == ["deadlock"] and TOLD not in result.findings[0].message, result.findings


def test_a_wait_that_did_not_wait_is_told_in_a_deadlock():
    """The parity does not flip: from the second phase on, a wait passes at once. So it does without a deadlock, which
    is no finding: a thread may look twice."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [m]; bar.sync 0;"
    waits = "".join(WAIT.format(n, 0) + "bar.sync 0;" for n in range(3))
    assert run(arrive + waits)[0] == []
    never = "@%p0 mbarrier.init.shared::cta.b64 [s], 2; bar.sync 0;" + WAIT.format(9, 0).replace("[m]", "[s]")
    found, _, result = run(arrive + waits + never)
    told = [finding for finding in result.findings if TOLD in finding.message]
    assert set(found) == {"deadlock"} and len(told) == 2, "at two of the three waits"
    assert all("passed here without waiting (1 time)" in each.message for each in told)
    assert all("try_wait" in each.place.text and each.thread[0] % 32 == 0 for each in told)
    found, _, result = run(arrive + WAIT.format(0, 0) + arrive + WAIT.format(1, 1) + never)
    assert found == ["deadlock"] and TOLD not in result.findings[0].message, "each wait was for a phase of its own"


def test_a_use_before_its_initialisation_is_seen():
    body = "mbarrier.arrive.shared::cta.b64 _, [m];"
    found, _, result = run(body.replace("[m]", "[s]"), count=64)
    assert "mbarrier" in found
    first = "setp.eq.u32 %p3, %r0, 32; @%p3 mbarrier.init.shared::cta.b64 [s], 64; {} setp.lt.u32 %p2, %r0, 32; @%p2 "
    assert run(first.format("bar.sync 0;") + body.replace("[m]", "[s]"))[0] == []
    assert "shared race" in run(first.format("bar.warp.sync -1;") + body.replace("[m]", "[s]"))[0]


def test_a_use_that_nothing_orders_after_the_initialisation():
    """Also where the thread that made it has used it since, and its own use is what lies in memory."""
    make = ".shared .align 8 .b64 m2; setp.eq.u32 %p3, %r0, 32; @%p3 mbarrier.init.shared::cta.b64 [m2], 1;"
    use = "@%p3 mbarrier.arrive.shared::cta.b64 _, [m2];" + WAIT.format(0, 0).replace("[m]", "[m2]")
    assert run(make + "bar.sync 0;" + use)[0] == []
    found, _, result = run(make + "bar.warp.sync -1;" + use)
    assert found == ["mbarrier"] and "may come first, and find no mbarrier" in result.findings[0].message
    finding = result.findings[0]
    assert finding.thread[0] < 32 and "try_wait" in finding.place.text
    assert finding.other_place is not None and "mbarrier.init" in finding.other_place.text


# ---- bulk copies ----


def test_a_bulk_copy():
    body = "@%p0 " + EXPECT.format(256) + "@%p0 " + COPY.format(256) + WAIT.format(0, 0) + "ld.shared.u32 %r5, [%r3];"
    found, c, result = run(body, count=1)
    assert found == [], result.findings
    assert c.tolist() == [100 + (n ^ 32) for n in range(64)]
    (copies,) = result.counters[result.counters["bytes"] == 256][:1]
    assert copies["requests"] == 1 and copies["sectors"] in (8, 9)


def test_a_copy_that_is_issued_long_after_others_began_to_wait():
    """By the second warp, which then waits at a barrier for the first: only the copy lets that go on."""
    late = "mov.u32 %r7, 0; LATE: add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 20000; @%p3 bra LATE;"
    body = (
        "setp.ge.u32 %p2, %r0, 32; @%p2 bra COPIES;" + "@%p0 " + EXPECT.format(256) + WAIT.format(0, 0) + "bra MEET;"
        + "COPIES:" + late + "setp.eq.u32 %p0, %r0, 32; @%p0 " + COPY.format(256)
        + "MEET: bar.sync 0; ld.shared.u32 %r5, [%r3];"
    )  # fmt: skip
    found, c, result = run(body, count=1)
    assert found == [], result.findings
    assert c.tolist() == [100 + (n ^ 32) for n in range(64)]


def test_others_may_know_it_from_one_that_waited():
    """One warp waits, the second, which comes first; the block's barrier tells the other."""
    body = (
        "setp.lt.u32 %p2, %r0, 32; @%p2 bra SKIP; setp.eq.u32 %p0, %r0, 32;"
        + "@%p0 " + EXPECT.format(256) + "@%p0 " + COPY.format(256)
        + WAIT.format(0, 0) + "SKIP: {} ld.shared.u32 %r5, [%r2];"
    )  # fmt: skip
    assert run(body.format("bar.sync 0;"), count=1)[0] == []
    found, _, result = run(body.format(""), count=1)
    assert set(found) == {"copy in flight"}, result.findings
    assert {finding.thread[0] // 32 for finding in result.findings} == {0}
    assert "bulk copy of thread (32, 0, 0)" in result.findings[0].message


def test_a_copy_over_what_others_still_read():
    copy = "@%p0 " + EXPECT.format(256) + "@%p0 " + COPY.format(256)
    body = "setp.ge.u32 %p2, %r0, 32; @%p2 exit;" + copy + WAIT.format(0, 0) + "ld.shared.u32 %r5, [%r2]; {}"
    body += copy + WAIT.format(1, 1)
    assert run(body.format("bar.warp.sync -1;"), count=1)[0] == []
    found, _, result = run(body.format(""), count=1)
    assert found == ["shared race"] and result.findings[0].other_thread != result.findings[0].thread


def test_a_wait_for_another_mbarrier_is_none():
    body = (
        ".shared .align 8 .b64 other; @%p0 mbarrier.init.shared::cta.b64 [other], 1; bar.sync 0;"
        + "@%p0 mbarrier.arrive.shared::cta.b64 _, [other]; @%p0 " + EXPECT.format(256) + "@%p0 " + COPY.format(256)
        + WAIT.format(0, 0).replace("[m]", "[other]") + "ld.shared.u32 %r5, [%r2];"
    )  # fmt: skip
    assert set(run(body, count=1)[0]) == {"copy in flight"}


@pytest.mark.parametrize(("expected", "says"), [(512, "256 bytes are expected"), (128, "brought 128 bytes")])
def test_bytes_that_do_not_come_out_even(expected, says):
    found, _, result = run("@%p0 " + EXPECT.format(expected) + "@%p0 " + COPY.format(256) + WAIT.format(0, 0), count=1)
    assert set(found) == {"deadlock"} and says in result.findings[0].message


def test_the_copy_that_came_last_is_told_in_a_deadlock():
    """In that phase: one that ended before it tells nothing."""
    expect, copy = "@%p0 " + EXPECT, "@%p0 " + COPY.format(256)
    found, _, result = run(expect.format(512) + copy + WAIT.format(0, 0), count=1)
    (told,) = [finding for finding in result.findings if TOLD in finding.message]
    assert "copies have brought 256 of the bytes that this phase expects" in told.message
    assert "cp.async.bulk" in told.place.text and told.thread == (0, 0, 0)
    body = expect.format(256) + copy + WAIT.format(0, 0) + expect.format(512) + WAIT.format(1, 1)
    found, _, result = run(body, count=1)
    assert found == ["deadlock"] and "512 bytes are expected" in result.findings[0].message


@pytest.mark.parametrize(
    ("size", "address", "kind"),
    [(100, "[%rd1]", "misaligned"), (32, "[%rd1+4]", "misaligned"), (512, "[%rd1]", "out of bounds global")],
)
def test_what_a_bulk_copy_must_be(size, address, kind):
    body = "@%p0 " + EXPECT.format(size) + "@%p0 " + COPY.format(size).replace("[%rd1]", address) + WAIT.format(0, 0)
    found, _, result = run(body, count=1)
    assert found == [kind] and result.code, result.findings


@pytest.mark.parametrize("before", ["", "setp.eq.u32 %p0, %r0, 0; @%p0 cp.async.bulk.commit_group;"])
@pytest.mark.parametrize(("tile", "fine"), [("s", True), ("%r2", False)])
def test_all_lanes_of_a_warp_store_a_tile(tile, fine, before):
    """The same one to the same place: as if one did, even if one of them counts more groups. Of different tiles, one is
    lost."""
    body = f""".shared .align 16 .b8 t[512]; mov.u32 %r4, t; mad.lo.u32 %r2, %r1, 16, %r4; mov.u32 %r5, 0;
        st.shared.v4.u32 [%r2], {{%r0, %r0, %r0, %r0}}; fence.proxy.async; bar.sync 0; {before}
        cp.async.bulk.global.shared::cta.bulk_group [%rd0], [{tile.replace("s", "t")}], 16;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
    result = launch(body, np.zeros(4, np.uint32), block=(32,))
    assert set(kinds(result)) == (set() if fine else {"copy in flight"}), result.findings


@pytest.mark.parametrize(
    ("parity", "said"),
    [
        (1, "last wait was for the mbarrier at byte 264 of shared memory (e + 0), and passed at once"),
        (0, "this thread has not waited for its mbarrier"),  # it did wait for the other one
    ],
)
def test_a_wait_elsewhere_that_passed_at_once_is_told(parity, said):
    """As that of a producer for an empty place in a ring, with the wrong parity."""
    wait = WAIT.format(0, parity).replace("[m]", "[e]")
    body = f""".shared .align 8 .b64 e; @%p0 mbarrier.init.shared::cta.b64 [e], 64; fence.mbarrier_init.release.cluster;
        fence.proxy.async; bar.sync 0; mbarrier.arrive.shared::cta.b64 _, [m]; @!%p0 bra REST;
        mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [m], 256; {COPY.format(256)}
        REST: {"mbarrier.arrive.shared::cta.b64 _, [e];" * (1 - parity)} {wait} @!%p0 bra OUT;
        ld.shared.u32 %r7, [%r3]; OUT: {WAIT.format(1, 0)}"""
    found, _, result = run(body, count=64)
    assert found == ["copy in flight"], result.findings
    assert said in result.findings[0].message
