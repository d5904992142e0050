"""Thread block clusters: ranks, their barrier, distributed shared memory; what is found there, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import cudaemu
from cudaemu.ptx import PtxError
from tests.cudaemu.machine import kinds, launch
from tests.cudaemu.sources import HARDWARE, source

# %r20: the block's rank; %r21: how many there are; %r3: its array; %r4: that of the next block; %r5: what is stored at
# the end, by each thread of each block in its place.
FIRST = """
    .shared .align 4 .b32 s[32]; .shared .align 4 .b32 flag[1];
    mov.u32 %r20, %cluster_ctarank; mov.u32 %r21, %cluster_nctarank; mov.u32 %r3, s;
    add.u32 %r22, %r20, 1; rem.u32 %r22, %r22, %r21; mapa.shared::cluster.u32 %r4, %r3, %r22;
    shl.b32 %r23, %r0, 2; add.u32 %r3, %r3, %r23; add.u32 %r4, %r4, %r23; mov.u32 %r5, 0;
"""
SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
LAST = """
    mov.u32 %r24, %ctaid.x; mov.u32 %r25, %ntid.x; mad.lo.u32 %r24, %r24, %r25, %r0;
    mad.wide.u32 %rd31, %r24, 4, %rd0; st.global.u32 [%rd31], %r5;
