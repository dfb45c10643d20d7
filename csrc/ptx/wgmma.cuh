#pragma once
// Asynchronous tensor-core products of one warpgroup: PTX ISA, "wgmma".
//
// Usage: fence(), some mma(), commit_group(); then wait_group<n>() until at most n committed groups
// are pending. Accumulators of pending products must not be touched: fence_operand() before and
// after keeps the compiler from moving accesses across.

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
// The same for fragments of a in registers, before the products that read them.
template <int kSteps, int kCount>
__device__ void fence_operand(uint32_t (&a)[kSteps][kCount]) {
  _Pragma("unroll") for (int i = 0; i < kSteps * kCount; ++i) {
    asm volatile("" : "+r"(a[i / kCount][i % kCount])::"memory");
  }
}

// Descriptor of a K-major fp16 tile in shared memory with rows of 64 bytes and 64-byte swizzle
// (core/presplit.h); groups of eight rows are 512 bytes apart. The low word counts 16-byte units:
// 16 elements along K are 2.
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

// Descriptor of a 16-bit tile as a swizzled tensor map loads it: stored rows of kRow elements (64
// or 32), swizzled over all of their bytes. K-major: a stored row is a row of a or a column of b,
// and 16 elements along K add 2 to the low word. MN-major: a stored row is one k, 16 of K add 2 *
// kRow to the low word, and the next kRow rows of a or columns of b begin kBlock bytes further
// on.
template <int kBlock, int kRow = 64>
__device__ uint64_t swizzled_descriptor(const void* smem) {
  static_assert(kRow == 64 || kRow == 32);
  constexpr uint64_t kSwizzle = uint64_t{kRow == 64 ? 1 : 2} << 62;
  constexpr uint64_t kEightRowStride = uint64_t{8 * kRow * 2 / 16} << 32;
  constexpr uint64_t kNextBlock = uint64_t{kBlock / 16} << 16;
  return kSwizzle | kEightRowStride | kNextBlock | (shared_address(smem) & 0x3ffff) >> 4;
}

// d (64, n) = a (64, 16) b (n, 16)^T, plus d if `accumulate`, for float16 or bfloat16 operands
// that are K-major, or MN-major if kAMnMajor or kBMnMajor. Warp w of the warpgroup holds rows
// 16w to 16w + 15 of d: d[i] is in row lane / 4 + i / 2 % 2 * 8 of them, and in column i / 4 * 8 +
// lane % 4 * 2 + i % 2.
//
// PTX names operands by position alone: the macros list d's in groups of 32 and pass the positions
// of the operands that follow.
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
#define TILED_D8(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TILED_D16(i) TILED_D8(i), TILED_D8(i + 8)
#define TILED_D32(i) TILED_D16(i), TILED_D16(i + 16)
#define TILED_WGMMA(type, n, names, a_at, b_at, accumulate_at, a_major_at, b_major_at, ...)  \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " accumulate_at           \
               ", 0;\n"                                                                      \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names     \
               "}, " a_at ", " b_at ", accumulate, 1, 1, " a_major_at ", " b_major_at ";\n}" \
               : __VA_ARGS__                                                                 \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kAMnMajor),          \
                 "n"(kBMnMajor))
#define TILED_MMA(count, ...)                                                       \
  template <bool kBFloat16 = false, bool kAMnMajor = false, bool kBMnMajor = false> \
  __device__ void mma(float(&d)[count], uint64_t a, uint64_t b, bool accumulate) {  \
    if constexpr (kBFloat16) {                                                      \
      TILED_WGMMA("bf16", __VA_ARGS__);                                             \
    } else {                                                                        \
      TILED_WGMMA("f16", __VA_ARGS__);                                              \
    }                                                                               \
  }

TILED_MMA(8, "16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", "%11", "%12", TILED_D8(0))
TILED_MMA(16, "32", TILED_NAMES_0_TO_15, "%16", "%17", "%18", "%19", "%20", TILED_D16(0))
TILED_MMA(32, "64", TILED_NAMES_0, "%32", "%33", "%34", "%35", "%36", TILED_D32(0))
TILED_MMA(48, "96", TILED_NAMES_0 ", " TILED_NAMES_32_TO_47, "%48", "%49", "%50", "%51", "%52",
          TILED_D32(0), TILED_D16(32))
