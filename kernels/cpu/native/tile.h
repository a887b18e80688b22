// Sixteen columns at once: one 512-bit register, two of 256 bits, or an array.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "isa.h"
#include "simd.h"

#if defined(STOLON_PORTABLE) && defined(__SSE2__)
#include <emmintrin.h>
#endif

STOLON_BEGIN

inline int32_t load_word(const void* p) {
    int32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

#if defined(STOLON_AVX512)

struct F16 { __m512 v; };   // sixteen floats, parts of W of them
struct I16 { __m512i v; };  // sixteen int32
struct B64 { __m512i v; };  // sixteen quads of bytes

inline vf f_part(F16 a, int) { return {a.v}; }
inline F16 f_zero() { return {_mm512_setzero_ps()}; }
inline F16 f_set(float x) { return {_mm512_set1_ps(x)}; }
inline F16 f_load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void f_store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 f_add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 f_mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 f_fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 f_half(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline F16 f_u8(const void* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
inline F16 f_i8(const void* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
inline F16 f_int(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I16 i_set(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I16 i_add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
template <int Power>  // of two
inline I16 i_times(I16 a) { return {_mm512_slli_epi32(a.v, std::countr_zero(unsigned(Power)))}; }
inline B64 b_load(const void* p) { return {_mm512_loadu_si512(p)}; }
inline B64 b_low(B64 a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline B64 b_high(B64 a) { return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))}; }
// a | (b, every byte shifted left by Shift (right if it is negative), & Mask)
template <int Shift, int Mask>
inline B64 b_or(B64 a, B64 b) {
    const __m512i moved = Shift >= 0 ? _mm512_slli_epi16(b.v, unsigned(Shift & 15))
                                     : _mm512_srli_epi16(b.v, unsigned(-Shift & 15));
    return {_mm512_ternarylogic_epi32(a.v, moved, _mm512_set1_epi8(Mask), 0xf8)};
}
// Products of unsigned codes and four signed activations, summed in each column. Adding `zero` times the
// sum of the activations, negative, is the caller's part where Centred is false.
template <int Bits>
inline I16 dot4(I16 acc, B64 codes, int32_t activations) {
    return {_mm512_dpbusd_epi32(acc.v, codes.v, _mm512_set1_epi32(activations))};
}
inline constexpr bool kCentred8 = false;
// Low halves of a times low halves of b, plus the same of the high ones; halves are signed.
inline I16 i_pairs(I16 a, B64 b) { return {_mm512_madd_epi16(a.v, b.v)}; }
// Signed halves of a times those of `level`, over 2^15, rounded.
inline B64 b_scaled(B64 a, I16 level) { return {_mm512_mulhrs_epi16(a.v, level.v)}; }
inline F16 f_bits(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
// a times a power of two that is given by what it adds to the exponent. Zero becomes a power of two itself.
inline F16 f_raised(F16 a, I16 power) {
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), power.v))};
}
// Powers of two, from the exponents that float32 has.
inline F16 f_powers(const uint8_t* exponents) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)exponents));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
// acc + first of pair * first of weights + second * second
inline F16 dot_bf16(F16 acc, B64 weights, int32_t pair) {
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)weights.v, (__m512bh)_mm512_set1_epi32(pair))};
}

#elif defined(STOLON_AVX2)

struct F16 { __m256 v[2]; };
struct I16 { __m256i v[2]; };
struct B64 { __m256i v[2]; };

inline vf f_part(F16 a, int i) { return {a.v[i]}; }
inline F16 f_set(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
inline F16 f_zero() { return f_set(0.0f); }
inline F16 f_load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
inline void f_store(float* p, F16 a) { _mm256_storeu_ps(p, a.v[0]); _mm256_storeu_ps(p + 8, a.v[1]); }
inline F16 f_add(F16 a, F16 b) { return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}}; }
inline F16 f_mul(F16 a, F16 b) { return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}}; }
inline F16 f_fma(F16 a, F16 b, F16 c) {
    return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}