"""
STORE = "mad.lo.u32 %r6, %r20, 100, %r0; st.shared.u32 [%r3], %r6;"
LOAD = "ld.shared::cluster.u32 %r5, [%r4];"


def run(body: str, blocks: int = 4, cluster: int = 4, threads: int = 32, **options):
    c = np.zeros(blocks * threads, np.uint32)
    result = launch(FIRST + body + LAST, c, grid=(blocks,), block=(threads,), cluster=(cluster,), **options)
    return kinds(result), c.reshape(blocks, threads), result


def test_what_many_warps_added_is_known_after_the_barrier():
    """Each warp arrives at a time of its own; all of them have arrived."""
    body = (
        "mov.u32 %r6, flag; setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [%r6], 0; bar.sync 0;"
        "red.shared.add.u32 [%r6], 1;"
        + SYNC
        + "sub.u32 %r7, %r4, %r23; sub.u32 %r8, %r6, %r3; add.u32 %r8, %r8, %r23; add.u32 %r7, %r7, %r8;"
        "ld.shared::cluster.u32 %r5, [%r7];" + SYNC
    )
    found, c, result = run(body, threads=128)
    assert found == [] and (c == 128).all(), result.findings


# ---- what there is ----


@pytest.mark.parametrize(
    ("register", "values"),
    [
        ("%clusterid.x", [0, 0, 1, 1, 0, 0, 1, 1]),
        ("%clusterid.y", [0] * 4 + [0] * 4),
        ("%nclusterid.x", [2] * 8),
        ("%nclusterid.y", [1] * 8),
        ("%cluster_ctaid.x", [0, 1] * 4),
        ("%cluster_ctaid.y", [0] * 4 + [1] * 4),
        ("%cluster_nctaid.y", [2] * 8),
        ("%cluster_ctarank", [0, 1, 0, 1, 2, 3, 2, 3]),
        ("%cluster_nctarank", [4] * 8),
        ("%ctaid.x", [0, 1, 2, 3] * 2),
        ("%ctaid.y", [0] * 4 + [1] * 4),
    ],
)
def test_special_registers(register, values):
    """Of a grid of 4 x 2 blocks in clusters of 2 x 2."""
    c = np.zeros(8, np.uint32)
    body = f"""mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r2, %r3, 4, %r2;
        mad.wide.u32 %rd1, %r2, 4, %rd0; mov.u32 %r4, {register}; st.global.u32 [%rd1], %r4;"""
    launch(body, c, grid=(4, 2), block=(1,), cluster=(2, 2))
    assert c.tolist() == values


@pytest.mark.parametrize(("cluster", "explicit"), [(None, 0), ((1,), 1), ((2,), 1)])
def test_is_explicit_cluster(cluster, explicit):
    c = np.zeros(2, np.uint32)
    body = "mov.pred %p0, %is_explicit_cluster; selp.u32 %r2, 1, 0, %p0; st.global.u32 [%rd0], %r2;"
    launch(body, c, grid=(2,), block=(1,), cluster=cluster)
    assert c[0] == explicit


def test_a_block_reads_what_the_next_one_wrote():
    found, c, result = run(STORE + SYNC + LOAD + SYNC, blocks=8)
    assert found == [], result.findings
    assert [row[3] for row in c] == [103, 203, 303, 3] * 2


def test_generic_addresses_of_other_blocks():
    """cvta, mapa and getctarank on 64 bits; isspacep tells one's own shared memory from the cluster's."""
    body = (
        STORE
        + SYNC
        + """
        cvt.u64.u32 %rd1, %r3; cvta.shared.u64 %rd2, %rd1; mapa.u64 %rd3, %rd2, %r22; ld.u32 %r5, [%rd3];
        getctarank.u64 %r7, %rd3; mad.lo.u32 %r5, %r7, 1000, %r5;
        isspacep.shared %p0, %rd3; selp.u32 %r8, 10000, 0, %p0; add.u32 %r5, %r5, %r8;
        isspacep.shared::cluster %p1, %rd3; selp.u32 %r8, 100000, 0, %p1; add.u32 %r5, %r5, %r8;
        isspacep.shared %p2, %rd2; selp.u32 %r8, 1000000, 0, %p2; add.u32 %r5, %r5, %r8;"""
        + SYNC
    )
    found, c, result = run(body)
    assert found == [], result.findings
    assert [int(row[3]) for row in c] == [1_101_103, 1_102_203, 1_103_303, 1_100_003]


def test_lanes_of_one_instruction_may_mean_several_blocks():
    """Each lane reads from the block of its number modulo 4: its own as well, by an address that names it."""
    body = STORE + SYNC + "and.b32 %r7, %r0, 3; mapa.shared::cluster.u32 %r8, %r3, %r7;"
    found, c, result = run(body + "ld.shared::cluster.u32 %r5, [%r8];" + SYNC)
    assert found == [], result.findings
    assert c[0].tolist() == [100 * (lane % 4) + lane for lane in range(32)]
    (own,) = result.counters[result.counters["cluster_requests"] > 0]
    assert own["cluster_requests"] == 4 and own["cluster_bytes"] == 4 * 24 * 4, "eight lanes for each other block"
    assert own["requests"] == 4 and own["bytes"] == 4 * 8 * 4, "and the block's own memory counts as such"


def test_atomics_in_another_block():
    body = (
        "mov.u32 %r6, 0; st.shared.u32 [%r3], %r6;"
        + SYNC
        + "mapa.shared::cluster.u32 %r7, %r3, 0; red.shared::cluster.add.u32 [%r7], 2;"
        + SYNC
        + "ld.shared.u32 %r5, [%r3];"
    )
    found, c, result = run(body)
    assert found == [], result.findings
    assert (c[0] == 8).all() and (c[1:] == 0).all()


def test_a_flag_in_another_block():
    """Release in a neighbour's shared memory, acquire by its owner: what was written before is known."""
    body = (
        "st.shared.u32 [flag], 0;"
        + SYNC
        + """
        setp.ne.u32 %p0, %r20, 0; @%p0 bra WAIT;
        st.shared::cluster.u32 [%r4], %r0; bar.warp.sync -1;
        mapa.shared::cluster.u32 %r8, flag, 1; setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
        {order} st.{release}.cluster.shared::cluster.u32 [%r8], 1; bra END;
        WAIT: setp.ne.u32 %p2, %r20, 1; @%p2 bra END;
        LOOP: ld.acquire.cluster.shared::cta.u32 %r9, [flag]; setp.eq.u32 %p3, %r9, 0; @%p3 bra LOOP;
        ld.shared.u32 %r5, [%r3];
        END:"""
        + SYNC
    )
    for order, release, fine in (
        ("", "release", True),
        ("fence.acq_rel.cluster;", "relaxed", True),
        ("", "relaxed", False),
    ):
        found, c, result = run(body.format(order=order, release=release))
        assert set(found) == (set() if fine else {"shared race"}), result.findings
        assert c[1].tolist() == list(range(32))


