// What cuTensorMapEncodeTiled says, case by case. tensor_map_probe.txt is the word of driver 580 on an H200 (2026-11-22);
// test_bulk.py holds the emulator to it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

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

static int number = 0;
static void say(const char *what, const Map &m) {
  alignas(128) CUtensorMap map;
  printf("%2d %-60s %d\n", ++number, what, int(m(&map)));
}

int main() {
  void *base;
  cudaMalloc(&base, 1 << 20);
  Map good;
  good.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16, good.base = base;
  good.size[0] = good.size[1] = 64, good.stride[0] = 128, good.box[0] = 64, good.box[1] = 64;
  const auto with = [&](auto change) {
    Map m = good;
    change(m);
    return m;
  };
  say("good", good);
  for (int rank = 0; rank <= 6; ++rank) {
    char text[40];
    snprintf(text, sizeof text, "rank %d", rank);
    say(text, with([=](Map &m) {
          m.rank = rank;
          if (rank > 2) m.stride[1] = m.stride[2] = m.stride[3] = m.stride[4] = 8192;
        }));
  }
  for (int by : {2, 4, 8, 16, 32, 48}) {
    char text[40];
    snprintf(text, sizeof text, "base + %d", by);
    say(text, with([=](Map &m) { m.base = static_cast<char *>(base) + by; }));
  }
  say("base null", with([](Map &m) { m.base = nullptr; }));
  say("base of host memory", with([](Map &m) {
        static long long here[16] __attribute__((aligned(128)));
        m.base = here;
      }));
  for (unsigned long long stride :
       {0ull, 8ull, 16ull, 24ull, 64ull, 120ull, 136ull, 144ull, 1ull << 39, (1ull << 40) - 16, 1ull << 40}) {
    char text[60];
    snprintf(text, sizeof text, "stride %llu", stride);
    say(text, with([=](Map &m) { m.stride[0] = stride; }));
  }
  for (unsigned long long size :
       {0ull, 1ull, 63ull, 1ull << 31, (1ull << 31) + 1, (1ull << 32) - 1, 1ull << 32, (1ull << 32) + 1}) {
    char text[60];
    snprintf(text, sizeof text, "size[1] %llu", size);
    say(text, with([=](Map &m) { m.size[1] = size; }));
    snprintf(text, sizeof text, "size[0] %llu", size);
    say(text, with([=](Map &m) { m.size[0] = size; }));
  }
  for (unsigned box : {0u, 1u, 4u, 8u, 12u, 16u, 64u, 72u, 128u, 248u, 256u, 264u}) {
    char text[60];
    snprintf(text, sizeof text, "box[0] %u", box);
    say(text, with([=](Map &m) { m.box[0] = box; }));
  }
  for (unsigned box : {0u, 1u, 255u, 256u, 257u}) {
    char text[60];
    snprintf(text, sizeof text, "box[1] %u", box);
    say(text, with([=](Map &m) { m.box[1] = box; }));
  }
  say("box larger than the tensor", with([](Map &m) {
        m.size[0] = 8;
        m.size[1] = 2;
      }));
  say("box of 256 x 256 halves (128 KiB)", with([](Map &m) { m.box[0] = m.box[1] = 256; }));
  say("box of 256 x 256 x 4 halves (512 KiB)", with([](Map &m) {
        m.rank = 3;
        m.size[2] = 8;
        m.stride[1] = 8192;
        m.box[0] = m.box[1] = 256;
        m.box[2] = 4;
      }));
  for (unsigned step : {0u, 1u, 2u, 8u, 9u}) {
    char text[60];
    snprintf(text, sizeof text, "elementStrides[0] %u", step);
    say(text, with([=](Map &m) { m.step[0] = step; }));
    snprintf(text, sizeof text, "elementStrides[1] %u", step);
    say(text, with([=](Map &m) { m.step[1] = step; }));
  }
  for (int swizzle = 0; swizzle <= 8; ++swizzle)
    for (unsigned box : {8u, 16u, 32u, 64u, 128u}) {
      char text[60];
      snprintf(text, sizeof text, "swizzle %d, inner side %u bytes", swizzle, box * 2);
      say(text, with([=](Map &m) {
            m.swizzle = swizzle;
            m.box[0] = box;
          }));
    }
  for (int interleave = 0; interleave <= 3; ++interleave)
    for (int rank = 2; rank <= 4; ++rank)
      for (int swizzle = 0; swizzle <= 3; ++swizzle) {
        char text[60];
        snprintf(text, sizeof text, "interleave %d, rank %d, swizzle %d", interleave, rank, swizzle);
        say(text, with([=](Map &m) {
              m.interleave = interleave, m.rank = rank, m.swizzle = swizzle, m.box[0] = interleave == 2 ? 16 : 8;
              m.stride[1] = 8192, m.stride[2] = 65536, m.size[2] = m.size[3] = 4;
            }));
      }
  for (int promotion = 0; promotion <= 4; ++promotion) {
    char text[60];
    snprintf(text, sizeof text, "promotion %d", promotion);
    say(text, with([=](Map &m) { m.promotion = promotion; }));
  }
  for (int type = 0; type <= 3; ++type)
    for (int fill = 0; fill <= 2; ++fill) {
      char text[60];
      snprintf(text, sizeof text, "type %d, fill %d", type, fill);
      say(text, with([=](Map &m) {
            m.type = CUtensorMapDataType(type), m.fill = fill, m.box[0] = type >= 13 ? 128 : 16;
            m.size[0] = 128, m.stride[0] = 1024;
          }));
    }
}
