"""Sources written as PyTorch extensions: called with CPU tensors, compiled with stand-ins for PyTorch's headers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu.errors import UserError
from tests.cudaemu.sources import source

pytestmark = pytest.mark.full  # torch's headers take a compiler half a minute

EXTENSION = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <vector>

#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_INPUT(x) CHECK_CUDA(x); TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

template <typename scalar_t>
__global__ void twice_kernel(const scalar_t *__restrict__ x, scalar_t *__restrict__ y, size_t n) {
  const size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * scalar_t(2);
}

template <typename scalar_t>
__global__ void row_sums(const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> in,
                         torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> out) {
  scalar_t sum = 0;
  for (int column = 0; column < in.size(1); ++column) sum += in[threadIdx.x][column];
  out[threadIdx.x] = sum;
}

__global__ void forgets_the_last(float *y, int n) {
  if (threadIdx.x < n - 1) y[threadIdx.x] = 1;
}

torch::Tensor twice(torch::Tensor x) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto y = torch::empty_like(x);
  const int threads = 256, blocks = (x.numel() + threads - 1) / threads;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "twice", ([&] {
    twice_kernel<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

std::vector<torch::Tensor> sums(const torch::Tensor &x, double scale, bool negate, c10::optional<torch::Tensor> other) {
  TORCH_CHECK(x.dim() == 2, "x has ", x.dim(), " dimensions");
  auto out = torch::zeros({x.size(0)}, torch::TensorOptions().dtype(x.dtype()).device(x.device()));
  row_sums<float><<<1, x.size(0)>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(),
                                    out.packed_accessor32<float, 1, torch::RestrictPtrTraits>());
  return {out, torch::full({2, 2}, negate ? -scale : scale, x.options()), other.value_or(x.t())};
}

void twice_(torch::Tensor &x) {
  twice_kernel<float><<<(x.numel() + 31) / 32, 32>>>(x.data_ptr<float>(), x.data_ptr<float>(), x.numel());
}

std::tuple<int64_t, double, bool> numbers(std::vector<torch::Tensor> all, std::string name) {
  return {int64_t(all.size() + name.size()), all.at(0).item<double>(), all.at(0).is_cuda()};
}

torch::Tensor raw(torch::Tensor x) {  // twice the bits of fp8, as a number
  CHECK_INPUT(x);
  const bool fp8 = x.dtype() == at::ScalarType::Float8_e4m3fn || x.scalar_type() == torch::kFloat8_e5m2;
  TORCH_CHECK(fp8, "no fp8, but ", x.dtype());
  auto y = torch::empty_like(x);
  twice_kernel<uint8_t><<<1, x.numel()>>>((const uint8_t *)x.data_ptr(), (uint8_t *)y.data_ptr(), x.numel());
  return y;
}

torch::Tensor forget(int64_t n) {
  auto y = torch::empty({n}, torch::device(torch::kCUDA).dtype(torch::kFloat32));
  forgets_the_last<<<1, n>>>(y.data_ptr<float>(), n);
  twice_(y);
  return y;
}
"""
MODULE = r"""
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "What this is.";
  m.def("twice", &twice, "twice as much", py::arg("x"));
  m.def("sums", &sums);
  m.def("double_in_place", &twice_);
  m.def("numbers", &numbers);
  m.def("forget", &forget);
  m.def("raw", &raw);
  m.def("thrice", [](torch::Tensor x) { return x.numel() * 3; });
}
"""