inline F16 f_half(const void* p) {
    const __m128i* h = (const __m128i*)p;
    return {{_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))}};
}
inline F16 f_u8(const void* p) {
    const uint8_t* b = (const uint8_t*)p;
    return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)b))),
             _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(b + 8))))}};
}
inline F16 f_i8(const void* p) {
    const uint8_t* b = (const uint8_t*)p;
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)b))),
             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(b + 8))))}};
}
inline F16 f_int(I16 a) { return {{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}}; }
inline I16 i_set(int32_t x) { return {{_mm256_set1_epi32(x), _mm256_set1_epi32(x)}}; }
inline I16 i_add(I16 a, I16 b) {
    return {{_mm256_add_epi32(a.v[0], b.v[0]), _mm256_add_epi32(a.v[1], b.v[1])}};
}
template <int Power>
inline I16 i_times(I16 a) {
    constexpr int shift = std::countr_zero(unsigned(Power));
    return {{_mm256_slli_epi32(a.v[0], shift), _mm256_slli_epi32(a.v[1], shift)}};
}
inline B64 b_load(const void* p) {
    const __m256i* b = (const __m256i*)p;
    return {{_mm256_loadu_si256(b), _mm256_loadu_si256(b + 1)}};
}
inline B64 b_low(B64 a) {
    const __m256i m = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(a.v[0], m), _mm256_and_si256(a.v[1], m)}};
}
inline B64 b_high(B64 a) {
    return b_low({{_mm256_srli_epi16(a.v[0], 4), _mm256_srli_epi16(a.v[1], 4)}});
}
template <int Shift, int Mask>
inline B64 b_or(B64 a, B64 b) {
    for (int i = 0; i < 2; ++i) {
        const __m256i moved = Shift >= 0 ? _mm256_slli_epi16(b.v[i], Shift & 15)
                                         : _mm256_srli_epi16(b.v[i], -Shift & 15);
        a.v[i] = _mm256_or_si256(a.v[i], _mm256_and_si256(moved, _mm256_set1_epi8(Mask)));
    }
    return a;
}
template <int Bits>
inline I16 dot4(I16 acc, B64 codes, int32_t activations) {
    const __m256i a = _mm256_set1_epi32(activations), one = _mm256_set1_epi16(1);
    for (int i = 0; i < 2; ++i) {
        __m256i products;  // pairs summed in 16 bits: they fit up to 6 bits, and signed 8 bits
        if constexpr (Bits == 8) {
            const __m256i w = _mm256_xor_si256(codes.v[i], _mm256_set1_epi8(char(128)));
            products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
        } else {
            products = _mm256_maddubs_epi16(codes.v[i], a);
        }
        acc.v[i] = _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(products, one));
    }
    return acc;
}
inline constexpr bool kCentred8 = true;
inline I16 i_pairs(I16 a, B64 b) {
    return {{_mm256_madd_epi16(a.v[0], b.v[0]), _mm256_madd_epi16(a.v[1], b.v[1])}};
}
inline B64 b_scaled(B64 a, I16 level) {
    return {{_mm256_mulhrs_epi16(a.v[0], level.v[0]), _mm256_mulhrs_epi16(a.v[1], level.v[1])}};
}
inline F16 f_bits(I16 a) { return {{_mm256_castsi256_ps(a.v[0]), _mm256_castsi256_ps(a.v[1])}}; }
inline F16 f_raised(F16 a, I16 power) {
    return {{_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v[0]), power.v[0])),
             _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v[1]), power.v[1]))}};
}
inline F16 f_powers(const uint8_t* exponents) {
    const __m128i e = _mm_loadu_si128((const __m128i*)exponents);
    return {{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(e), 23)),
             _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(e, 8)), 23))}};
}
inline F16 dot_bf16(F16 acc, B64 weights, int32_t pair) {
    const __m256 first = _mm256_castsi256_ps(_mm256_set1_epi32(int32_t(uint32_t(pair) << 16)));
    const __m256i high = _mm256_set1_epi32(int32_t(0xffff0000u));
    const __m256 second = _mm256_castsi256_ps(_mm256_and_si256(_mm256_set1_epi32(pair), high));
    for (int i = 0; i < 2; ++i) {
        const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(weights.v[i], 16));
        const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(weights.v[i], high));
        acc.v[i] = _mm256_fmadd_ps(odd, second, _mm256_fmadd_ps(even, first, acc.v[i]));
    }
    return acc;
}

#else

struct F16 { float v[16]; };
struct I16 { int32_t v[16]; };
struct B64 { uint8_t v[64]; };

#define STOLON_EACH16(type, expression)               \
    type r;                                           \
    for (int i = 0; i < 16; ++i) r.v[i] = expression; \
    return r