def test_arrival_and_waiting_may_be_apart():
    """What is done between them, nobody may rely on."""
    arrive, wait = SYNC.split()[0], SYNC.split()[1]
    assert run(STORE + arrive + "add.u32 %r7, %r7, 1;" + wait + LOAD + SYNC)[0] == []
    found, _, result = run("st.shared.u32 [%r3], 0;" + arrive + STORE + wait + LOAD + SYNC)
    assert set(found) == {"shared race"} and result.findings[0].other_block, result.findings


def test_a_relaxed_arrival_hands_nothing_on():
    relaxed = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"
    found, c, result = run(STORE + relaxed + LOAD + SYNC)
    assert set(found) == {"shared race"} and c[0, 3] == 103, result.findings
    assert run(STORE + "fence.acq_rel.cluster;" + relaxed + LOAD + SYNC)[0] == []
    assert run(STORE + SYNC + LOAD + relaxed)[0] == [], "that a block stays, it does make sure of"


def test_the_barrier_orders_global_memory():
    body = "mad.wide.u32 %rd1, %r22, 4, %rd0; {} mov.u32 %r6, %r0; @!%p0 bra OUT; st.global.u32 [%rd1], %r6; OUT: {}"
    body = "setp.eq.u32 %p0, %r0, 0;" + body + "mad.wide.u32 %rd2, %r20, 4, %rd0; ld.global.u32 %r5, [%rd2]; {}"
    assert run(body.format("", SYNC, SYNC), threads=4, blocks=4)[0] == []
    assert "global race" in run(body.format("", "", SYNC), threads=4, blocks=4)[0]


# ---- what is found ----


def test_races_between_blocks_name_both():
    found, _, result = run("st.shared.u32 [%r3], 0;" + SYNC + STORE + LOAD + SYNC)
    assert set(found) == {"shared race"}
    for finding in result.findings:
        assert finding.other_block not in (None, finding.block) and finding.other_thread == finding.thread
        assert "with no barrier of the cluster between them" in finding.message


@pytest.mark.parametrize("first", ["own", "other"])
def test_a_read_is_remembered_beside_another(first):
    """Two blocks read a word, then a third one writes it: it races with both, whoever was remembered last."""
    own, other = "@%p0 ld.shared.u32 %r5, [s];", "@%p1 ld.shared::cluster.u32 %r5, [%r8];"
    reads = own + "nanosleep.u32 0;" + other if first == "own" else other + own
    body = (
        "setp.eq.u32 %p0, %r20, 0; setp.eq.u32 %p1, %r20, 1; setp.eq.u32 %p2, %r20, 2; st.shared.u32 [%r3], 0;"
        "mapa.shared::cluster.u32 %r8, s, 0;" + SYNC + reads + "@%p2 st.shared::cluster.u32 [%r8], 1;" + SYNC
    )
    _, _, result = run(body, threads=1)
    (finding,) = result.findings
    assert finding.kind == "shared race" and finding.block == (2, 0, 0)
    assert finding.other_block in ((0, 0, 0), (1, 0, 0))


def test_an_unwritten_word_of_another_block():
    found, c, result = run(SYNC + LOAD + SYNC)
    assert found == ["uninitialised shared read"] and (c == 0xFFFFFFFF).all()
    assert "of the block of rank" in result.findings[0].message


def test_beyond_the_other_blocks_memory():
    found, _, result = run(SYNC + "ld.shared::cluster.u32 %r5, [%r4+4096];" + SYNC)
    assert found == ["out of bounds shared"] and "of rank" in result.findings[0].message and result.code == 700
    found, _, result = run(SYNC + "mapa.shared::cluster.u32 %r8, %r3, 4; ld.shared::cluster.u32 %r5, [%r8];" + SYNC)
    assert found == ["out of bounds shared"] and "no block of that rank" in result.findings[0].message
    found, _, _ = run(SYNC + "ld.shared.u32 %r5, [%r4];" + SYNC)
    assert found == ["out of bounds shared"], "an address of the cluster in an access to the block's own memory"


def test_a_block_that_may_not_have_started():
    found, _, result = run("st.shared::cluster.u32 [%r4], 0;" + SYNC)
    assert found == ["block of the cluster not there"] and "has started" in result.findings[0].message
    assert result.code == 0


