// What the sampler needs of vectors beyond simd.h: ids, comparisons, loads that stop at the end of a row.
#pragma once

#include "simd.h"

STOLON_BEGIN

#if defined(STOLON_AVX512)

struct vi { __m512i v; };
inline vi iload(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
inline vi iset(uint32_t x) { return {_mm512_set1_epi32(int(x))}; }
inline vi iota(uint32_t from) {
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_add_epi32(_mm512_set1_epi32(int(from)), steps)};
}
inline vi operator+(vi a, vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline vi operator*(vi a, vi b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline vi operator^(vi a, vi b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N> inline vi shift_right(vi a) { return {_mm512_srli_epi32(a.v, N)}; }
inline vf halved_to_float(vi a) { return {_mm512_cvtepi32_ps(_mm512_srli_epi32(a.v, 1))}; }
inline vf from_whole_bits(vf a) { return {_mm512_castsi512_ps(_mm512_cvtps_epi32(a.v))}; }
inline uint32_t where_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
inline uint32_t where_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
inline uint32_t where_nan(vf a, vf b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }
inline vf keep_ge(vf x, vf a, vf b) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ), x.v)};
}
inline vf load_first(const float* p, int64_t count, float fill) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), __mmask16((1u << count) - 1), p)};
}
inline vi load_first(const uint32_t* p, int64_t count) {
    return {_mm512_maskz_loadu_epi32(__mmask16((1u << count) - 1), p)};
}
// Write what `mask` names, one after another; up to W elements past the last one are overwritten.
inline int64_t store_chosen(float* out, uint32_t* ids, vf y, vi id, uint32_t mask) {
    _mm512_storeu_ps(out, _mm512_maskz_compress_ps(__mmask16(mask), y.v));
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(__mmask16(mask), id.v));
    return __builtin_popcount(mask);
}

#else

#if defined(STOLON_AVX2)

struct vi { __m256i v; };
inline vi iload(const uint32_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
inline void istore(uint32_t* p, vi a) { _mm256_storeu_si256((__m256i*)p, a.v); }
inline vi iset(uint32_t x) { return {_mm256_set1_epi32(int(x))}; }
inline vi iota(uint32_t from) {
    return {_mm256_add_epi32(_mm256_set1_epi32(int(from)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))};
}
inline vi operator+(vi a, vi b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline vi operator*(vi a, vi b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
inline vi operator^(vi a, vi b) { return {_mm256_xor_si256(a.v, b.v)}; }
template <int N> inline vi shift_right(vi a) { return {_mm256_srli_epi32(a.v, N)}; }
inline vf halved_to_float(vi a) { return {_mm256_cvtepi32_ps(_mm256_srli_epi32(a.v, 1))}; }
inline vf from_whole_bits(vf a) { return {_mm256_castsi256_ps(_mm256_cvtps_epi32(a.v))}; }
inline uint32_t where_ge(vf a, vf b) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ))); }
inline uint32_t where_eq(vf a, vf b) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ))); }
inline uint32_t where_nan(vf a, vf b) {
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)));
}
inline vf keep_ge(vf x, vf a, vf b) { return {_mm256_and_ps(x.v, _mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ))}; }

#else

struct vi { uint32_t v[8]; };
#define STOLON_EACH(type, expression)                \
    type r;                                          \
    for (int i = 0; i < W; ++i) r.v[i] = expression; \
    return r
#define STOLON_WHERE(expression)                                         \
    uint32_t r = 0;                                                      \
    for (int i = 0; i < W; ++i) r |= uint32_t(expression ? 1 : 0) << i; \
    return r
inline vi iload(const uint32_t* p) { STOLON_EACH(vi, p[i]); }
inline void istore(uint32_t* p, vi a) { for (int i = 0; i < W; ++i) p[i] = a.v[i]; }
inline vi iset(uint32_t x) { STOLON_EACH(vi, x); }
inline vi iota(uint32_t from) { STOLON_EACH(vi, from + uint32_t(i)); }
inline vi operator+(vi a, vi b) { STOLON_EACH(vi, a.v[i] + b.v[i]); }
inline vi operator*(vi a, vi b) { STOLON_EACH(vi, a.v[i] * b.v[i]); }
inline vi operator^(vi a, vi b) { STOLON_EACH(vi, a.v[i] ^ b.v[i]); }
template <int N> inline vi shift_right(vi a) { STOLON_EACH(vi, a.v[i] >> N); }
inline vf halved_to_float(vi a) { STOLON_EACH(vf, float(int32_t(a.v[i] >> 1))); }
inline vf from_whole_bits(vf a) {
    vf r;
    for (int i = 0; i < W; ++i) {
        const int32_t bits = int32_t(a.v[i]);
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}
inline uint32_t where_ge(vf a, vf b) { STOLON_WHERE((a.v[i] >= b.v[i])); }
inline uint32_t where_eq(vf a, vf b) { STOLON_WHERE((a.v[i] == b.v[i])); }
inline uint32_t where_nan(vf a, vf b) { STOLON_WHERE((a.v[i] != a.v[i] || b.v[i] != b.v[i])); }
inline vf keep_ge(vf x, vf a, vf b) { STOLON_EACH(vf, a.v[i] >= b.v[i] ? x.v[i] : 0.0f); }
#undef STOLON_EACH
#undef STOLON_WHERE

#endif

inline vf load_first(const float* p, int64_t count, float fill) {
    float x[W];
    for (int i = 0; i < W; ++i) x[i] = i < count ? p[i] : fill;
    return vload(x);
}
inline vi load_first(const uint32_t* p, int64_t count) {
    uint32_t x[W];
    for (int i = 0; i < W; ++i) x[i] = i < count ? p[i] : 0;
    return iload(x);
}
inline int64_t store_chosen(float* out, uint32_t* ids, vf y, vi id, uint32_t mask) {
    float all[W];
    uint32_t all_ids[W];
    vstore(all, y);
    istore(all_ids, id);
    int64_t count = 0;
    for (; mask; mask &= mask - 1, ++count) {
        out[count] = all[__builtin_ctz(mask)];
        ids[count] = all_ids[__builtin_ctz(mask)];
    }
    return count;
}

#endif

// e^t for t <= 0, as vexp of simd.h, with one step for the exponent.
inline vf exp_below(vf t) {
    const vf low = vset(-87.33654f);
    vf x = vmax(t, low);
    const vf n = vround(x * vset(1.44269504088896341f));
    x = vfma(n, vset(-0.693359375f), x);
    x = vfma(n, vset(2.12194440e-4f), x);
    vf y = vset(1.9875691500e-4f);
    y = vfma(y, x, vset(1.3981999507e-3f));
    y = vfma(y, x, vset(8.3334519073e-3f));
    y = vfma(y, x, vset(4.1665795894e-2f));
    y = vfma(y, x, vset(1.6666665459e-1f));
    y = vfma(y, x, vset(5.0000001201e-1f));
    y = vfma(y, x * x, x + vset(1.0f));
    return keep_ge(vscale2(y, n), t, low);
}

STOLON_END
