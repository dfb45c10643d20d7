#pragma once
// Hopper's asynchronous tensor-core products of one warpgroup: PTX ISA, "wgmma".
//
// Usage: fence(), some mma(), commit(); then wait<n>() until at most n committed groups
// are unfinished. Accumulators of unfinished products may not be touched: keep() them before and
// after, so that the compiler moves no use across.

#include <cstdint>

#include "ptx/shared_address.cuh"

namespace tiled::ptx::wgmma {

__device__ inline void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kUnfinished>
__device__ void wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kUnfinished) : "memory");
}

template <int kCount>
__device__ void fence_operand(float (&d)[kCount]) {
  _Pragma("unroll") for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Likewise what registers hold of a, before the products: it is there when they begin.
template <int kSteps, int kCount>
__device__ void fence_operand(uint32_t (&a)[kSteps][kCount]) {
  _Pragma("unroll") for (int i = 0; i < kSteps * kCount; ++i) {
    asm volatile("" : "+r"(a[i / kCount][i % kCount])::"memory");
  }
}

// Describes halves in shared memory, rows of 64 bytes swizzled by 64 bytes (csrc/packed.h), eight
// rows 512 bytes after the eight before. In its low word 16 bytes further are 1 more, so 16 halves
// further along K are 2.
__device__ inline uint32_t descriptor_low_word(const void* smem) {
  return uint32_t{1} << 16 | (shared_address(smem) & 0x3ffff) >> 4;
}
__device__ inline uint64_t descriptor(uint32_t low_word) {
  constexpr uint64_t kSwizzle64 = uint64_t{2} << 62, kEightRows = uint64_t{512 / 16} << 32;
  return kSwizzle64 | kEightRows | low_word;
}
__device__ inline uint64_t descriptor(const void* smem) {
  return descriptor(descriptor_low_word(smem));
}

// Descriptors of halves as a tensor map swizzles them: lines of kNeighbours, 64 or 32, by as many
// bytes as they have. Where neighbours lie along K, lines are rows of a, or of b^T, and 16 halves
// further along K are 2 more in the low word; or else lines are steps of K, 16 steps are as many
// lines' bytes / 16 more, and the next kNeighbours rows lie kBlock bytes further.
template <int kBlock, int kNeighbours = 64>
__device__ uint64_t swizzled_descriptor(const void* smem) {
  static_assert(kNeighbours == 64 || kNeighbours == 32);
  constexpr uint64_t kSwizzle = uint64_t{kNeighbours == 64 ? 1 : 2} << 62;
  constexpr uint64_t kEightLines = uint64_t{8 * kNeighbours * 2 / 16} << 32;
  constexpr uint64_t kNextBlock = uint64_t{kBlock / 16} << 16;
  return kSwizzle | kEightLines | kNextBlock | (shared_address(smem) & 0x3ffff) >> 4;
}

// d (64, n) = a (64, 16) b (n, 16)^T, plus d where accumulate, of float16 or bfloat16; kAMnMajor:
// a's neighbours lie across K, or else along it; kBMnMajor likewise b's. Warp w of the warpgroup
// holds rows 16w .. 16w + 15 of d: d[i] is row lane / 4 + i / 2 % 2 * 8 of them, column i / 4 * 8 +
// lane % 4 * 2 + i % 2.
//
// PTX names operands by their place alone, so d's come in lists of 32, and what follows them is
// told where it stands.
#define TILED_NAMES_0                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TILED_NAMES_32                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TILED_NAMES_64                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TILED_NAMES_96                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TILED_NAMES_0_TO_15 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TILED_NAMES_32_TO_47 \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TILED_NAMES_64_TO_79 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TILED_EIGHT(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TILED_HALF(i) TILED_EIGHT(i), TILED_EIGHT(i + 8)
#define TILED_SUMS(i) TILED_HALF(i), TILED_HALF(i + 16)
#define TILED_MULTIPLY(type, n, names, a_at, b_at, accumulate_at, a_across_at, b_across_at, ...) \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " accumulate_at               \
               ", 0;\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names         \
               "}, " a_at ", " b_at ", accumulate, 1, 1, " a_across_at ", " b_across_at ";\n}"   \
               : __VA_ARGS__                                                                     \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kAMnMajor),              \
                 "n"(kBMnMajor))
#define TILED_MULTIPLY_ADD(count, ...)                                              \
  template <bool kBFloat16 = false, bool kAMnMajor = false, bool kBMnMajor = false> \
  __device__ void mma(float(&d)[count], uint64_t a, uint64_t b, bool accumulate) {  \
    if constexpr (kBFloat16) {                                                      \
      TILED_MULTIPLY("bf16", __VA_ARGS__);                                          \
    } else {                                                                        \
      TILED_MULTIPLY("f16", __VA_ARGS__);                                           \
    }                                                                               \
  }

