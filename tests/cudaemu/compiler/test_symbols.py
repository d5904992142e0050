"""Names of functions and variables, as a person reads them."""

from __future__ import annotations

import pytest

from cudaemu.compiler.symbols import demangle, qualified, readable, short


@pytest.mark.parametrize(
    "symbol, name",
    [
        ("launch_gemm", "launch_gemm"),  # extern "C"
        ("_Z6kernelPf", "kernel"),
        ("_Z11gemm_kernelILi64ELb1EEvPf", "gemm_kernel<64, true>"),
        ("_Z4copyIfLi4EEvPT_PKS0_", "copy<float, 4>"),
        ("_ZN3gpu6kernelEPf", "kernel"),  # in a namespace
        ("_ZN12_GLOBAL__N_16kernelEPfi", "kernel"),  # in a nameless one
        ("_ZN3gpu5tilesI6__halfE4loadEPKS1_", "load"),  # of a class template
        ("_ZZ6kernelPfE4tile", "tile"),  # a static variable of a kernel
        ("_ZZ6kernelILi8EEvPfE4tile", "tile"),
        ("_ZZZ4mainENKUliE_clEiE4tile", "tile"),  # of a lambda
        ("_ZZ6kernelPfE4tile_$_1", "element 1 of tile"),  # all that is left of it
        ("_ZZ6kernelPfE4tile_$_1_$_0", "element 0 of element 1 of tile"),
        ("_ZN3gpu5stateE", "state"),
        ("_ZZ4mainENKUlvE_clEv", "operator"),
        ("_Zzz", "_Zzz"),  # mangled, but no name
    ],
)
def test_names_in_the_source(symbol, name):
    assert readable(symbol).startswith(name) if name == "operator" else readable(symbol) == name


def test_what_is_not_mangled_stays():
    assert demangle("tile") == "tile" and demangle("_Z6kernelPf") == "kernel(float*)"


def test_template_arguments_with_brackets_of_their_own():
    assert readable("_Z1fIXadL_Z1gvEEEvPf") == "f<&(g())>"


@pytest.mark.parametrize(
    "symbol, name",
    [
        ("launch_gemm", "launch_gemm"),
        ("_Z11gemm_kernelILi64ELb1EEvPf", "gemm_kernel"),
        ("_ZN3gpu6kernelEPf", "gpu::kernel"),
        ("_ZN3gpu4gemmILi64EEEvPf", "gpu::gemm"),
        ("_ZN12_GLOBAL__N_16kernelEPfi", "kernel"),
    ],
)
def test_names_with_their_namespaces(symbol, name):
    assert qualified(symbol) == name


@pytest.mark.parametrize(
    ("symbol", "name"), [("_ZN7outside6kernelI?EEv", "kernel<...>"), ("_Z6kernel?", "kernel"), ("_Z", "_Z")]
)
def test_a_name_that_cannot_be_demangled_is_shortened(symbol, name):
    assert demangle(symbol) == symbol
    assert short(readable(symbol)) == name
