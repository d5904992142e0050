"""The table of element types: its rows agree with NumPy, PyTorch and the C++ that is compiled."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from common.dtypes import PRECISIONS
from cudaemu import dtypes
from cudaemu.arguments import check_array
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from cudaemu.process import HERE, ParameterType

HEADERS = "".join(f"#include <{name}>\n" for name in ("cstddef", "cstdint", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"))


@pytest.mark.parametrize("row", dtypes.DTYPES.values(), ids=lambda row: row.name)
def test_a_row_is_that_of_numpy_and_pytorch(row):
    assert getattr(torch, row.name).itemsize == np.dtype(row.numpy).itemsize == row.size
    floating = getattr(torch, row.name).is_floating_point
    assert floating == (row.kind in "fc") and (row.kind != "s" or np.dtype(row.name).kind == "i")
    if not row.bits:
        array = np.zeros(2, row.name)
        assert torch.from_numpy(array).dtype == getattr(torch, row.name)


def test_cpp_has_the_sizes_of_the_table(tmp_path):
    """The compiler is asked, of the elements and of the vectors."""
    spellings = [*dtypes.BY_CPP, *dtypes.VECTORS]
    sizes = "\n".join(f'static_assert(sizeof({cpp}) == {dtypes.size_of(cpp)}, "{cpp}");' for cpp in spellings)
    (tmp_path / "sizes.cpp").write_text(HEADERS + sizes)
    nvcc = toolchain.find_nvcc()
    toolchain.run([toolchain.find_cxx(), "-fsyntax-only", f"-I{nvcc.include}", tmp_path / "sizes.cpp"])
    assert dtypes.size_of("Tile") is None


def test_the_stand_ins_for_pytorchs_headers_have_the_same_numbers():
    header = (HERE / "extension" / "emulator_torch.h").read_text()
    (body,) = re.findall(r"enum class ScalarType : int8_t \{([^}]*)\}", header)
    numbers = {int(number) for number in re.findall(r"= (\d+)", body)}
    assert numbers == {row.scalar_type for row in dtypes.DTYPES.values()} - {None}


@pytest.mark.parametrize("name", PRECISIONS)
def test_what_kernels_compute_in(name):
    precision = PRECISIONS[name]
    assert precision.torch.itemsize == precision.element.size and precision.cpp in dtypes.BY_CPP
    # mma.sync's largest shape is 16 × 8 × 32 bytes of a row of A.
    assert precision.flop_per_mma in (None, 2 * 16 * 8 * 32 // precision.element.size)


@pytest.mark.parametrize("name", [row.name for row in dtypes.DTYPES.values() if row.kind == "c"])
def test_a_pointer_to_a_small_float_takes_its_own_type_or_bits(name):
    row = dtypes.DTYPES[name]
    kind = ParameterType("p", "c", True, 8, row.size, f"{row.cpp[0]} const*")
    for other in dtypes.DTYPES.values():
        tensor = torch.zeros(4).to(getattr(torch, other.name))
        if other == row or (other.kind != "c" and other.size == row.size):
            check_array(tensor, kind, "x")
        else:
            with pytest.raises(UserError, match=f"^x must .*{other.name}"):
                check_array(tensor, kind, "x")