@pytest.fixture(scope="module")
def library():
    return cudaemu.load(source(EXTENSION + MODULE, "extension"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_tensors_in_tensors_out(library, dtype):
    x = torch.randn(3, 5, 50).to(dtype)
    report = library.call("twice", x)
    assert report.ok and report.result.dtype == dtype and torch.equal(report.result, 2 * x)
    assert report.launches[0].kernel.startswith("twice_kernel<") and report.counters["global_store_requests"] > 0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_tensors(library, dtype):
    x = torch.randn(50).to(dtype)
    report = library.call("raw", x)
    assert report.ok and report.result.dtype == dtype
    assert torch.equal(report.result.view(torch.uint8), 2 * x.view(torch.uint8))
    assert str(library.call("raw", torch.ones(3))) == "raw threw: no fp8, but Float"


def test_numpy_gives_numpy(library):
    x = np.arange(10, dtype=np.float32)
    result = library.call("twice", x).result
    assert isinstance(result, np.ndarray) and np.array_equal(result, 2 * x)


def test_several_results_and_accessors(library):
    x = torch.arange(15.0).reshape(3, 5)
    one, two, three = library.call("sums", x, 2.5, True, None).result
    assert torch.equal(one, x.sum(1)) and torch.equal(two, torch.full((2, 2), -2.5)) and torch.equal(three, x.t())
    assert torch.equal(library.call("sums", x, 1, False, torch.ones(4)).result[2], torch.ones(4))


def test_in_place_numbers_texts_lambdas(library):
    x = torch.arange(40.0)
    assert library.call("double_in_place", x).result is None and torch.equal(x, 2 * torch.arange(40.0))
    assert library.call("numbers", [torch.tensor([1.5]), x], "four").result == (6, 1.5, True)
    assert library.call("thrice", x).result == 120


def test_what_is_not_written_is_found(library):
    """torch::empty is uninitialised, as on a GPU."""
    report = library.call("forget", 8)
    assert [finding.kind for finding in report.findings] == ["uninitialised global read"]
    assert "cudaMalloc 1" in str(report)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda lib: lib.call("twice"), r"twice takes 1 arguments \(Tensor\), got 0"),
        (lambda lib: lib.call("twice", 3), "argument 1 must be a Tensor, got 3"),
        (lambda lib: lib.call("sums", torch.ones(2, 2), "1", True, None), "argument 2 must be a double"),
        (lambda lib: lib.call("nothing"), "no function nothing "),
        (lambda lib: lib.call("twice", np.zeros(2, np.complex64)), "an array of complex64"),
    ],
)
def test_what_does_not_fit_is_refused(library, call, said):
    with pytest.raises(UserError, match=said):
        call(library)


def test_what_it_throws_is_in_the_report(library):
    report = library.call("twice", torch.ones(3, dtype=torch.int32))
    assert not report.ok and str(report) == "twice threw: \"twice\" not implemented for 'Int'"
    assert str(library.call("sums", torch.ones(3), 1.0, True, None)) == "sums threw: x has 1 dimensions"


def test_without_a_module_functions_go_by_their_names():
    """As load_inline takes them: the names are given to it, functions=[...]."""
    text = EXTENSION.partition("std::vector<torch::Tensor> sums")[0]
    library = cudaemu.load(source(text, "extension_inline"))
    assert torch.equal(library.call("twice", torch.ones(4)).result, torch.full((4,), 2.0))
    with pytest.raises(UserError, match="does not export nothing"):
        library.call("nothing")
    report = library.launch("twice_kernel<float>", 1, 32, x := np.ones(8, np.float32), y := np.zeros(8, np.float32), 8)
    assert report.ok and np.array_equal(y, 2 * x)


def test_what_is_missing_gets_a_launcher_to_add():
    text = EXTENSION.replace("auto y = torch::empty_like(x);", "auto y = torch::matmul(x, x);", 1)
    with pytest.raises(UserError) as error:
        cudaemu.load(source(text, "extension_matmul"))
    said = str(error.value)
    assert re.search(r"extension_matmul\.cu\(\d+\): error: .*matmul", said)
    assert (
        'extern "C" cudaError_t launch_forgets_the_last('
        "float *y, int n, int blocks, int threads, cudaStream_t stream) {\n"
        "  forgets_the_last<<<blocks, threads, 0, stream>>>(y, n);"
    ) in said
    assert "launch_twice_kernel(const float *x, float *y, size_t n, int blocks" in said


def test_the_launcher_to_add_works():
    """What the error proposes: PyTorch's part out of sight, a launcher beside it."""
    kernel = "__global__ void fill(float *y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 3; }\n"
    text = (
        "#ifndef __EMULATOR__\n#include <torch/all_of_it.h>\n#endif\n"
        + kernel
        + 'extern "C" cudaError_t launch_fill(float *y, int n, int blocks, int threads, cudaStream_t stream) {\n'
        "  fill<<<blocks, threads, 0, stream>>>(y, n);\n  return cudaGetLastError();\n}\n"
    )
    y = torch.zeros(8)
    assert cudaemu.load(text).call("launch_fill", y, 8, 1, 32, None).ok and torch.equal(y, torch.full((8,), 3.0))
