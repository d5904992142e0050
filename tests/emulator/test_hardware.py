"""The record of what a GPU and NVIDIA's tools say (hardware.json), and the emulator beside it."""

from __future__ import annotations

from tests.emulator import hardware

# As compute-sanitizer writes: see NVIDIA's documentation of it, and hardware.json.
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 2 bytes
=========     at gemm_kernel(const __half *, int)+0x160 in /tmp/broken_01.cu:58
=========     by thread (13,0,0) in block (1,0,0)
=========     Access at 0x7fb6c0a00001 is out of bounds
=========     Host Frame: main in broken_01.cu:31 [0x1234] in broken_01
=========
========= Program hit cudaErrorLaunchFailure (error 719) on CUDA API call to cudaDeviceSynchronize.
=========     Host Frame: [0x1234] in broken_01
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
cudaSuccess
========= Error: Race reported between Write access at sum(int *)+0xb0 in /tmp/f.cu:38
=========     and Read access at sum(int *)+0xd0 in /tmp/f.cu:42 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_a_tool_is_understood():
    assert hardware.understood(MEMCHECK) == {
        "errors": 2,
        "kinds": [
            "Invalid __global__ read of size 2 bytes",
            "Program hit cudaErrorLaunchFailure (error 719) on CUDA API call to cudaDeviceSynchronize.",
        ],
        "lines": [58],
    }
    assert hardware.understood(RACECHECK) == {
        "errors": 1,
        "kinds": ["Error: Race reported between Write access"],
        "lines": [38, 42],
    }
    assert hardware.understood("========= COMPUTE-SANITIZER\n")["errors"] is None
    assert hardware.understood("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n")["kinds"] == []