TILED_MMA(64, "128", TILED_NAMES_0 ", " TILED_NAMES_32, "%64", "%65", "%66", "%67", "%68",
          TILED_D32(0), TILED_D32(32))
TILED_MMA(80, "160", TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64_TO_79, "%80", "%81",
          "%82", "%83", "%84", TILED_D32(0), TILED_D32(32), TILED_D16(64))
TILED_MMA(96, "192", TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64, "%96", "%97", "%98",
          "%99", "%100", TILED_D32(0), TILED_D32(32), TILED_D32(64))
TILED_MMA(128, "256", TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64 ", " TILED_NAMES_96,
          "%128", "%129", "%130", "%131", "%132", TILED_D32(0), TILED_D32(32), TILED_D32(64),
          TILED_D32(96))

// The product with a in registers, which may be overwritten once it is complete: a[i] holds row
// lane / 4 + i % 2 * 8 of the warp's, elements lane % 4 * 2 + i / 2 * 8 and the next one along K.
#define TILED_WGMMA_A_IN_REGISTERS(type, n, names, a_at, b_at, accumulate_at, b_major_at, ...) \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, " accumulate_at             \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" names       \
               "}, {" a_at "}, " b_at ", accumulate, 1, 1, " b_major_at ";\n}"                 \
               : __VA_ARGS__                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                 "r"(static_cast<int>(accumulate)), "n"(kBMnMajor))
#define TILED_MMA_A_IN_REGISTERS(count, ...)                               \
  template <bool kBFloat16 = false, bool kBMnMajor = false>                \
  __device__ void mma(float(&d)[count], const uint32_t(&a)[4], uint64_t b, \
                      bool accumulate = true) {                            \
    if constexpr (kBFloat16) {                                             \
      TILED_WGMMA_A_IN_REGISTERS("bf16", __VA_ARGS__);                     \
    } else {                                                               \
      TILED_WGMMA_A_IN_REGISTERS("f16", __VA_ARGS__);                      \
    }                                                                      \
  }

TILED_MMA_A_IN_REGISTERS(16, "32", TILED_NAMES_0_TO_15, "%16, %17, %18, %19", "%20", "%21", "%22",
                         TILED_D16(0))
TILED_MMA_A_IN_REGISTERS(32, "64", TILED_NAMES_0, "%32, %33, %34, %35", "%36", "%37", "%38",
                         TILED_D32(0))
TILED_MMA_A_IN_REGISTERS(64, "128", TILED_NAMES_0 ", " TILED_NAMES_32, "%64, %65, %66, %67", "%68",
                         "%69", "%70", TILED_D32(0), TILED_D32(32))
TILED_MMA_A_IN_REGISTERS(96, "192", TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64,
                         "%96, %97, %98, %99", "%100", "%101", "%102", TILED_D32(0), TILED_D32(32),
                         TILED_D32(64))
TILED_MMA_A_IN_REGISTERS(128, "256",
                         TILED_NAMES_0 ", " TILED_NAMES_32 ", " TILED_NAMES_64 ", " TILED_NAMES_96,
                         "%128, %129, %130, %131", "%132", "%133", "%134", TILED_D32(0),
                         TILED_D32(32), TILED_D32(64), TILED_D32(96))

#undef TILED_MMA_A_IN_REGISTERS
#undef TILED_WGMMA_A_IN_REGISTERS
#undef TILED_MMA
#undef TILED_WGMMA
#undef TILED_D32
#undef TILED_D16
#undef TILED_D8
#undef TILED_NAMES_64_TO_79
#undef TILED_NAMES_32_TO_47
#undef TILED_NAMES_0_TO_15
#undef TILED_NAMES_96
#undef TILED_NAMES_64
#undef TILED_NAMES_32
#undef TILED_NAMES_0

}  // namespace tiled::ptx::wgmma
