"""Sources written as PyTorch extensions: called with CPU tensors, compiled with stand-ins for PyTorch's headers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu import torch_extensions
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
    assert str(library.call("raw", torch.ones(3))) == "raw threw: no fp8, but float"


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


HOST = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#define CHECK_DTYPE(T, TYPE)                                   \
  if (((T).options().dtype() != (TYPE))) {                     \
    std::cout << "Tensor Info:" << (T).options() << std::endl; \
    throw std::runtime_error("values must be " #TYPE);         \
  }

__global__ void add_one(const float *x, float *y, int n) {
  const int i = std::min(int(threadIdx.x), n - 1);  // constexpr on the host: --expt-relaxed-constexpr
  y[i] = x[i] + 1;
}

torch::Tensor one_more(torch::Tensor x) {
  assert(x.device().type() == torch::kCUDA);
  CHECK_DTYPE(x, torch::kFloat32)
  auto y = torch::zeros({x.numel()});  // on the CPU
  torch::Device device(torch::kCUDA);
  y = y.to(device);
  auto stream = torch::cuda::getCurrentCUDAStream();
  add_one<<<1, x.numel(), 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
std::vector<torch::Tensor> copies(torch::Tensor x) {
  auto rows = torch::tensor(std::vector<int64_t>{1, 0, 1});
  return {x.cpu(), x.to(torch::kHalf), x.to(torch::kInt).cpu(), x.t().contiguous(), x.t().clone(), x[1],
          x.permute({1, 0}).reshape({-1}), x.unsqueeze(0).squeeze(), x.narrow(1, 1, 2).contiguous(),
          torch::full({2}, int64_t(1) << 62), torch::tensor(std::vector<int>{3, 1}), x.index_select(0, rows)};
}
std::vector<torch::Tensor> order(torch::Tensor x) {
  auto [most, where] = torch::max(x, 0);
  auto [values, places] = x.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  return {most, where, values, places, x.max(), x.min(), std::get<1>(x.sort())};
}
int64_t sum(torch::Tensor x) {
  auto host = x.to(torch::kCPU);
  auto values = host.accessor<float, 1>();
  double sum = 0;
  for (int i = 0; i < host.size(0); ++i) sum += values[i];
  return torch::tensor(std::vector<int>{int(sum)}).item().to<int>() + x.device().index();
}
torch::Tensor of_the_host(torch::Tensor x) {  // forgets .device(torch::kCUDA)
  auto y = torch::zeros({x.numel()});
  add_one<<<1, x.numel()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
torch::Tensor in_streams(torch::Tensor x) {
  auto y = torch::empty_like(x), z = torch::empty_like(x);
  at::cuda::CUDAEvent done;
  auto stream = at::cuda::getStreamFromPool();
  {
    c10::cuda::CUDAStreamGuard guard(stream);
    TORCH_CHECK(at::cuda::getCurrentCUDAStream() == stream);
    auto current = at::cuda::getCurrentCUDAStream();
    add_one<<<1, x.numel(), 0, current>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    done.record(stream);
  }
  TORCH_CHECK(at::cuda::getCurrentCUDAStream() != stream);
  done.block(at::cuda::getCurrentCUDAStream());
  add_one<<<1, x.numel()>>>(y.data_ptr<float>(), z.data_ptr<float>(), x.numel());
  return z;
}
std::string described(int64_t which) {
  std::ostringstream text;
  if (which == 0) text << torch::TensorOptions();
  if (which == 1) text << torch::TensorOptions().dtype(torch::kHalf).device(torch::kCUDA).requires_grad(true);
  return text.str();
}
void says(int64_t which) { throw std::runtime_error(described(which)); }

TORCH_LIBRARY(TORCH_EXTENSION_NAME, m) {
  m.def("one_more(Tensor x) -> Tensor");
  m.def("copies(Tensor x) -> Tensor[]", &copies);
  m.def("order", &order);
  m.def("sum", &sum);
  m.def("says", &says);
  m.def("of_the_host", &of_the_host);
  m.def("in_streams", &in_streams);
}
TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CUDA, m) { m.impl("one_more", TORCH_FN(one_more)); }
"""


@pytest.fixture(scope="module")
def host():
    return cudaemu.load(source(HOST, "extension_host"))


def test_what_pytorchs_headers_bring_along(host, capfd):
    """<iostream>, <cassert>, std::min in a kernel; options print as PyTorch's do (read from its libc10)."""
    x = torch.randn(40)
    report = host.call("one_more", x)
    assert report.ok and torch.equal(report.result, x + 1)
    assert str(host.call("one_more", x.double())) == "one_more threw: values must be torch::kFloat32"
    assert (
        "Tensor Info:TensorOptions(dtype=double, device=cuda:0, layout=Strided, requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))\n" in capfd.readouterr().out
    )
    for which, said in enumerate(
        (
            "TensorOptions(dtype=float (default), device=cpu (default), layout=Strided (default), "
            "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))",
            "TensorOptions(dtype=c10::Half, device=cuda, layout=Strided (default), requires_grad=true, "
            "pinned_memory=false (default), memory_format=(nullopt))",
        )
    ):
        assert str(host.call("says", which)) == f"says threw: {said}"


