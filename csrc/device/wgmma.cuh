#pragma once
// Hopper's asynchronous tensor-core products of one warpgroup: PTX ISA, "wgmma".
//
// Usage: fence(), some multiply_add(), commit(); then wait<n>() until at most n committed groups
// are unfinished. Accumulators of unfinished products may not be touched: keep() them before and
// after, so that the compiler moves no use across.

#include <cstdint>

#include "device/shared.cuh"

namespace tiled::device::wgmma {

__device__ inline void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kUnfinished>
__device__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kUnfinished) : "memory");
}

template <int kCount>
__device__ void keep(float (&d)[kCount]) {
  _Pragma("unroll") for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Describes halves in shared memory, rows of 64 bytes swizzled by 64 bytes (csrc/packed.h), eight
// rows 512 bytes after the eight before. In its low word 16 bytes further are 1 more, so 16 halves
// further along K are 2.
__device__ inline uint32_t low_word(const void* smem) {
  return uint32_t{1} << 16 | (shared_address(smem) & 0x3ffff) >> 4;
}
__device__ inline uint64_t describe(uint32_t low_word) {
  constexpr uint64_t kSwizzle64 = uint64_t{2} << 62, kEightRows = uint64_t{512 / 16} << 32;
  return kSwizzle64 | kEightRows | low_word;
}
__device__ inline uint64_t describe(const void* smem) { return describe(low_word(smem)); }

// d (64, 128) = a (64, 16) b (128, 16)^T, plus d where accumulate. Warp w of the warpgroup holds
// rows 16w .. 16w + 15 of d: d[i] is row lane / 4 + i / 2 % 2 * 8 of them, column
// i / 4 * 8 + lane % 4 * 2 + i % 2.
__device__ inline void multiply_add(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, accumulate, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// d (64, 64) likewise, of b (64, 16).
__device__ inline void multiply_add(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, accumulate, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// Descriptors of halves as a tensor map swizzles them by 128 bytes: lines of 64 neighbours, eight
// lines 1024 bytes after the eight before. Where neighbours lie along K, lines are rows of a, or of
// b^T, and 16 halves further along K are 2 more in the low word; or else lines are steps of K, 16
// steps are 128 more, and the next 64 rows lie kBlock bytes further.
template <int kBlock>
__device__ uint64_t describe_lines(const void* smem) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightLines = uint64_t{1024 / 16} << 32;
  constexpr uint64_t kNextBlock = uint64_t{kBlock / 16} << 16;
  return kSwizzle128 | kEightLines | kNextBlock | (shared_address(smem) & 0x3ffff) >> 4;
}

// d (64, n) += a (64, 16) b (n, 16)^T of float16 or bfloat16, where kAcross by neighbours across K.
// d is held as above.
#define TILED_WGMMA_256(type)                                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %130, 0;\n"                              \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "                \
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "                \
      "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "                \
      "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "                \
      "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "                \
      "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "               \
      "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "                   \
      "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"                                 \
      "}, %128, %129, accumulate, 1, 1, %131, %132;\n}"                                            \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
        "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), \
        "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), \
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), \
        "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), \
        "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),          \
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),        \
        "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),        \
        "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),        \
        "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])         \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kAAcross), "n"(kBAcross))
template <bool kBFloat16, bool kAAcross, bool kBAcross>
__device__ void multiply_add_lines(float (&d)[128], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kBFloat16) {
    TILED_WGMMA_256("bf16");
  } else {
    TILED_WGMMA_256("f16");
  }
}
#undef TILED_WGMMA_256

#define TILED_WGMMA_128(type)                                                                      \
  asm volatile(                                                                                    \
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %66, 0;\n"                               \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "                \
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "                \
      "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "                \
      "%62, %63"                                                                                   \
      "}, %64, %65, accumulate, 1, 1, %67, %68;\n}"                                                \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
        "+f"(d[63])                                                                                \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kAAcross), "n"(kBAcross))
template <bool kBFloat16, bool kAAcross, bool kBAcross>
__device__ void multiply_add_lines(float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kBFloat16) {
    TILED_WGMMA_128("bf16");
  } else {
    TILED_WGMMA_128("f16");
  }
}
#undef TILED_WGMMA_128

#define TILED_WGMMA_64(type)                                                                       \
  asm volatile(                                                                                    \
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %34, 0;\n"                               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                  \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "                \
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"                  \
      "}, %32, %33, accumulate, 1, 1, %35, %36;\n}"                                                \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                         \
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kAAcross), "n"(kBAcross))
template <bool kBFloat16, bool kAAcross, bool kBAcross>
__device__ void multiply_add_lines(float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {
  if constexpr (kBFloat16) {
    TILED_WGMMA_64("bf16");
  } else {
    TILED_WGMMA_64("f16");
  }
}
#undef TILED_WGMMA_64

}  // namespace tiled::device::wgmma
