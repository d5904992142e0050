"""Small PTX kernels run on the engine directly, for the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cudaemu import engine
from cudaemu.kernel import Configuration, Region

REGISTERS = """
    .reg .pred %p<8>;
    .reg .b16 %h<16>;
    .reg .b32 %r<64>;
    .reg .f32 %f<32>;
    .reg .b64 %rd<32>;
"""


def module(body: str, arrays: int, outside: str = "", tiles: bool = False) -> engine.Module:
    """A kernel `k` of `arrays` pointers. Before the body runs, %rd0, %rd1, ... are the pointers, %r0 is the thread's
    number and %r1 its lane."""
    params = ", ".join(f".param .u64 p{n}" for n in range(arrays))
    loads = "".join(f"ld.param.u64 %rd{n}, [p{n}];\n" for n in range(arrays))
    return engine.Module(
        f""".version 8.3
        .target sm_90
        .address_size 64
        {outside}
        .visible .entry k({params})
        {{
            {REGISTERS}
            {loads}
            mov.u32 %r0, %tid.x;
            mov.u32 %r1, %laneid;
            {body}
            ret;
        }}""",
        tiles=tiles,
    )


def launch_kernel(
    module: engine.Module, kernel: str, grid=(1,), block=(32,), shared=0, params=b"", memory=(), **options
) -> engine.LaunchResult:
    """Launch it; `options` are those of the engine: of a configuration, of settings, of the launch alone."""

    def of(names: Iterable[str]) -> dict:
        return {name: options.pop(name) for name in [*options] if name in names}

    sizes = [(*size, 1, 1)[:3] for size in (grid, block)]
    configuration = Configuration(kernel, *sizes, shared, params, **of(Configuration.__dataclass_fields__))
    return module.launch(configuration, memory, engine.Settings(**of(engine.Settings.__dataclass_fields__)), **options)


def launch(
    body: str, *arrays: np.ndarray, grid=(1,), block=(32,), shared=0, outside="", unwritten=(), tiles=False, **options
) -> engine.LaunchResult:
    """Run it; the arrays change in place. `unwritten`: numbers of the arrays that count as not yet written; `tiles`:
    that of engine.Module."""
    built = module(body, len(arrays), outside, tiles)
    memory = [
        Region(
            array.ctypes.data, array.nbytes, f"array {n}", np.zeros(array.nbytes, np.uint8) if n in unwritten else None
        )
        for n, array in enumerate(arrays)
    ]
    params = np.array([array.ctypes.data for array in arrays], np.uint64).tobytes()
    result = launch_kernel(built, "k", grid, block, shared, params, memory, **options)
    # The arrays are what is read afterwards.
    left = {number for each in memory for number in built.undefined.stores(each.base, each.size)}
    result.findings += [store for number, store in result.stores.items() if number in left]
    result.places = built.kernel("k").instructions
    return result


def executed(result: engine.LaunchResult, text: str, what: str = "warps") -> int:
    """A counter of the one instruction whose text begins like this."""
    (pc,) = [place.pc for place in result.places if place.text.startswith(text)]
    return int(result.counters[what][pc])


def kinds(result: engine.LaunchResult) -> list[str]:
    return [finding.kind for finding in result.findings]
