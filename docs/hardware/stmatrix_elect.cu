// elect.sync, stmatrix and setmaxnreg, as they are executed: stmatrix_elect.txt is the record of an H200 (2026-11-22).
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#define CHECK(x)                                   \
  if (cudaError_t e = (x)) {                       \
    printf("%s: %s\n", #x, cudaGetErrorString(e)); \
    exit(1);                                       \
  }

__global__ void elect(uint32_t *out) {
  const int lane = threadIdx.x;
  uint32_t leader = 99, chosen = 0;
  asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(leader), "=r"(chosen));
  out[lane] = leader << 8 | chosen;
  leader = 99, chosen = 0;
  if (lane % 3 == 2) {
    const uint32_t mask = 0x24924924;  // lanes 2, 5, 8, ...
    asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.u32 %1, 1, 0, p; }" : "=r"(leader), "=r"(chosen)
                 : "r"(mask));
  }
  out[32 + lane] = leader << 8 | chosen;
  leader = 99, chosen = 0;
  if (lane >= 16) asm volatile("{ .reg .pred p; elect.sync _|p, 0xffff0000; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
  out[64 + lane] = leader << 8 | chosen;
}

template <int COUNT, bool TRANS>
__global__ void matrix(uint32_t *out) {
  __shared__ __align__(16) uint32_t s[32 * 5];
  const int lane = threadIdx.x;
  for (int i = lane; i < 160; i += 32) s[i] = 0xeeeeeeee;
  __syncwarp();
  const uint32_t at = __cvta_generic_to_shared(s) + (31 - lane) * 16;
  const uint32_t a = lane * 2 | (lane * 2 + 1) << 16, b = a + 0x01000100, c = a + 0x02000200, d = a + 0x03000300;
  if (COUNT == 1 && !TRANS)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(a) : "memory");
  if (COUNT == 2 && !TRANS)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
  if (COUNT == 4 && !TRANS)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c),
                 "r"(d) : "memory");
  if (COUNT == 1 && TRANS)
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(at), "r"(a) : "memory");
  if (COUNT == 2 && TRANS)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
  if (COUNT == 4 && TRANS)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b),
                 "r"(c), "r"(d) : "memory");
  __syncwarp();
  for (int i = lane; i < 128; i += 32) out[i] = s[i];
}

__global__ void __launch_bounds__(256, 1) registers(uint32_t *out) {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    out[threadIdx.x] = 24;
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    out[threadIdx.x] = 240;
  }
}

int main() {
  uint32_t *out, host[256];
  CHECK(cudaMalloc(&out, sizeof host));
  const auto show = [&](const char *name, int count) {
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    printf("%s:", name);
    for (int i = 0; i < count; ++i) printf(" %x", host[i]);
    printf("\n");
  };
  CHECK(cudaMemset(out, 0, sizeof host));
  elect<<<1, 32>>>(out);
  show("elect", 96);
  matrix<1, false><<<1, 32>>>(out), show("stmatrix x1", 128);
  matrix<2, false><<<1, 32>>>(out), show("stmatrix x2", 128);
  matrix<4, false><<<1, 32>>>(out), show("stmatrix x4", 128);
  matrix<1, true><<<1, 32>>>(out), show("stmatrix x1 trans", 128);
  matrix<2, true><<<1, 32>>>(out), show("stmatrix x2 trans", 128);
  matrix<4, true><<<1, 32>>>(out), show("stmatrix x4 trans", 128);
  registers<<<1, 256>>>(out);
  show("setmaxnreg", 256);
}
