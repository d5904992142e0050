"""The rows of a trace: the memory that an instruction accessed, and how; and the kinds of events."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Space(IntEnum):
    """Where: `space` of a row, as Space of vm.h."""

    GLOBAL = 0
    SHARED = 1
    LOCAL = 2
    CLUSTER = 4  # shared memory of another block of the cluster


class Access(IntEnum):
    """How: `kind` of a row, as TraceKind of vm.h. WMMA both loads and stores; its instruction says which.

    A bulk copy has a row for each piece of global memory that it touches, and one for each tile in shared memory. Of a
    wait for an mbarrier there is a row when it passes. The rows of a block are in the order of their execution."""

    LOAD = 0
    STORE = 1
    ATOMIC = 2
    CP_ASYNC = 3
    LDMATRIX = 4
    WMMA = 5
    BULK_LOAD = 6
    BULK_STORE = 7
    MBARRIER_ARRIVE = 8
    MBARRIER_WAIT = 9
    WGMMA = 10
    STMATRIX = 11


# A row per thread and access; `addr` is an offset in shared memory (of another block: its rank in the cluster + 1 from
# bit 24 on), and an address elsewhere.
TRACE = np.dtype({
    "names": ["launch", "space", "kind", "block", "thread", "seq", "pc", "size", "addr"],
    "formats": ["u2", "u1", "u1", "u4", "u4", "u4", "u4", "u4", "u8"],
})  # fmt: skip


class EventKind(IntEnum):
    """What orders warps, and what runs in the background: `kind` of an event, as EventKind of vm.h, which has more."""

    BARRIER_ARRIVE = 0
    BARRIER_PASS = 1
    CLUSTER_ARRIVE = 2
    CLUSTER_WAIT = 3
    CLUSTER_PASS = 4
    MBARRIER_INIT = 5
    MBARRIER_ARRIVE = 6
    MBARRIER_EXPECT = 7
    MBARRIER_END = 8
    MBARRIER_WAIT = 9
    MBARRIER_PASS = 10
    COPY = 11
    LANDED = 12
    BULK_STORE = 13
    BULK_DONE = 14
    CP_ASYNC = 15
    CP_ASYNC_DONE = 16
    WGMMA = 17
    WGMMA_WAIT = 18
    WGMMA_PASS = 19
    STORE = 20
    EXIT = 21


# `step`: how many instructions the warp had executed, this one included.
EVENT = np.dtype({
    "names": ["step", "launch", "block", "warp", "pc", "kind", "there", "at", "number"],
    "formats": ["u8", "u4", "u4", "u4", "u4", "u4", "u4", "u4", "u4"],
})  # fmt: skip
