// A tensor map of which every field is replaced in a kernel, for test_bulk.py: what boxes.cu does is done with that one.
#include "boxes.cu"

#define NUMBERED(FIELD, AT, VALUE)                                                                       \
  asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024.b32 [%0], " #AT ", %1;" ::"r"(where), \
               "r"(VALUE) : "memory")
#define CHOSEN(FIELD, VALUE, NUMBER) \
  if (VALUE == NUMBER)               \
  asm volatile("tensormap.replace.tile." FIELD ".shared::cta.b1024.b32 [%0], " #NUMBER ";" ::"r"(where) : "memory")
#define STRIDE(AT)                                                                                           \
  asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], " #AT ", %1;" ::"r"(where), \
               "l"(b.stride[AT]) : "memory")
#define DIMENSION(AT)                               \
  NUMBERED("box_dim", AT, b.box[AT]);               \
  NUMBERED("global_dim", AT, uint32_t(b.size[AT])); \
  NUMBERED("element_stride", AT, AT ? b.step[AT] : 1)

// PTX has an order of its own for the last types: f32.ftz before f64 and bf16.
__device__ int ptx_type(int type) { return type == 8 ? 9 : type == 9 ? 10 : type == 10 ? 8 : type; }

__global__ void replace(const __grid_constant__ CUtensorMap given, CUtensorMap *made, const uint8_t *tensor,
                        const __grid_constant__ Box b) {
  __shared__ CUtensorMap map;
  const uint32_t where = shared_address(&map);
  reinterpret_cast<uint32_t *>(&map)[threadIdx.x] = reinterpret_cast<const uint32_t *>(&given)[threadIdx.x];
  __syncwarp();
  if (threadIdx.x == 0) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(where),
                 "l"(tensor) : "memory");
    asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], %1;" ::"r"(where),
                 "r"(b.rank - 1) : "memory");
    DIMENSION(0);
    DIMENSION(1);
    DIMENSION(2);
    DIMENSION(3);
    DIMENSION(4);
    STRIDE(0);
    STRIDE(1);
    STRIDE(2);
    STRIDE(3);
    CHOSEN("swizzle_mode", b.swizzle, 0);
    CHOSEN("swizzle_mode", b.swizzle, 1);
    CHOSEN("swizzle_mode", b.swizzle, 2);
    CHOSEN("swizzle_mode", b.swizzle, 3);
    CHOSEN("fill_mode", b.fill, 0);
    CHOSEN("fill_mode", b.fill, 1);
    CHOSEN("interleave_layout", b.interleave, 0);
    const int type = ptx_type(b.type);
    CHOSEN("elemtype", type, 0);
    CHOSEN("elemtype", type, 1);
    CHOSEN("elemtype", type, 2);
    CHOSEN("elemtype", type, 3);
    CHOSEN("elemtype", type, 4);
    CHOSEN("elemtype", type, 5);
    CHOSEN("elemtype", type, 6);
    CHOSEN("elemtype", type, 7);
    CHOSEN("elemtype", type, 8);
    CHOSEN("elemtype", type, 9);
    CHOSEN("elemtype", type, 10);
    CHOSEN("elemtype", type, 11);
    CHOSEN("elemtype", type, 12);
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], "
               "128;" ::"l"(made),
               "r"(where) : "memory");
  if (threadIdx.x == 31)  // another thread than the one that replaced
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128; prefetch.tensormap [%0];" ::"l"(made)
                 : "memory");
}

// As move_box, with a map that began as one of another tensor.
extern "C" int move_replaced(uint8_t *tensor, uint8_t *tile, CUtensorMap *made, Box b, int load) {
  Box plain{};
  plain.type = 3, plain.rank = 3;
  for (int d = 0; d < 5; ++d) plain.size[d] = 100, plain.box[d] = 4, plain.step[d] = 1;
  for (int d = 0; d < 4; ++d) plain.stride[d] = 4096;
  CUtensorMap map;
  if (const CUresult error = encode(plain, tensor, &map)) return error;
  replace<<<1, 32>>>(map, made, tensor, b);
  if (const cudaError_t error = cudaMemcpy(&map, made, sizeof map, cudaMemcpyDeviceToHost)) return error;
  cudaFuncSetAttribute(move, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST);
  move<<<1, 128, MOST>>>(map, tile, b, load);
  return cudaDeviceSynchronize();
}
