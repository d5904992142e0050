"""What an emulated instruction costs: `python -m cudaemu.costs`.

Loops of one instruction of a warp, repeated, on one core; with counters and the sanitizer, and without. Nanoseconds for
each execution by a warp, the loop itself taken off.
"""

from __future__ import annotations

import time

import numpy as np

from cudaemu import engine
from cudaemu.kernel import Configuration, Region

REPEATED = 16  # in the body of the loop
TURNS = 20_000

# What is measured. %r1 is the lane, %rd1 an address of global memory for each lane, %r3 one of shared memory.
INSTRUCTIONS = {
    "add.u32": "add.u32 %r10, %r10, %r1;",
    "fma.rn.f32": "fma.rn.f32 %f1, %f1, %f2, %f3;",
    "fma.rn.f16x2": "fma.rn.f16x2 %r10, %r10, %r11, %r12;",
    "ex2.approx.ftz.f32": "ex2.approx.ftz.f32 %f1, %f2;",
    "cvt.rn.f16x2.f32": "cvt.rn.f16x2.f32 %r10, %f1, %f2;",
    "setp.lt.s32": "setp.lt.s32 %p1, %r10, %r1;",
    "shfl.sync.bfly": "shfl.sync.bfly.b32 %r10, %r11, 1, 31, -1;",
    "redux.sync.add": "redux.sync.add.u32 %r10, %r11, -1;",
    "ld.global, a row": "ld.global.u32 %r10, [%rd1];",
    "ld.global.v4, a row": "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd3];",
    "ld.global, one word": "ld.global.u32 %r10, [%rd0];",
    "ld.global, scattered": "ld.global.u32 %r10, [%rd2];",
    "st.global, a row": "st.global.u32 [%rd1], %r1;",
    "red.global, one word": "red.global.add.u32 [%rd0], 1;",
    "ld.shared, a row": "ld.shared.u32 %r10, [%r3];",
    "ld.shared.v4, a row": "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5];",
    "ld.shared, one word": "ld.shared.u32 %r10, [s];",
    "st.shared, a row": "st.shared.u32 [%r3], %r1;",
    "ldmatrix.x4": "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r5];",
    "mma.m16n8k16 fp16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    " {%f4, %f5, %f6, %f7}, {%r10, %r11, %r12, %r13},"
    "{%r14, %r15}, {%f4, %f5, %f6, %f7};",
    "cp.async.cg": "cp.async.cg.shared.global [%r6], [%rd3], 16; cp.async.wait_all;",
    "bar.sync": "bar.sync 0;",
}
KERNEL = """.version 8.3
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{{
  .reg .pred %p<4>; .reg .b32 %r<20>; .reg .f32 %f<8>; .reg .b64 %rd<6>;
  .shared .align 16 .b8 s[4096];
  ld.param.u64 %rd0, [p]; mov.u32 %r1, %laneid;
  mad.wide.u32 %rd1, %r1, 4, %rd0; mad.wide.u32 %rd2, %r1, 256, %rd0; mad.wide.u32 %rd3, %r1, 16, %rd0;
  mov.u32 %r4, s; mad.lo.u32 %r3, %r1, 4, %r4; mad.lo.u32 %r5, %r1, 16, %r4; add.u32 %r6, %r5, 2048;
  {fill}
  mov.u32 %r0, 0;
AGAIN:
  {body}
  add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, {turns}; @%p0 bra AGAIN;
  ret;
}}"""
FILL = "".join(f"mov.u32 %r{n}, %r1; " for n in range(10, 16)) + "".join(
    f"mov.f32 %f{n}, 0f3F000000; " for n in range(8)
)
FILL += (
    "st.shared.v4.u32 [%r5], {%r10, %r11, %r12, %r13}; st.shared.v4.u32 [%r6], {%r10, %r11, %r12, %r13}; bar.sync 0;"
)


def seconds(body: str, counters: bool, sanitize: bool) -> float:
    """The shortest of some runs of the loop, in processor time: the machine may have other work."""
    module = engine.Module(KERNEL.format(fill=FILL, body=body, turns=TURNS))
    data = np.zeros(32 * 64 + 4, np.uint32)
    data = data[-data.ctypes.data // 4 % 4 :]
    memory = [Region(data.ctypes.data, data.nbytes, "data")]
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        configuration = Configuration("k", (1, 1, 1), (32, 1, 1), params=data.ctypes.data.to_bytes(8, "little"))
        result = module.launch(configuration, memory, engine.Settings(counters, sanitize, threads=1))
        best = min(best, time.process_time() - start)
        assert not result.findings, result.findings
    return best


def main() -> None:
    modes = {
        "all": {"counters": True, "sanitize": True},
        "no sanitizer": {"counters": True, "sanitize": False},
        "neither": {"counters": False, "sanitize": False},
    }
    print("ns per warp" + "".join(f"{name:>14}" for name in modes))
    empty = {name: seconds("", **options) for name, options in modes.items()}
    for name, instruction in INSTRUCTIONS.items():
        times = (seconds(instruction * REPEATED, **options) - empty[mode] for mode, options in modes.items())
        print(f"{name:<22}" + "".join(f"{time_ * 1e9 / (REPEATED * TURNS):>12.1f}  " for time_ in times))


if __name__ == "__main__":
    main()
