// What the programs of NVIDIA's cuda-samples take from their helper_math.h: arithmetic of CUDA's vectors.
#pragma once

#include <cuda_runtime.h>
#include <math.h>

typedef unsigned int uint;
typedef unsigned short ushort;

#define EMULATOR_INLINE inline __host__ __device__

#ifndef __CUDACC__
inline float fminf(float a, float b) { return a < b ? a : b; }
inline float fmaxf(float a, float b) { return a > b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#endif

// ---- making one of another
EMULATOR_INLINE float2 make_float2(float s) { return make_float2(s, s); }
EMULATOR_INLINE float2 make_float2(float3 a) { return make_float2(a.x, a.y); }
EMULATOR_INLINE float2 make_float2(int2 a) { return make_float2(float(a.x), float(a.y)); }
EMULATOR_INLINE float2 make_float2(uint2 a) { return make_float2(float(a.x), float(a.y)); }
EMULATOR_INLINE int2 make_int2(int s) { return make_int2(s, s); }
EMULATOR_INLINE int2 make_int2(int3 a) { return make_int2(a.x, a.y); }
EMULATOR_INLINE int2 make_int2(uint2 a) { return make_int2(int(a.x), int(a.y)); }
EMULATOR_INLINE int2 make_int2(float2 a) { return make_int2(int(a.x), int(a.y)); }
EMULATOR_INLINE uint2 make_uint2(uint s) { return make_uint2(s, s); }
EMULATOR_INLINE uint2 make_uint2(uint3 a) { return make_uint2(a.x, a.y); }
EMULATOR_INLINE uint2 make_uint2(int2 a) { return make_uint2(uint(a.x), uint(a.y)); }
EMULATOR_INLINE float3 make_float3(float s) { return make_float3(s, s, s); }
EMULATOR_INLINE float3 make_float3(float2 a) { return make_float3(a.x, a.y, 0.0f); }
EMULATOR_INLINE float3 make_float3(float2 a, float s) { return make_float3(a.x, a.y, s); }
EMULATOR_INLINE float3 make_float3(float4 a) { return make_float3(a.x, a.y, a.z); }
EMULATOR_INLINE float3 make_float3(int3 a) { return make_float3(float(a.x), float(a.y), float(a.z)); }
EMULATOR_INLINE float3 make_float3(uint3 a) { return make_float3(float(a.x), float(a.y), float(a.z)); }
EMULATOR_INLINE int3 make_int3(int s) { return make_int3(s, s, s); }
EMULATOR_INLINE int3 make_int3(int2 a) { return make_int3(a.x, a.y, 0); }
EMULATOR_INLINE int3 make_int3(int2 a, int s) { return make_int3(a.x, a.y, s); }
EMULATOR_INLINE int3 make_int3(uint3 a) { return make_int3(int(a.x), int(a.y), int(a.z)); }
EMULATOR_INLINE int3 make_int3(float3 a) { return make_int3(int(a.x), int(a.y), int(a.z)); }
EMULATOR_INLINE uint3 make_uint3(uint s) { return make_uint3(s, s, s); }
EMULATOR_INLINE uint3 make_uint3(uint2 a) { return make_uint3(a.x, a.y, 0u); }
EMULATOR_INLINE uint3 make_uint3(uint2 a, uint s) { return make_uint3(a.x, a.y, s); }
EMULATOR_INLINE uint3 make_uint3(uint4 a) { return make_uint3(a.x, a.y, a.z); }
EMULATOR_INLINE uint3 make_uint3(int3 a) { return make_uint3(uint(a.x), uint(a.y), uint(a.z)); }
EMULATOR_INLINE float4 make_float4(float s) { return make_float4(s, s, s, s); }
EMULATOR_INLINE float4 make_float4(float3 a) { return make_float4(a.x, a.y, a.z, 0.0f); }
EMULATOR_INLINE float4 make_float4(float3 a, float w) { return make_float4(a.x, a.y, a.z, w); }
EMULATOR_INLINE float4 make_float4(int4 a) { return make_float4(float(a.x), float(a.y), float(a.z), float(a.w)); }
EMULATOR_INLINE float4 make_float4(uint4 a) { return make_float4(float(a.x), float(a.y), float(a.z), float(a.w)); }
EMULATOR_INLINE int4 make_int4(int s) { return make_int4(s, s, s, s); }
EMULATOR_INLINE int4 make_int4(int3 a) { return make_int4(a.x, a.y, a.z, 0); }
EMULATOR_INLINE int4 make_int4(int3 a, int w) { return make_int4(a.x, a.y, a.z, w); }
EMULATOR_INLINE int4 make_int4(uint4 a) { return make_int4(int(a.x), int(a.y), int(a.z), int(a.w)); }
EMULATOR_INLINE int4 make_int4(float4 a) { return make_int4(int(a.x), int(a.y), int(a.z), int(a.w)); }
EMULATOR_INLINE uint4 make_uint4(uint s) { return make_uint4(s, s, s, s); }
EMULATOR_INLINE uint4 make_uint4(uint3 a) { return make_uint4(a.x, a.y, a.z, 0u); }
EMULATOR_INLINE uint4 make_uint4(uint3 a, uint w) { return make_uint4(a.x, a.y, a.z, w); }
EMULATOR_INLINE uint4 make_uint4(int4 a) { return make_uint4(uint(a.x), uint(a.y), uint(a.z), uint(a.w)); }

// ---- by component: of functions and operators of scalars, those of vectors
#define EMULATOR_BY_COMPONENT_2(V, F) make_##V(F(x), F(y))
#define EMULATOR_BY_COMPONENT_3(V, F) make_##V(F(x), F(y), F(z))
#define EMULATOR_BY_COMPONENT_4(V, F) make_##V(F(x), F(y), F(z), F(w))
#define EMULATOR_BOTH(C) a.C EMULATOR_OP b.C
#define EMULATOR_LEFT(C) a.C EMULATOR_OP b
#define EMULATOR_RIGHT(C) a EMULATOR_OP b.C
#define EMULATOR_OPERATOR(V, S, N, OP)                                                             \
  EMULATOR_INLINE V operator OP(V a, V b) { return EMULATOR_BY_COMPONENT_##N(V, EMULATOR_BOTH); }  \
  EMULATOR_INLINE V operator OP(V a, S b) { return EMULATOR_BY_COMPONENT_##N(V, EMULATOR_LEFT); }  \
  EMULATOR_INLINE V operator OP(S a, V b) { return EMULATOR_BY_COMPONENT_##N(V, EMULATOR_RIGHT); } \
  EMULATOR_INLINE void operator OP## = (V & a, V b) { a = a OP b; }                                \
  EMULATOR_INLINE void operator OP## = (V & a, S b) { a = a OP b; }
#define EMULATOR_OPERATORS(OP)            \
  EMULATOR_OPERATOR(float2, float, 2, OP) \
  EMULATOR_OPERATOR(float3, float, 3, OP) \
  EMULATOR_OPERATOR(float4, float, 4, OP) \
  EMULATOR_OPERATOR(int2, int, 2, OP)     \
  EMULATOR_OPERATOR(int3, int, 3, OP)     \
  EMULATOR_OPERATOR(int4, int, 4, OP)     \
  EMULATOR_OPERATOR(uint2, uint, 2, OP)   \
  EMULATOR_OPERATOR(uint3, uint, 3, OP)   \
  EMULATOR_OPERATOR(uint4, uint, 4, OP)
#define EMULATOR_OP +
EMULATOR_OPERATORS(+)
#undef EMULATOR_OP
#define EMULATOR_OP -
EMULATOR_OPERATORS(-)
#undef EMULATOR_OP
#define EMULATOR_OP *
EMULATOR_OPERATORS(*)
#undef EMULATOR_OP
#define EMULATOR_OP /
EMULATOR_OPERATOR(float2, float, 2, /)
EMULATOR_OPERATOR(float3, float, 3, /)
EMULATOR_OPERATOR(float4, float, 4, /)
#undef EMULATOR_OP

#define EMULATOR_ONE(C) EMULATOR_F(a.C)
#define EMULATOR_TWO(C) EMULATOR_F(a.C, b.C)
#define EMULATOR_UNARY(NAME, V, N) \
  EMULATOR_INLINE V NAME(V a) { return EMULATOR_BY_COMPONENT_##N(V, EMULATOR_ONE); }
#define EMULATOR_BINARY(NAME, V, N) \
  EMULATOR_INLINE V NAME(V a, V b) { return EMULATOR_BY_COMPONENT_##N(V, EMULATOR_TWO); }
#define EMULATOR_FLOATS(KIND, NAME) KIND(NAME, float2, 2) KIND(NAME, float3, 3) KIND(NAME, float4, 4)
#define EMULATOR_INTS(KIND, NAME) KIND(NAME, int2, 2) KIND(NAME, int3, 3) KIND(NAME, int4, 4)
#define EMULATOR_UINTS(KIND, NAME) KIND(NAME, uint2, 2) KIND(NAME, uint3, 3) KIND(NAME, uint4, 4)

EMULATOR_INLINE float fracf(float value) { return value - ::floorf(value); }
#define EMULATOR_F(...) -__VA_ARGS__
EMULATOR_FLOATS(EMULATOR_UNARY, operator-)
EMULATOR_INTS(EMULATOR_UNARY, operator-)
#undef EMULATOR_F
#define EMULATOR_F ::fminf
EMULATOR_FLOATS(EMULATOR_BINARY, fminf)
#undef EMULATOR_F
#define EMULATOR_F ::fmaxf
EMULATOR_FLOATS(EMULATOR_BINARY, fmaxf)
#undef EMULATOR_F
#define EMULATOR_F ::fmodf
EMULATOR_FLOATS(EMULATOR_BINARY, fmodf)
#undef EMULATOR_F
#define EMULATOR_F ::floorf
EMULATOR_FLOATS(EMULATOR_UNARY, floorf)
#undef EMULATOR_F
#define EMULATOR_F ::fracf
EMULATOR_FLOATS(EMULATOR_UNARY, fracf)
#undef EMULATOR_F
#define EMULATOR_F ::fabsf
EMULATOR_FLOATS(EMULATOR_UNARY, fabs)
#undef EMULATOR_F
#define EMULATOR_F ::abs
EMULATOR_INTS(EMULATOR_UNARY, abs)
#undef EMULATOR_F
#define EMULATOR_F ::min
EMULATOR_INTS(EMULATOR_BINARY, min)
EMULATOR_UINTS(EMULATOR_BINARY, min)
#undef EMULATOR_F
#define EMULATOR_F ::max
EMULATOR_INTS(EMULATOR_BINARY, max)
EMULATOR_UINTS(EMULATOR_BINARY, max)
#undef EMULATOR_F

EMULATOR_INLINE float clamp(float value, float least, float most) { return ::fmaxf(least, ::fminf(value, most)); }
EMULATOR_INLINE int clamp(int value, int least, int most) { return ::max(least, ::min(value, most)); }
EMULATOR_INLINE uint clamp(uint value, uint least, uint most) { return ::max(least, ::min(value, most)); }
#define EMULATOR_CLAMPED(C) clamp(value.C, least.C, most.C)
#define EMULATOR_CLAMP(V, S, N)                                                                                \
  EMULATOR_INLINE V clamp(V value, V least, V most) { return EMULATOR_BY_COMPONENT_##N(V, EMULATOR_CLAMPED); } \
  EMULATOR_INLINE V clamp(V value, S least, S most) { return clamp(value, make_##V(least), make_##V(most)); }
EMULATOR_CLAMP(float2, float, 2)
EMULATOR_CLAMP(float3, float, 3)
EMULATOR_CLAMP(float4, float, 4)
EMULATOR_CLAMP(int2, int, 2)
EMULATOR_CLAMP(int3, int, 3)
EMULATOR_CLAMP(int4, int, 4)
EMULATOR_CLAMP(uint2, uint, 2)
EMULATOR_CLAMP(uint3, uint, 3)
EMULATOR_CLAMP(uint4, uint, 4)

// ---- products, lengths, mixtures
#define EMULATOR_DOT(V, S, SUM) \
  EMULATOR_INLINE S dot(V a, V b) { return SUM; }
EMULATOR_DOT(float2, float, a.x *b.x + a.y * b.y)
EMULATOR_DOT(float3, float, a.x *b.x + a.y * b.y + a.z * b.z)
EMULATOR_DOT(float4, float, a.x *b.x + a.y * b.y + a.z * b.z + a.w * b.w)
EMULATOR_DOT(int2, int, a.x *b.x + a.y * b.y)
EMULATOR_DOT(int3, int, a.x *b.x + a.y * b.y + a.z * b.z)
EMULATOR_DOT(int4, int, a.x *b.x + a.y * b.y + a.z * b.z + a.w * b.w)
EMULATOR_DOT(uint2, uint, a.x *b.x + a.y * b.y)
EMULATOR_DOT(uint3, uint, a.x *b.x + a.y * b.y + a.z * b.z)
EMULATOR_DOT(uint4, uint, a.x *b.x + a.y * b.y + a.z * b.z + a.w * b.w)

EMULATOR_INLINE float lerp(float a, float b, float t) { return a + t * (b - a); }
EMULATOR_INLINE float smoothstep(float a, float b, float x) {
  const float y = clamp((x - a) / (b - a), 0.0f, 1.0f);
  return y * y * (3.0f - 2.0f * y);
}
#define EMULATOR_GEOMETRY(V)                                            \
  EMULATOR_INLINE float length(V v) { return sqrtf(dot(v, v)); }        \
  EMULATOR_INLINE V normalize(V v) { return v * rsqrtf(dot(v, v)); }    \
  EMULATOR_INLINE V lerp(V a, V b, float t) { return a + t * (b - a); } \
  EMULATOR_INLINE V smoothstep(V a, V b, V x) {                         \
    const V y = clamp((x - a) / (b - a), 0.0f, 1.0f);                   \
    return y * y * (3.0f - 2.0f * y);                                   \
  }
EMULATOR_GEOMETRY(float2)
EMULATOR_GEOMETRY(float3)
EMULATOR_GEOMETRY(float4)
EMULATOR_INLINE float3 reflect(float3 i, float3 n) { return i - 2.0f * n * dot(n, i); }
EMULATOR_INLINE float3 cross(float3 a, float3 b) {
  return make_float3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