def test_a_block_that_has_ended():
    """The last one to arrive goes on first, and is gone when the one before it reads: the launch ends there."""
    _, _, result = run(STORE + SYNC + "setp.ne.u32 %p0, %r20, 2; @%p0 bra OUT;" + LOAD + "OUT:")
    (finding,) = result.findings
    assert "has ended" in finding.message and finding.other_block == (3, 0, 0) and result.code == 719


def test_an_arrival_at_a_block_that_has_ended():
    """No thread waits there any more: nothing else goes wrong, and the launch goes on."""
    body = ".shared .align 8 .b64 m; mapa.shared::cluster.u32 %r8, m, 3; setp.ne.u32 %p1, %r20, 3; mov.u32 %r5, 7;"
    body += "@!%p1 mbarrier.init.shared::cta.b64 [m], 1;" + SYNC + "setp.eq.u32 %p0, %r20, 2;"
    _, c, result = run(body + "@%p0 mbarrier.arrive.shared::cluster.b64 _, [%r8];", threads=1)
    (finding,) = result.findings
    assert "has ended" in finding.message and finding.other_block == (3, 0, 0) and result.code == 0
    assert (c == 7).all()


def test_a_block_that_might_have_ended():
    """It has not, here: the block that reads comes first. Nothing made sure of that."""
    body = STORE + SYNC + "setp.ne.u32 %p0, %r20, 0; @%p0 bra OUT;" + LOAD + "OUT:"
    _, _, result = run(body)
    (finding,) = result.findings
    assert "from ending before" in finding.message and finding.other_block == (1, 0, 0) and result.code == 0
    assert finding.place.text.startswith("ld.shared::cluster")
    assert run(body + SYNC)[0] == []


def test_a_barrier_to_which_some_do_not_come():
    """Threads that have ended are not waited for; those that wait elsewhere are."""
    gone = "setp.eq.u32 %p0, %r20, 1; @%p0 exit;" + SYNC
    assert run(gone)[0] == []
    wait = "st.volatile.shared.u32 [flag], 0; L: ld.volatile.shared.u32 %r9, [flag]; setp.eq.u32 %p1, %r9, 0;"
    wait += "@%p1 bra L;"
    stuck = "setp.eq.u32 %p0, %r20, 1; @%p0 bra OTHER;" + SYNC + "bra END; OTHER: {} END:"
    found, _, result = run(stuck.format(wait))
    assert {"barrier divergence", "deadlock"} <= set(found) and result.code, result.findings
    assert any(" 32 of the cluster" in finding.message for finding in result.findings)
    found, _, result = run(stuck.format("bar.sync 1, 64;"))
    assert found == ["barrier divergence"] and result.findings[0].block == (1, 0, 0)


def test_misuse_of_the_barrier():
    arrive, wait = SYNC.split()[0], SYNC.split()[1]
    for body, said in ((arrive + arrive + wait, "arrives here again"), (wait + SYNC, "without having arrived")):
        found, _, result = run(body)
        assert set(found) == {"barrier divergence"} and said in result.findings[0].message


def test_lanes_may_come_to_the_barrier_apart():
    """Not .aligned: half of the warp first."""
    body = """setp.lt.u32 %p0, %r0, 16; @%p0 bra FIRST; st.shared.u32 [%r3], 7;
        barrier.cluster.arrive; barrier.cluster.wait; bra OUT;
        FIRST: st.shared.u32 [%r3], 8; barrier.cluster.arrive; barrier.cluster.wait;
        OUT:"""
    found, c, result = run(body + LOAD + SYNC)
    assert found == [], result.findings
    assert c[2].tolist() == [8] * 16 + [7] * 16


@pytest.mark.parametrize("threads", [1, 2])
def test_many_clusters_on_several_cores(threads):
    """More than fit at a time, each beginning with clean memory."""
    found, c, result = run(STORE + SYNC + LOAD + SYNC, blocks=64, cluster=16, resident=32, threads=threads and 32)
    assert found == [], result.findings
    assert [int(n) for n in c[:16, 0]] == [100 * ((rank + 1) % 16) for rank in range(16)] and (c[16:32] == c[:16]).all()


