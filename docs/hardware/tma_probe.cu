// Boxes of tensors at their edges, one copy for each number among the arguments: coordinates that are negative, beyond the
// tensor or no multiple of 16 bytes, sizes that are no such multiple, fills, types, dimensions, element strides.
// tma_probe.txt is what an H200 said (driver 580, CUDA 13.0, 2026-11-22), each case in a process of its own, for some of
// them end the context. test_bulk.py holds the emulator to it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using Encode = CUresult (*)(
    CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode encode() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  return Encode(function);
}

struct Map {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
  int rank = 2;
  void *base = nullptr;
  cuuint64_t size[5] = {1, 1, 1, 1, 1}, stride[5] = {16, 16, 16, 16, 16};
  cuuint32_t box[5] = {1, 1, 1, 1, 1}, step[5] = {1, 1, 1, 1, 1};
  int interleave = 0, swizzle = 0, promotion = 0, fill = 0;
  CUresult operator()(CUtensorMap *map) const {
    return encode()(map, type, rank, base, size, stride, box, step, CUtensorMapInterleave(interleave),
                    CUtensorMapSwizzle(swizzle), CUtensorMapL2promotion(promotion), CUtensorMapFloatOOBfill(fill));
  }
};

__device__ uint32_t shared_address(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ void init(uint64_t *m, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(shared_address(m)),
               "r"(arrivals) : "memory");
}
__device__ void expect(uint64_t *m, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(m)),
               "r"(bytes) : "memory");
}
// Whether the phase ends before much time has passed.
__device__ bool wait(uint64_t *m, int parity) {
  for (int tries = 0; tries < 2000; ++tries) {
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(shared_address(m)), "r"(parity) : "memory");
    if (done) return true;
    __nanosleep(200);
  }
  return false;
}
#define LOAD_OPCODE(DIM) "cp.async.bulk.tensor." DIM ".shared::cluster.global.tile.mbarrier::complete_tx::bytes "
__device__ void load(void *to, const CUtensorMap *map, uint64_t *m, int x, int y) {
  asm volatile(LOAD_OPCODE("2d") "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)), "l"(map), "r"(x), "r"(y),
               "r"(shared_address(m)) : "memory");
}
__device__ void load(void *to, const CUtensorMap *map, uint64_t *m, int x, int y, int z) {
  asm volatile(LOAD_OPCODE("3d") "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)), "l"(map), "r"(x), "r"(y),
               "r"(z), "r"(shared_address(m)) : "memory");
}
__device__ void load1(void *to, const CUtensorMap *map, uint64_t *m, int x) {
  asm volatile(LOAD_OPCODE("1d") "[%0], [%1, {%2}], [%3];" ::"r"(shared_address(to)), "l"(map), "r"(x),
               "r"(shared_address(m)) : "memory");
}
__device__ void load5(void *to, const CUtensorMap *map, uint64_t *m, int a, int b, int c, int d, int e) {
  asm volatile(LOAD_OPCODE("5d") "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(to)), "l"(map), "r"(a),
               "r"(b), "r"(c), "r"(d), "r"(e), "r"(shared_address(m)) : "memory");
}
__device__ void finish_stores() {
  asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ void async_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

template <class T>
T *on_device(const std::vector<T> &host) {
  T *device;
  cudaMalloc(&device, host.size() * sizeof(T));
  cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
  return device;
}
template <class T>
std::vector<T> on_host(const T *device, size_t n) {
  std::vector<T> host(n);
  cudaMemcpy(host.data(), device, n * sizeof(T), cudaMemcpyDeviceToHost);
  return host;
}

struct Case {
  const char *what;
  bool store;
  int type, rank;
  cuuint64_t size[5];
  cuuint32_t box[5];
  int at[5];
  int swizzle = 0, fill = 0;
  cuuint32_t step[5] = {1, 1, 1, 1, 1};
};
enum { U8, U16, U32, S32, U64, S64, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ };

const Case cases[] = {
    {"load", false, U16, 2, {64, 32}, {16, 4}, {0, 0}},
    {"16 bytes along", false, U16, 2, {64, 32}, {16, 4}, {8, 0}},
    {"2 bytes along", false, U16, 2, {64, 32}, {16, 4}, {1, 0}},
    {"4 bytes along", false, U16, 2, {64, 32}, {16, 4}, {2, 0}},
    {"8 bytes along", false, U16, 2, {64, 32}, {16, 4}, {4, 0}},
    {"-16 bytes", false, U16, 2, {64, 32}, {16, 4}, {-8, 0}},
    {"-2 bytes", false, U16, 2, {64, 32}, {16, 4}, {-1, 0}},
    {"row -1", false, U16, 2, {64, 32}, {16, 4}, {0, -1}},
    {"row -8: all outside", false, U16, 2, {64, 32}, {16, 4}, {0, -8}},
    {"beyond the row by 16 bytes", false, U16, 2, {64, 32}, {16, 4}, {56, 0}},
    {"beyond the row by 18 bytes", false, U16, 2, {64, 32}, {16, 4}, {57, 0}},
    {"beyond the last row", false, U16, 2, {64, 32}, {16, 4}, {0, 30}},
    {"outside in x", false, U16, 2, {64, 32}, {16, 4}, {64, 0}},
    {"outside in y", false, U16, 2, {64, 32}, {16, 4}, {0, 32}},
    {"far outside in x", false, U16, 2, {64, 32}, {16, 4}, {1000000, 0}},
    {"far outside in y", false, U16, 2, {64, 32}, {16, 4}, {0, -1000000}},
    {"u32, 4 bytes along", false, U32, 2, {32, 32}, {8, 4}, {1, 0}},
    {"u32, -1, -1", false, U32, 2, {32, 32}, {8, 4}, {-1, -1}},
    {"u8, -3, -1", false, U8, 2, {128, 32}, {32, 4}, {-3, -1}},
    {"rows of 61 elements, the last ones", false, U16, 2, {61, 32}, {16, 4}, {48, 0}},
    {"rows of 61 elements, beyond", false, U16, 2, {61, 32}, {16, 4}, {56, 0}},
    {"1D at 0", false, U16, 1, {100}, {16}, {0}},
    {"1D at 8", false, U16, 1, {100}, {16}, {8}},
    {"1D at 88", false, U16, 1, {100}, {16}, {88}},
    {"1D at 90", false, U16, 1, {100}, {16}, {90}},
    {"1D at -8", false, U16, 1, {100}, {16}, {-8}},
    {"128-byte swizzle at -16 bytes", false, U16, 2, {64, 32}, {64, 8}, {-8, 0}, 3},
    {"128-byte swizzle at row -3", false, U16, 2, {64, 32}, {64, 8}, {0, -3}, 3},
    {"128-byte swizzle, 2 bytes along", false, U16, 2, {64, 32}, {64, 8}, {1, 0}, 3},
    {"store", true, U16, 2, {64, 32}, {16, 4}, {0, 0}},
    {"store at -16 bytes", true, U16, 2, {64, 32}, {16, 4}, {-8, 0}},
    {"store at row -3", true, U16, 2, {64, 32}, {16, 4}, {0, -3}},
    {"store 2 bytes along", true, U16, 2, {64, 32}, {16, 4}, {1, 0}},
    {"store 4 bytes along", true, U32, 2, {32, 32}, {8, 4}, {1, 0}},
    {"store beyond the row by 16 bytes", true, U16, 2, {64, 32}, {16, 4}, {56, 0}},
    {"store, rows of 61 elements", true, U16, 2, {61, 32}, {16, 4}, {48, 0}},
    {"store, rows of 57 elements", true, U16, 2, {57, 32}, {16, 4}, {48, 0}},
    {"store beyond the last row", true, U16, 2, {64, 32}, {16, 4}, {8, 30}},
    {"store, all outside", true, U16, 2, {64, 32}, {16, 4}, {64, 0}},
    {"store, element strides 1 2", true, U16, 2, {64, 32}, {16, 8}, {8, 1}, 0, 0, {1, 2, 1, 1, 1}},
    {"store, 64 bytes in a 128-byte swizzle", true, U16, 2, {64, 32}, {32, 8}, {0, 0}, 3},
    {"NaN, f16", false, F16, 2, {60, 32}, {16, 4}, {56, 30}, 0, 1},
    {"NaN, bf16", false, BF16, 2, {60, 32}, {16, 4}, {56, 30}, 0, 1},
    {"NaN, f32", false, F32, 2, {30, 32}, {8, 4}, {28, 30}, 0, 1},
    {"NaN, f64", false, F64, 2, {15, 32}, {4, 4}, {14, 30}, 0, 1},
    {"NaN, f32 with FTZ", false, F32_FTZ, 2, {30, 32}, {8, 4}, {28, 30}, 0, 1},
    {"NaN, tf32", false, TF32, 2, {30, 32}, {8, 4}, {28, 30}, 0, 1},
    {"special values, f32", false, F32, 2, {32, 32}, {32, 1}, {0, 0}},
    {"special values, f32 with FTZ", false, F32_FTZ, 2, {32, 32}, {32, 1}, {0, 0}},
    {"special values, tf32", false, TF32, 2, {32, 32}, {32, 1}, {0, 0}},
    {"special values, tf32 with FTZ", false, TF32_FTZ, 2, {32, 32}, {32, 1}, {0, 0}},
    {"store of special values, f32 with FTZ", true, F32_FTZ, 2, {32, 32}, {32, 1}, {0, 0}},
    {"store of special values, tf32", true, TF32, 2, {32, 32}, {32, 1}, {0, 0}},
    {"3D", false, U16, 3, {16, 8, 8}, {8, 3, 2}, {8, 6, 7}},
    {"3D, negative", false, U16, 3, {16, 8, 8}, {8, 3, 2}, {0, -1, -1}},
    {"5D", false, U16, 5, {16, 4, 4, 4, 4}, {8, 2, 2, 2, 2}, {8, 1, 2, 3, 0}},
    {"5D, negative", false, U16, 5, {16, 4, 4, 4, 4}, {8, 2, 2, 2, 2}, {8, -1, 2, -1, 0}},
    {"element strides 1 2", false, U16, 2, {64, 32}, {8, 8}, {8, 3}, 0, 0, {1, 2, 1, 1, 1}},
    {"element strides 1 2, box of 7", false, U16, 2, {64, 32}, {8, 7}, {8, 3}, 0, 0, {1, 2, 1, 1, 1}},
    {"element strides 1 3, beyond", false, U16, 2, {64, 32}, {8, 8}, {8, 27}, 0, 0, {1, 3, 1, 1, 1}},
    {"element strides 1 3, before", false, U16, 2, {64, 32}, {8, 8}, {8, -4}, 0, 0, {1, 3, 1, 1, 1}},
    {"element strides 2 1", false, U16, 2, {64, 32}, {16, 4}, {8, 3}, 0, 0, {2, 1, 1, 1, 1}},
    {"element strides 4 8", false, U16, 2, {64, 32}, {16, 8}, {8, 1}, 0, 0, {4, 8, 1, 1, 1}},
    {"5D, element strides", false, U16, 5, {16, 4, 4, 4, 4}, {8, 4, 2, 3, 2}, {8, 1, 3, 1, 2}, 0, 0, {1, 2, 1, 3, 2}},
};
__global__ void move(const __grid_constant__ CUtensorMap map, uint16_t *out, const uint16_t *special, const int *at,
                     int rank, bool store, int bytes, int *done) {
  __shared__ __align__(1024) uint16_t tile[4096];
  __shared__ uint64_t m;
  for (int i = threadIdx.x; i < 4096; i += blockDim.x) tile[i] = store ? special ? special[i % 64] : 1000 + i : 0xeeee;
  if (!threadIdx.x) init(&m, 1);
  async_fence();
  __syncthreads();
  bool ended = true;
  if (store) {
    if (!threadIdx.x) {
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                   "r"(at[0]), "r"(at[1]), "r"(shared_address(tile)) : "memory");
      finish_stores();
    }
  } else {
    if (!threadIdx.x) {
      expect(&m, bytes);
      if (rank == 1) load1(tile, &map, &m, at[0]);
      if (rank == 2) load(tile, &map, &m, at[0], at[1]);
      if (rank == 3) load(tile, &map, &m, at[0], at[1], at[2]);
      if (rank == 5) load5(tile, &map, &m, at[0], at[1], at[2], at[3], at[4]);
    }
    ended = wait(&m, 0);
    __syncthreads();
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) out[i] = tile[i];
  }
  if (!threadIdx.x) *done = ended;
}

