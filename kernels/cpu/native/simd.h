// Vectors of floats, as wide as the instruction set has them. Every operation is one rounding where the
// hardware has one; the portable build rounds products and sums separately.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "isa.h"

STOLON_BEGIN

inline float float_of(uint16_t half) {  // bf16 -> float
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline uint16_t bf16_of(float x) {  // round to nearest even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

#if defined(STOLON_AVX512)

inline constexpr int W = 16;
struct vf { __m512 v; };

inline vf vload(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void vstore(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
inline vf vset(float x) { return {_mm512_set1_ps(x)}; }
inline vf operator+(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
inline vf operator-(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline vf operator*(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline vf operator/(vf a, vf b) { return {_mm512_div_ps(a.v, b.v)}; }
inline vf vfma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
inline vf vmax(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }
inline vf vmin(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }
inline vf vabs(vf a) { return {_mm512_abs_ps(a.v)}; }
inline vf vround(vf a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for a whole n in [-126, 127]
inline vf vscale2(vf a, vf n) {
    const __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
    return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(e))};
}
inline float vsum(vf a) { return _mm512_reduce_add_ps(a.v); }
inline float vhigh(vf a) { return _mm512_reduce_max_ps(a.v); }
inline vf vload_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline void vstore_bf16(uint16_t* p, vf a) {
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a.v));
}

#elif defined(STOLON_AVX2)

inline constexpr int W = 8;
struct vf { __m256 v; };

inline vf vload(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void vstore(float* p, vf a) { _mm256_storeu_ps(p, a.v); }
inline vf vset(float x) { return {_mm256_set1_ps(x)}; }
inline vf operator+(vf a, vf b) { return {_mm256_add_ps(a.v, b.v)}; }
inline vf operator-(vf a, vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline vf operator*(vf a, vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline vf operator/(vf a, vf b) { return {_mm256_div_ps(a.v, b.v)}; }
inline vf vfma(vf a, vf b, vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline vf vmax(vf a, vf b) { return {_mm256_max_ps(a.v, b.v)}; }
inline vf vmin(vf a, vf b) { return {_mm256_min_ps(a.v, b.v)}; }
inline vf vabs(vf a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline vf vround(vf a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline vf vscale2(vf a, vf n) {
    const __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23);
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(e))};
}
inline float vsum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}
inline float vhigh(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}
inline vf vload_bf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
}
inline void vstore_bf16(uint16_t* p, vf a) {
    const __m256i bits = _mm256_castps_si256(a.v), upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i round = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i half = _mm256_blendv_epi8(_mm256_srli_epi32(round, 16),
                                            _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0x08);
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}

#else

inline constexpr int W = 8;
struct vf { float v[8]; };

#define STOLON_EACH(expression)                      \
    vf r;                                            \
    for (int i = 0; i < W; ++i) r.v[i] = expression; \
    return r
inline vf vload(const float* p) { STOLON_EACH(p[i]); }
inline void vstore(float* p, vf a) { for (int i = 0; i < W; ++i) p[i] = a.v[i]; }
inline vf vset(float x) { STOLON_EACH(x); }
inline vf operator+(vf a, vf b) { STOLON_EACH(a.v[i] + b.v[i]); }
inline vf operator-(vf a, vf b) { STOLON_EACH(a.v[i] - b.v[i]); }
inline vf operator*(vf a, vf b) { STOLON_EACH(a.v[i] * b.v[i]); }
inline vf operator/(vf a, vf b) { STOLON_EACH(a.v[i] / b.v[i]); }
inline vf vfma(vf a, vf b, vf c) { STOLON_EACH(a.v[i] * b.v[i] + c.v[i]); }
inline vf vmax(vf a, vf b) { STOLON_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline vf vmin(vf a, vf b) { STOLON_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline vf vabs(vf a) { STOLON_EACH(std::fabs(a.v[i])); }
inline vf vround(vf a) { STOLON_EACH(std::nearbyint(a.v[i])); }
inline vf vscale2(vf a, vf n) { STOLON_EACH(std::ldexp(a.v[i], int(n.v[i]))); }
inline float vsum(vf a) {
    return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
inline float vhigh(vf a) {
    float m = a.v[0];
    for (int i = 1; i < W; ++i) m = a.v[i] > m ? a.v[i] : m;
    return m;
}
inline vf vload_bf16(const uint16_t* p) { STOLON_EACH(float_of(p[i])); }
inline void vstore_bf16(uint16_t* p, vf a) { for (int i = 0; i < W; ++i) p[i] = bf16_of(a.v[i]); }
#undef STOLON_EACH

#endif

// e^t 's polynomial for |t| <= ln(2) / 2.
inline vf vexp_near_zero(vf t) {
    vf y = vset(1.9875691500e-4f);
    y = vfma(y, t, vset(1.3981999507e-3f));
    y = vfma(y, t, vset(8.3334519073e-3f));
    y = vfma(y, t, vset(4.1665795894e-2f));
    y = vfma(y, t, vset(1.6666665459e-1f));
    y = vfma(y, t, vset(5.0000001201e-1f));
    return vfma(y, t * t, t + vset(1.0f));
}

// e^x, relative error below 2e-7; 0 below -87.3 (and for -inf), the argument is cut at 88.7.
inline vf vexp(vf x) {
    const vf low = vset(-87.33654f);
    const vf cut = vmin(vmax(x, low), vset(88.7228f));
    const vf n = vround(cut * vset(1.44269504088896341f));
    const vf t = vfma(n, vset(2.12194440e-4f), vfma(n, vset(-0.693359375f), cut));
    const vf y = vexp_near_zero(t);
#if defined(STOLON_AVX512)
    return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x.v, low.v, _CMP_GE_OQ), y.v, n.v)};
#else
    // 2^n in two steps: n may be 128 at the upper end.
    const vf half = vround(n * vset(0.5f));
    vf z = vscale2(vscale2(y, half), n - half);
#if defined(STOLON_AVX2)
    return {_mm256_and_ps(z.v, _mm256_cmp_ps(x.v, low.v, _CMP_GE_OQ))};
#else
    for (int i = 0; i < W; ++i) z.v[i] = x.v[i] >= low.v[i] ? z.v[i] : 0.0f;
    return z;
#endif
#endif
}

// 1 / x, relative error below 2e-7, for x in [1, 1e38].
inline vf vreciprocal(vf x) {
#if defined(STOLON_AVX512)
    const vf near{_mm512_rcp14_ps(x.v)};  // to 2^-14; a step of Newton's method squares that
    return vfma(vfma(vset(0.0f) - x, near, vset(1.0f)), near, near);
#else
    return vset(1.0f) / x;
#endif
}

inline vf vtanh(vf x) {  // 1 - 2 / (e^2x + 1)
    const vf e = vexp(vmin(vmax(x, vset(-20.0f)), vset(20.0f)) * vset(2.0f));
    return vset(1.0f) - vset(2.0f) / (e + vset(1.0f));
}

STOLON_END