def test_a_grid_must_be_a_multiple():
    with pytest.raises(PtxError, match=r"grid must .*\(4, 1, 1\).*\(6, 1, 1\)"):
        run("", blocks=6)


# ---- launches ----

PROGRAM = """
#include <cstdio>
__global__ void %s k(int *out) {
  unsigned rank, count;
  asm("mov.u32 %%0, %%%%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %%0, %%%%cluster_nctarank;" : "=r"(count));
  if (!threadIdx.x) out[blockIdx.x] = rank + 100 * count;
}
int main() {
  int *d, h[48] = {};
  cudaMalloc(&d, sizeof h);
  cudaMemset(d, 0, sizeof h);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {%d, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = 48, config.blockDim = 64;
  config.attrs = &attribute, config.numAttrs = %d;
  if (%d) cudaFuncSetAttribute(k, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  const cudaError_t error = cudaLaunchKernelEx(&config, k, d);
  cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
  int launch = 0, active = 0, most = 0;
  cudaDeviceGetAttribute(&launch, cudaDevAttrClusterLaunch, 0);
  cudaGetLastError();
  if (!error && launch) cudaOccupancyMaxActiveClusters(&active, k, &config);
  if (launch) cudaOccupancyMaxPotentialClusterSize(&most, k, &config);
  printf("%%s %%d %%d %%d %%d\\n", cudaGetErrorName(error), h[47], launch, active, most);
  cudaFree(d);
}
"""


@pytest.mark.core(every=4)
@pytest.mark.parametrize(
    ("own", "size", "asked", "large", "arch", "says"),
    [
        ("", 4, 1, 0, "9.0", "cudaSuccess 403 1 1056 8"),
        ("", 8, 1, 0, "9.0", "cudaSuccess 807 1 528 8"),
        ("", 16, 1, 0, "9.0", "cudaErrorInvalidClusterSize 0 1 0 8"),
        ("", 16, 1, 1, "9.0", "cudaSuccess 1615 1 264 16"),
        ("", 24, 1, 1, "9.0", "cudaErrorInvalidClusterSize 0 1 0 16"),
        ("", 5, 1, 0, "9.0", "cudaErrorInvalidClusterSize 0 1 0 8"),
        ("", 0, 1, 0, "9.0", "cudaSuccess 100 1 4224 8"),
        ("__cluster_dims__(2, 1, 1)", 0, 0, 0, "9.0", "cudaSuccess 201 1 2112 8"),
        ("__cluster_dims__(2, 1, 1)", 2, 1, 0, "9.0", "cudaSuccess 201 1 2112 8"),
        ("__cluster_dims__(2, 1, 1)", 4, 1, 0, "9.0", "cudaErrorInvalidClusterSize 0 1 0 0"),
        ("", 2, 1, 0, "8.0", "cudaErrorInvalidClusterSize 0 0 0 0"),
    ],
)
def test_what_a_launch_may_ask_for(own, size, asked, large, arch, says, capfd):
    if size == 0:
        size, asked = 1, 0
    text = PROGRAM % (own, size, asked, large)
    if arch == "8.0":
        text = text.replace("%cluster_ctarank", "%ctaid.x").replace("%cluster_nctarank", "%nctaid.x")
    name = f"cluster_launch_{len(own)}_{size}_{asked}_{large}_{arch}"  # others write theirs at the same time
    report = cudaemu.program(source(text, name), arch=arch)
    assert capfd.readouterr().out.strip() == says and not report.findings, report


# ---- what the hardware's runtime answers ----


def test_launches_in_clusters_are_answered_as_on_an_h200():
    """cluster_probe.txt is the hardware's word. How many clusters fit depends on its groups of multiprocessors, which
    are not modelled: that line alone differs."""
    probe = HARDWARE / "cluster_probe.cu"
    command = [sys.executable, "-m", "cudaemu", "--arch", "9.0", "-q", str(probe)]
    done = subprocess.run(command, cwd=probe.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs = probe.with_suffix(".txt").read_text().splitlines()
    differ = [(mine, other) for mine, other in zip(done.stdout.splitlines(), theirs, strict=True) if mine != other]
    assert [mine.split(":")[0] for mine, _ in differ] == ["max active 0"]