// False: the context has ended.
bool run(int number) {
  const Case &c = cases[number];
  const int item[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  const uint32_t special[] = {
      0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x7f800001, 0xffc12345,
      0x7f800000, 0x3f800001, 0x3f800fff, 0x3f801000, 0x3f801001, 0x3f801fff, 0x3f802000, 0x3f803000, 0x7f7fffff,
      0x3fffffff, 0xbf801fff, 0x7fffffff, 0x00400000, 0x00000fff, 0x00001000, 0x00800fff, 0x00801fff};
  const bool is_special = strstr(c.what, "special");
  std::vector<uint16_t> data(16384);
  for (size_t i = 0; i < data.size(); ++i) data[i] = c.store ? 0 : uint16_t(i);
  if (is_special && !c.store) memcpy(data.data(), special, sizeof special);
  std::vector<uint16_t> specials(64);
  memcpy(specials.data(), special, sizeof special);
  uint16_t *room = on_device(data), *base = room + 4096;  // with memory before and after it
  if (!c.store) {
    std::vector<uint16_t> moved(16384, 0xdddd);
    std::copy(data.begin(), data.begin() + 8192, moved.begin() + 4096);
    cudaMemcpy(room, moved.data(), 32768, cudaMemcpyHostToDevice);
  }
  uint16_t *out = on_device(std::vector<uint16_t>(4096)), *values = on_device(specials);
  int *done = on_device(std::vector<int>(1)), *at = on_device(std::vector<int>(c.at, c.at + 5));
  Map m;
  m.type = CUtensorMapDataType(c.type), m.rank = c.rank, m.base = base, m.swizzle = c.swizzle, m.fill = c.fill;
  size_t stride = c.rank > 2 ? c.size[0] * item[c.type] : 128, bytes = item[c.type];
  for (int d = 0; d < c.rank; ++d) {
    m.size[d] = c.size[d], m.box[d] = c.box[d], m.step[d] = c.step[d];
    if (d) m.stride[d - 1] = stride, stride *= c.size[d];
    bytes *= d ? (c.box[d] + c.step[d] - 1) / c.step[d] : c.box[d];
  }
  CUtensorMap map;
  const CUresult error = m(&map);
  printf("%d %s: encode %d", number, c.what, int(error));
  if (error) return printf("\n"), true;
  move<<<1, 64>>>(map, out, is_special ? values : nullptr, at, c.rank, c.store, int(bytes), done);
  const cudaError_t ended = cudaDeviceSynchronize();
  if (ended) return printf(", CUDA error %d\n", int(ended)), false;
  printf(", %s\n", on_host(done, 1)[0] ? "complete" : "INCOMPLETE");
  if (c.store) {
    const auto got = on_host(room, 16384);
    for (int row = -64; row < 192; ++row) {
      bool any = false;
      for (int col = 0; col < 64; ++col) any |= got[4096 + row * 64 + col] != 0;
      if (!any) continue;
      printf("  row %2d:", row);
      for (int col = 0; col < 64; ++col) {
        const int v = got[4096 + row * 64 + col];
        if (is_special)
          printf(" %04x", v);
        else if (v && (!col || got[4096 + row * 64 + col - 1] + 1 != v)) {
          int end = col;
          while (end + 1 < 64 && got[4096 + row * 64 + end + 1] == got[4096 + row * 64 + end] + 1) ++end;
          printf(" [%d-%d]=%d", col, end, v - 1000);
        }
      }
      printf("\n");
    }
  } else {
    const auto got = on_host(out, 4096);
    int last = 4095;
    while (last >= 0 && got[last] == 0xeeee) --last;
    for (int i = 0; i <= last; ++i) printf(is_special ? "%s%04x" : "%s%5u", i % 16 ? " " : i ? "\n   " : "   ", got[i]);
    printf("\n");
  }
  return true;
}

int main(int argc, char **argv) {
  for (int n = 1; n < argc; ++n)
    if (!run(atoi(argv[n]))) return 0;
}