inline vf f_part(F16 a, int i) { return vload(a.v + i * W); }
inline F16 f_set(float x) { STOLON_EACH16(F16, x); }
inline F16 f_zero() { return f_set(0.0f); }
inline F16 f_load(const float* p) { STOLON_EACH16(F16, p[i]); }
inline void f_store(float* p, F16 a) { std::memcpy(p, a.v, 64); }
inline F16 f_add(F16 a, F16 b) { STOLON_EACH16(F16, a.v[i] + b.v[i]); }
inline F16 f_mul(F16 a, F16 b) { STOLON_EACH16(F16, a.v[i] * b.v[i]); }
inline F16 f_fma(F16 a, F16 b, F16 c) { STOLON_EACH16(F16, a.v[i] * b.v[i] + c.v[i]); }
inline F16 f_half(const void* p) {
    uint16_t h[16];
    std::memcpy(h, p, 32);
    STOLON_EACH16(F16, float_from_half(h[i]));
}
inline F16 f_u8(const void* p) { STOLON_EACH16(F16, float(((const uint8_t*)p)[i])); }
inline F16 f_i8(const void* p) { STOLON_EACH16(F16, float(((const int8_t*)p)[i])); }
inline F16 f_int(I16 a) { STOLON_EACH16(F16, float(a.v[i])); }
inline I16 i_set(int32_t x) { STOLON_EACH16(I16, x); }
inline I16 i_add(I16 a, I16 b) { STOLON_EACH16(I16, a.v[i] + b.v[i]); }
template <int Power>
inline I16 i_times(I16 a) { STOLON_EACH16(I16, a.v[i] * Power); }
inline B64 b_load(const void* p) {
    B64 b;
    std::memcpy(b.v, p, 64);
    return b;
}
inline B64 b_low(B64 a) {
    for (uint8_t& b : a.v) b &= 15;
    return a;
}
inline B64 b_high(B64 a) {
    for (uint8_t& b : a.v) b >>= 4;
    return a;
}
template <int Shift, int Mask>
inline B64 b_or(B64 a, B64 b) {
    for (int i = 0; i < 64; ++i)
        a.v[i] |= uint8_t((Shift >= 0 ? b.v[i] << (Shift & 15) : b.v[i] >> (-Shift & 15)) & Mask);
    return a;
}
template <int Bits>
inline I16 dot4(I16 acc, B64 codes, int32_t activations) {
    int8_t a[4];
    std::memcpy(a, &activations, 4);
#if defined(__SSE2__)  // every x86-64 has it, and compilers don't find it in the loop below
    const __m128i even = _mm_set1_epi32(int32_t((uint32_t(uint16_t(a[2])) << 16) | uint16_t(a[0])));
    const __m128i odd = _mm_set1_epi32(int32_t((uint32_t(uint16_t(a[3])) << 16) | uint16_t(a[1])));
    for (int i = 0; i < 4; ++i) {
        const __m128i w = _mm_loadu_si128((const __m128i*)(codes.v + 16 * i));
        const __m128i first = _mm_madd_epi16(_mm_and_si128(w, _mm_set1_epi16(255)), even);
        const __m128i second = _mm_madd_epi16(_mm_srli_epi16(w, 8), odd);
        const __m128i sum = _mm_loadu_si128((const __m128i*)(acc.v + 4 * i));
        _mm_storeu_si128((__m128i*)(acc.v + 4 * i), _mm_add_epi32(sum, _mm_add_epi32(first, second)));
    }
#else
    for (int c = 0; c < 16; ++c)
        for (int j = 0; j < 4; ++j)  // it may wrap around where activations are not numbers
            acc.v[c] = int32_t(uint32_t(acc.v[c]) + uint32_t(int32_t(codes.v[4 * c + j]) * a[j]));
#endif
    return acc;
}
inline constexpr bool kCentred8 = false;
inline I16 i_pairs(I16 a, B64 b) {
    I16 r;
    for (int i = 0; i < 16; ++i) {
        int16_t x[2], y[2];
        std::memcpy(x, &a.v[i], 4);
        std::memcpy(y, b.v + 4 * i, 4);
        r.v[i] = x[0] * y[0] + x[1] * y[1];
    }
    return r;
}
inline B64 b_scaled(B64 a, I16 level) {
    int16_t halves[32], levels[32];
    std::memcpy(halves, a.v, 64);
    std::memcpy(levels, level.v, 64);
    for (int i = 0; i < 32; ++i) halves[i] = int16_t((halves[i] * levels[i] + (1 << 14)) >> 15);
    std::memcpy(a.v, halves, 64);
    return a;
}
inline F16 f_bits(I16 a) { STOLON_EACH16(F16, float_from_bits(uint32_t(a.v[i]))); }
inline F16 f_raised(F16 a, I16 power) {
    I16 bits;
    std::memcpy(bits.v, a.v, 64);
    for (int i = 0; i < 16; ++i) bits.v[i] = int32_t(uint32_t(bits.v[i]) + uint32_t(power.v[i]));
    return f_bits(bits);
}
inline F16 f_powers(const uint8_t* exponents) {
    STOLON_EACH16(F16, float_from_bits(uint32_t(exponents[i]) << 23));
}
inline F16 dot_bf16(F16 acc, B64 weights, int32_t pair) {
    const float first = float_from_bits(uint32_t(pair) << 16);
    const float second = float_from_bits(uint32_t(pair) & 0xffff0000u);
    for (int c = 0; c < 16; ++c) {
        uint32_t w;
        std::memcpy(&w, weights.v + 4 * c, 4);
        acc.v[c] += float_from_bits(w << 16) * first;
        acc.v[c] += float_from_bits(w & 0xffff0000u) * second;
    }
    return acc;
}
#undef STOLON_EACH16

#endif

STOLON_END
