// Which instruction set this translation unit is compiled for. Kernel sources include it and put their
// code into the namespace it opens, so that the three builds of one source don't meet in the linker.
#pragma once

#if !defined(STOLON_ISA)
#error "compile kernel sources through add_isa()"
#endif

#include <utility>

#if defined(STOLON_ISA_amx)
#define STOLON_AMX 1
#define STOLON_AVX512 1
#include <immintrin.h>
#elif defined(STOLON_ISA_avx512)
#define STOLON_AVX512 1
#include <immintrin.h>
#elif defined(STOLON_ISA_avx2)
#define STOLON_AVX2 1
#include <immintrin.h>
#else
#define STOLON_PORTABLE 1
#endif

#define STOLON_BEGIN namespace stolon { namespace STOLON_ISA {
#define STOLON_END } }

// Inlined whatever the compiler's estimate says: what is computed in registers must not be passed through memory. With
// the checks of sanitizers in it, that takes minutes to compile.
#if defined(STOLON_SANITIZE)
#define STOLON_ALWAYS
#else
#define STOLON_ALWAYS __attribute__((always_inline))
#endif

STOLON_BEGIN
namespace {

// Call f with 0, 1, ... N - 1 as constants.
template <int N, class F>
STOLON_ALWAYS inline void unrolled(F&& f) {
    [&]<int... I>(std::integer_sequence<int, I...>) STOLON_ALWAYS { (f.template operator()<I>(), ...); }
    (std::make_integer_sequence<int, N>{});
}

}  // namespace
STOLON_END
