"""What a row of a trace says: the memory that an instruction accessed, and how."""

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
