#pragma once
// Inner loops compiled twice, for any x86-64 and for one with AVX2 and FMA; the machine chooses
// when the library is loaded. Both give the same bits: std::fma is exact either way.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SIMD __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define SIMD
#endif
