"""Runs as they are recorded, for the tests."""

from __future__ import annotations


def row(
    name: str, tflops: float, size: int = 4096, role: str = "stage", dtype: str = "fp16", shape=None, **more
) -> dict:
    """A row of a bench run; a peer's has nothing of a kernel."""
    ms = 2 * size**3 / tflops / 1e9
    own = {} if role == "peer" else {"source": None}
    own |= {} if role == "peer" else {"label": f"{name} {dtype}", "variants": {}, "defaults": {}, "default": True}
    own |= {} if role == "peer" else {"limit": "mma.sync fp16"}
    case = {"part": "gemm", "problem": "gemm", "dtype": dtype, "settings": {}, "size": str(size)}
    times = {"median": ms, "p20": ms * 0.9, "p80": ms * 1.1, "n": 50}
    shape = shape or dict.fromkeys("MNK", size)
    return {
        "role": role,
        "name": name,
        "label": name,
        **case,
        "shape": shape,
        "ms": times,
        "tflops": tflops,
        **own,
        **more,
    }


def run(*rows: dict, date: str = "2026-11-21T10:00:00+00:00", kind: str = "bench", **more) -> dict:
    """A whole run."""
    head = {"schema": 2, "kind": kind, "command": "python -m kernels bench", "date": date, "commit": "abc"}
    software = {"dirty": False, "gpu": "NVIDIA H200", "driver": "580", "cuda": "13.0", "torch": "2.11.0"}
    return {**head, **software, "rows": list(rows), **more}
