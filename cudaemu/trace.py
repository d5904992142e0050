"""What a row of a trace says: the memory that an instruction accessed, and how."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Space(IntEnum):
    """Where: `space` of a row, as Space of vm.h."""

    GLOBAL = 0
    SHARED = 1
    LOCAL = 2


class Access(IntEnum):
    """How: `kind` of a row, as TraceKind of vm.h. WMMA both loads and stores; its instruction says which."""

    LOAD = 0
    STORE = 1
    ATOMIC = 2
    CP_ASYNC = 3
    LDMATRIX = 4
    WMMA = 5


# A row per thread and access; `addr` is an offset in shared memory, and an address elsewhere.
TRACE = np.dtype({
    "names": ["launch", "space", "kind", "block", "thread", "seq", "pc", "size", "addr"],
    "formats": ["u2", "u1", "u1", "u4", "u4", "u4", "u4", "u4", "u8"],
})  # fmt: skip
