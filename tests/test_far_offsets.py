"""Elements that lie further from their tensor's first than an int can say: rows so far apart that a few are enough."""

from __future__ import annotations

from pathlib import Path

import pytest

import cudaemu
import kernels
from common import accuracy
from common.stage import Kernel, Stage

pytestmark = pytest.mark.full

# Operands of small integers, in memory that is made where it is touched; the result of the first tile must be exact.
PRODUCT = """
#include "{source}"
#include <vector>
int main() {{
  const int M = 256, N = (1 << 19) + 256, K = 4096, WIDTH = 256;  // the last rows of B begin at 2^31 and beyond
  Element *A, *B, *C;
  cudaMalloc(&A, sizeof(Element) * M * K);
  cudaMalloc(&B, sizeof(Element) * N * K);
  cudaMalloc(&C, sizeof(Element) * M * N);
  std::vector<Element> a(M * K), b(K * WIDTH), c(M * WIDTH);
  unsigned seed = 1;
  auto next = [&] {{ return seed = seed * 1664525 + 1013904223, Element(float(seed >> 30) - 1); }};
  for (Element &each : a) each = next();
  for (Element &each : b) each = next();
  const int wide = sizeof(Element) * WIDTH;
  cudaMemcpy(A, a.data(), sizeof(Element) * M * K, cudaMemcpyDefault);
  cudaMemcpy2D(B, sizeof(Element) * N, b.data(), wide, wide, K, cudaMemcpyDefault);
  cudaMemcpy2D(C, sizeof(Element) * N, c.data(), wide, wide, M, cudaMemcpyDefault);
  auto *kernel = {kernel};
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, {shared});
  kernel<<<1, {threads}, {shared}>>>(A, B, C, M, N, K);
  cudaMemcpy2D(c.data(), wide, C, sizeof(Element) * N, wide, M, cudaMemcpyDefault);
  int right = 0;
  for (int m = 0; m < 8; ++m)
    for (int n = 0; n < 8; ++n) {{
      float sum = 0;
      for (int k = 0; k < K; ++k) sum += float(a[m * K + k]) * float(b[k * WIDTH + n]);
      right += float(Element(sum)) == float(c[m * WIDTH + n]);
    }}
  return right != 64;
}}
"""
ATTENTION = """
#include "{source}"
#include <vector>
int main() {{
  const int N = 40, MANY = 200, SPLITS = 4;
  const long long FAR = (1 << 23) + (1 << 22);  // 199 of these are more than 2^31
  const float scale = 0.125f;
  Element *Q, *KV, *O;  // a row of V behind each row of K
  float *partial_O, *partial_LSE;
  cudaMalloc(&Q, sizeof(Element) * N * HEAD_DIM);
  cudaMalloc(&O, sizeof(Element) * N * HEAD_DIM);
  cudaMalloc(&partial_O, sizeof(float) * SPLITS * N * HEAD_DIM);
  cudaMalloc(&partial_LSE, sizeof(float) * SPLITS * N);
  cudaMalloc(&KV, sizeof(Element) * FAR * MANY);
  std::vector<Element> q(N * HEAD_DIM), kv(MANY * HEAD_DIM * 2), o(N * HEAD_DIM);
  unsigned seed = 1;
  auto next = [&] {{ return seed = seed * 1664525 + 1013904223, Element(float(seed >> 30) - 1); }};
  for (Element &each : q) each = next();
  for (Element &each : kv) each = next();
  const int wide = sizeof(Element) * HEAD_DIM * 2;
  cudaMemcpy(Q, q.data(), sizeof(Element) * N * HEAD_DIM, cudaMemcpyDefault);
  cudaMemcpy2D(KV, sizeof(Element) * FAR, kv.data(), wide, wide, MANY, cudaMemcpyDefault);
  const long long row = HEAD_DIM, all = N * HEAD_DIM;
  if (launch_sdpa(Q, KV, KV + HEAD_DIM, O, nullptr, partial_O, partial_LSE, 1, 1, 1, N, MANY, all, all, row, FAR * MANY,
                  FAR * MANY, FAR, FAR * MANY, FAR * MANY, FAR, all, all, row, SPLITS, scale, nullptr))
    return 2;
  cudaMemcpy(o.data(), O, sizeof(Element) * N * HEAD_DIM, cudaMemcpyDefault);
  int right = 0;
  for (int n = 0; n < N; ++n) {{
    float sum = 0, first = 0;
    for (int key = 0; key < (CAUSAL ? n + 1 : MANY); ++key) {{
      float score = 0;
      for (int d = 0; d < HEAD_DIM; ++d) score += float(q[n * HEAD_DIM + d]) * float(kv[key * HEAD_DIM * 2 + d]);
      sum += expf(score * scale);
      first += expf(score * scale) * float(kv[(key * 2 + 1) * HEAD_DIM]);
    }}
    right += fabsf(first / sum - float(o[n * HEAD_DIM])) < 0.01f;
  }}
  return right != N;
}}
"""


def assert_right(kernel: Kernel, text: str, folder: Path) -> None:
    (folder / "far.cu").write_text(text)
    found = cudaemu.program(folder / "far.cu", arch=kernel.stage.arch, defines=kernel.defines)
    assert found.ok and not found.status, str(found)


@pytest.mark.parametrize(
    "stage", [s for s in kernels.ladder() if s.number.isdigit() and int(s.number) < 12], ids=lambda s: s.name
)
def test_b_of_a_product(stage: Stage, tmp_path):
    kernel = stage.kernel()
    instance = accuracy.make(kernel, stage.spec.emulator_shapes(kernel.variants)[0])
    (launch,) = kernel.emulate(instance.inputs, instance.outputs(), counters=False).launches
    names = {"kernel": launch.kernel, "threads": launch.block[0], "shared": launch.shared}
    assert_right(kernel, PRODUCT.format(source=stage.source.resolve(), **names), tmp_path)


@pytest.mark.parametrize("name", ["16", "h7"])
def test_keys_and_values_of_attention(name: str, tmp_path):
    kernel = kernels.load(name).kernel()
    assert_right(kernel, ATTENTION.format(source=kernel.source.resolve()), tmp_path)