def test_copies_and_views(host):
    x = 100 * torch.randn(3, 4)
    report = host.call("copies", x)
    wanted = [x, x.half(), x.int(), x.t(), x.t(), x[1], x.t().reshape(-1), x, x[:, 1:3]]
    wanted += [torch.full((2,), 1 << 62), torch.tensor([3, 1], dtype=torch.int32), x[[1, 0, 1]]]
    assert report.ok and len(report.result) == len(wanted)
    for number, (got, want) in enumerate(zip(report.result, wanted)):
        assert got.dtype == want.dtype and torch.equal(got, want), number


def test_order(host):
    x = torch.tensor([[3.0, 1.0, 3.0], [4.0, -1.0, 0.5]])
    report = host.call("order", x)
    most, where, values, places, largest, least, last = report.result
    assert torch.equal(most, x.max(0).values) and torch.equal(where, x.max(0).indices)
    assert torch.equal(values, x.sort(dim=1, descending=True, stable=True).values)
    assert places.tolist() == [[0, 2, 1], [0, 2, 1]] and last.tolist() == [[1, 0, 2], [1, 2, 0]]
    assert (largest.item(), least.item()) == (4.0, -1.0)
    assert host.call("sum", torch.arange(5.0)).result == 10


def test_streams(host):
    x = torch.randn(32)
    report = host.call("in_streams", x)
    assert report.ok and torch.equal(report.result, x + 1 + 1)


def test_a_tensor_that_is_not_on_the_gpu_is_found(host):
    """As in PyTorch, torch::zeros without a device is on the CPU, where no kernel can write."""
    report = host.call("of_the_host", torch.ones(8))
    assert [finding.kind for finding in report.findings] == ["out of bounds global"]


def test_a_binding_in_a_file_of_its_own(tmp_path):
    """As torch.utils.cpp_extension.load takes them: sources=["main.cpp", "twice.cu"]."""
    (tmp_path / "main.cpp").write_text(
        "#include <torch/extension.h>\ntorch::Tensor twice(torch::Tensor x);\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("two", torch::wrap_pybind_function(twice), "twice"); }\n'
    )
    kernels = EXTENSION.partition("std::vector<torch::Tensor> sums")[0]
    (tmp_path / "twice.cu").write_text(kernels.replace("torch/extension.h", "torch/types.h"))
    x = torch.randn(64)
    for one, other in (("main.cpp", "twice.cu"), ("twice.cu", "main.cpp")):
        report = cudaemu.load(tmp_path / one, sources=[tmp_path / other]).call("two", x)
        assert report.ok and torch.equal(report.result, 2 * x)


LECTURE = r"""
__global__ void square_kernel(const float *x, float *y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * x[i];
}
torch::Tensor square(torch::Tensor x) {
  TORCH_CHECK(x.dim() == 2, "x has ", x.dim(), " dimensions");
  auto y = torch::empty_like(x);
  square_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel() + BEYOND);
  return y;
}
"""


def test_load_inline_and_load_as_pytorchs(tmp_path):
    """A script takes them from here in place of torch.utils.cpp_extension."""
    x = torch.randn(30, 20)
    given = {"functions": ["square"], "with_cuda": True, "verbose": True, "build_directory": str(tmp_path)}
    flags = ["-O2 -Xptxas -O3", "-DBEYOND=0", "-gencode=arch=compute_80,code=sm_80", "-arch", "sm_90"]
    declared = "torch::Tensor square(torch::Tensor x);"
    module = torch_extensions.load_inline("lecture", declared, LECTURE, extra_cuda_cflags=flags, **given)
    assert torch.equal(module.square(x), x * x) and torch_extensions.reports[-1].ok
    with pytest.raises(RuntimeError, match="x has 1 dimensions"):
        module.square(x[0])
    with pytest.raises(UserError, match="has no function cube in its PYBIND11_MODULE"):
        module.cube(x)

    (tmp_path / "main.cpp").write_text(
        f"#include <torch/extension.h>\n{declared}\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("square", &square); }\n'
    )
    (tmp_path / "square.cu").write_text("#include <torch/types.h>\n" + LECTURE)
    files = [str(tmp_path / "main.cpp"), str(tmp_path / "square.cu")]
    module = torch_extensions.load("lecture", files, extra_cuda_cflags=["-DBEYOND=1"])
    module.square(x)
    assert {finding.kind for finding in torch_extensions.reports[-1].findings} == {"out of bounds global"}
