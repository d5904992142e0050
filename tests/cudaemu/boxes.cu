// Copies of any box of any tensor, for test_bulk.py: into shared memory and from there to `tile`, or the way back.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

constexpr int MOST = 64 << 10;  // bytes of a tile

struct Box {
  int type, rank, interleave, swizzle, promotion, fill;
  long long size[5], stride[4];
  int box[5], step[5], corner[5];
  int offset, bytes;  // of the tile: from a multiple of 1024 bytes on; its size
  int misplaced;      // by which the tensor's address is wrong
};

__device__ uint32_t shared_address(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

#define BULK(DIM, ...)                                                                                              \
  if (b.rank == DIM) {                                                                                              \
    if (load)                                                                                                       \
      asm volatile("cp.async.bulk.tensor." #DIM "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], " \
                   "[%1, {" __VA_ARGS__ "}], [%7];" ::"r"(shared_address(at)),                                      \
                   "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]),                                \
                   "r"(shared_address(&full)) : "memory");                                                          \
    else                                                                                                            \
      asm volatile("cp.async.bulk.tensor." #DIM "d.global.shared::cta.tile.bulk_group [%1, {" __VA_ARGS__           \
                   "}], [%0];" ::"r"(shared_address(at)),                                                           \
                   "l"(&map), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]) : "memory");                    \
  }

__global__ void move(const __grid_constant__ CUtensorMap map, uint8_t *tile, const __grid_constant__ Box b, bool load) {
  extern __shared__ __align__(1024) uint8_t room[];
  __shared__ uint64_t full;
  uint8_t *const at = room + b.offset;
  const int *c = b.corner;
  for (int i = threadIdx.x; i < MOST; i += blockDim.x) room[i] = load ? 0xaa : tile[i];
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(shared_address(
        &full)) : "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    BULK(1, "%2")
    BULK(2, "%2, %3")
    BULK(3, "%2, %3, %4")
    BULK(4, "%2, %3, %4, %5")
    BULK(5, "%2, %3, %4, %5, %6")
    if (load)
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full)),
                   "r"(b.bytes) : "memory");
    else
      asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
  if (!load) return;
  asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra AGAIN; }" ::"r"(
                   shared_address(&full)) : "memory");
  for (int i = threadIdx.x; i < MOST; i += blockDim.x) tile[i] = room[i];
}

using Encode = decltype(&cuTensorMapEncodeTiled);

static CUresult encode(const Box &b, void *tensor, CUtensorMap *map) {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (!function) return CUDA_ERROR_NOT_FOUND;
  cuuint64_t size[5], stride[4];
  cuuint32_t box[5], step[5];
  for (int d = 0; d < 5; ++d) size[d] = b.size[d], box[d] = b.box[d], step[d] = b.step[d];
  for (int d = 0; d < 4; ++d) stride[d] = b.stride[d];
  return Encode(function)(map, CUtensorMapDataType(b.type), b.rank, static_cast<char *>(tensor) + b.misplaced, size,
                          stride, box, step, CUtensorMapInterleave(b.interleave), CUtensorMapSwizzle(b.swizzle),
                          CUtensorMapL2promotion(b.promotion), CUtensorMapFloatOOBfill(b.fill));
}

// The driver's error, or the runtime's.
extern "C" int move_box(uint8_t *tensor, uint8_t *tile, Box b, int load) {
  CUtensorMap map;
  if (const CUresult error = encode(b, tensor, &map)) return error;
  cudaFuncSetAttribute(move, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST);
  move<<<1, 128, MOST>>>(map, tile, b, load);
  return cudaDeviceSynchronize();
}