TILED_MULTIPLY_ADD(8, "16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", "%11", "%12",
                   TILED_EIGHT(0))
TILED_MULTIPLY_ADD(16, "32", TILED_NAMES_0_TO_15, "%16", "%17", "%18", "%19", "%20", TILED_HALF(0))
TILED_MULTIPLY_ADD(32, "64", TILED_NAMES_0, "%32", "%33", "%34", "%35", "%36", TILED_SUMS(0))
TILED_MULTIPLY_ADD(48, "96", TILED_NAMES_0 ", " TILED_NAMES_32_TO_47, "%48", "%49", "%50", "%51",
                   "%52", TILED_SUMS(0), TILED_HALF(32))
TILED_MULTIPLY_ADD(64, "128", TILED_NAMES_0 ", " TILED_NAMES_32, "%64", "%65", "%66", "%67", "%68",
                   TILED_SUMS(0), TILED_SUMS(32))
TILED_MULTIPLY_ADD(80, "160", TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64_TO_79, "%80",
                   "%81", "%82", "%83", "%84", TILED_SUMS(0), TILED_SUMS(32), TILED_HALF(64))
TILED_MULTIPLY_ADD(96, "192", TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64, "%96", "%97",
                   "%98", "%99", "%100", TILED_SUMS(0), TILED_SUMS(32), TILED_SUMS(64))
TILED_MULTIPLY_ADD(128, "256",
                   TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64 ", " TILED_NAMES_96,
                   "%128", "%129", "%130", "%131", "%132", TILED_SUMS(0), TILED_SUMS(32),
                   TILED_SUMS(64), TILED_SUMS(96))

// Likewise, of an a that registers hold, which may be written again when the products are finished:
// a[i] are rows lane / 4 + i % 2 * 8 of the warp's, halves lane % 4 * 2 + i / 2 * 8 and the next.
#define TILED_MULTIPLY_HELD(type, n, names, a_at, b_at, accumulate_at, b_across_at, ...) \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " accumulate_at       \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names \
               "}, {" a_at "}, " b_at ", accumulate, 1, 1, " b_across_at ";\n}"          \
               : __VA_ARGS__                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1), "n"(kBMnMajor))
#define TILED_MULTIPLY_ADD_HELD(count, ...)                                  \
  template <bool kBFloat16, bool kBMnMajor>                                  \
  __device__ void mma(float(&d)[count], const uint32_t(&a)[4], uint64_t b) { \
    if constexpr (kBFloat16) {                                               \
      TILED_MULTIPLY_HELD("bf16", __VA_ARGS__);                              \
    } else {                                                                 \
      TILED_MULTIPLY_HELD("f16", __VA_ARGS__);                               \
    }                                                                        \
  }

TILED_MULTIPLY_ADD_HELD(32, "64", TILED_NAMES_0, "%32, %33, %34, %35", "%36", "%37", "%38",
                        TILED_SUMS(0))
TILED_MULTIPLY_ADD_HELD(64, "128", TILED_NAMES_0 ", " TILED_NAMES_32, "%64, %65, %66, %67", "%68",
                        "%69", "%70", TILED_SUMS(0), TILED_SUMS(32))
TILED_MULTIPLY_ADD_HELD(96, "192", TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64,
                        "%96, %97, %98, %99", "%100", "%101", "%102", TILED_SUMS(0), TILED_SUMS(32),
                        TILED_SUMS(64))
TILED_MULTIPLY_ADD_HELD(128, "256",
                        TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64 ", " TILED_NAMES_96,
                        "%128, %129, %130, %131", "%132", "%133", "%134", TILED_SUMS(0),
                        TILED_SUMS(32), TILED_SUMS(64), TILED_SUMS(96))

#undef TILED_MULTIPLY_ADD_HELD
#undef TILED_MULTIPLY_HELD
#undef TILED_MULTIPLY_ADD
#undef TILED_MULTIPLY
#undef TILED_SUMS
#undef TILED_HALF
#undef TILED_EIGHT
#undef TILED_NAMES_64_TO_79
#undef TILED_NAMES_32_TO_47
#undef TILED_NAMES_0_TO_15
#undef TILED_NAMES_96
#undef TILED_NAMES_64
#undef TILED_NAMES_32
#undef TILED_NAMES_0

}  // namespace tiled::ptx::wgmma
