// From scores to weights with AVX-512.
//
// Weights e^(score - top) / 2^64, in bf16, from integers. x = (score - top) * log2(e) in steps of 1/1024 is, but for an
// offset, the exponent and ten bits of fraction; a table bends the fraction f to 2^f - 1, and the last three bits are
// rounded away. The errors of the steps and of the table add a tenth to that of the rounding. What is below 2^-62 of
// the top, or isn't seen, becomes a subnormal number, which vdpbf16ps takes for zero. Sums and values are weighted
// alike, so the 2^64 is gone where one is divided by the other.
#pragma once

#include "attention_avx512.h"

STOLON_BEGIN

namespace {

// The positions of a span, a bit each.
struct SeenLanes {
    explicit SeenLanes(Span span) {
        const auto below = [](int n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << std::max(n, 0)) - 1; };
        for (int i = 0; i < kPositions / 64; ++i)
            bits[i] = below(span.high - 64 * i) & ~below(span.low - 64 * i);
    }
    __mmask16 at(int first) const { return __mmask16(bits[first / 64] >> first % 64); }
    uint64_t bits[kPositions / 64];
};

constexpr float kSteps = 1024 * 1.44269504f;
constexpr float kTop = 63 * 1024 + 4;  // of the weight at the top, and half of what is rounded away

struct Bend {
    alignas(64) uint16_t at[64];  // by the upper six bits of the fraction
    constexpr Bend() : at{} {
        for (int i = 0; i < 64; ++i) {
            const double f = (16 * i + 3.5) / 1024, x = f * 0.6931471805599453;
            double power = 1, term = 1;
            for (int n = 1; n < 16; ++n) power += term *= x / n;
            at[i] = uint16_t(1024 * (f + 1 - power) + 1);
        }
    }
};
constexpr Bend kBends;

// `top`: its steps, less kTop.
inline __m512i weights_of(__m512 x, __m512 y, __m512 top) {
    const __m512 steps = _mm512_set1_ps(kSteps);
    const __m512i a = _mm512_cvtps_epi32(_mm512_fmsub_ps(x, steps, top));
    const __m512i b = _mm512_cvtps_epi32(_mm512_fmsub_ps(y, steps, top));
    const __m512i t = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi32(a, b));
    const __m512i bend = _mm512_permutex2var_epi16(_mm512_load_si512(kBends.at), _mm512_srli_epi16(t, 4),
                                                   _mm512_load_si512(kBends.at + 32));
    return _mm512_srli_epi16(_mm512_subs_epu16(t, bend), 3);
}

// Of four rows at once, each in its own fixed order: the largest or the sum of all 16 lanes, [a b c d] four times.
template <bool kAdd>
inline __m512 join_lanes(__m512 a, __m512 b) {
    return kAdd ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
}
template <bool kAdd>
inline __m512 join_rows(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = join_lanes<kAdd>(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = join_lanes<kAdd>(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512d ab2 = _mm512_castps_pd(ab), cd2 = _mm512_castps_pd(cd);
    const __m512 all = join_lanes<kAdd>(_mm512_castpd_ps(_mm512_unpacklo_pd(ab2, cd2)),
                                        _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, cd2)));
    const __m512 half = join_lanes<kAdd>(all, _mm512_shuffle_f32x4(all, all, 0x4e));
    return join_lanes<kAdd>(half, _mm512_shuffle_f32x4(half, half, 0xb1));
}

// Weights of `count` rows for the positions of `seen`, zero for the rest of [begin, end). `peaks`: of rows that see all
// of the block, as score_tile left them; else null.
void weigh(float* scores, Factor* weights, const Span* seen, const Peak* peaks, int count, int begin, int end,
           float softcap, float* const* parts) {
    constexpr int kMost = kStacked + 4;
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    begin = begin / (2 * W) * (2 * W);
    if (softcap != 0.0f) {
        peaks = nullptr;
        for (int r = 0; r < count; ++r)
            for (float* x = scores + r * kPositions + begin; x < scores + r * kPositions + end; x += W)
                vstore(x, vset(softcap) * vtanh(vload(x) / vset(softcap)));
    }
    alignas(64) float tops[kMost], fixed[kMost], lanes[kMost][W];
    __mmask16 ordered[kMost];
    const auto group = [count](int first, int i) { return std::min(first + i, count - 1); };
    for (int first = 0; first < count; first += 4) {
        __m512 top[4];
        STOLON_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int r = group(first, i);
            if (peaks != nullptr) {
                top[i] = _mm512_load_ps(peaks[r].highest);
                ordered[first + i] = peaks[r].ordered;
                continue;
            }
            const SeenLanes in(seen[r]);
            const float* x = scores + r * kPositions;
            top[i] = lowest;
            ordered[first + i] = 0xffff;
            for (int at = begin; at < end; at += 2 * W) {
                const __m512 a = _mm512_mask_loadu_ps(lowest, in.at(at), x + at);
                const __m512 b = _mm512_mask_loadu_ps(lowest, in.at(at + W), x + at + W);
                ordered[first + i] = _mm512_mask_cmp_ps_mask(ordered[first + i], a, b, _CMP_ORD_Q);
                top[i] = _mm512_max_ps(top[i], _mm512_max_ps(a, b));
            }
        }
        const __m128 highest = _mm512_castps512_ps128(join_rows<false>(top[0], top[1], top[2], top[3]));
        _mm_store_ps(tops + first, highest);
        _mm_store_ps(fixed + first, _mm_sub_ps(_mm_mul_ps(highest, _mm_set1_ps(kSteps)), _mm_set1_ps(kTop)));
    }
    for (int r = 0; r < count; ++r) {
        const __m512 top = _mm512_set1_ps(fixed[r]);
        const float* x = scores + r * kPositions;
        __m512 sum = _mm512_setzero_ps();
        const auto pair = [&](int at, __m512 a, __m512 b) {
            const __m512i p = weights_of(a, b, top);
            _mm512_storeu_si512(weights + r * kPositions + at, p);
            sum = _mm512_dpbf16_ps(sum, (__m512bh)p, ones);
        };
        if (peaks != nullptr) {
            STOLON_UNROLL
            for (int at = 0; at < kPositions; at += 2 * W)
                pair(at, _mm512_loadu_ps(x + at), _mm512_loadu_ps(x + at + W));
        } else {
            const SeenLanes in(seen[r]);
            for (int at = begin; at < end; at += 2 * W)
                pair(at, _mm512_mask_loadu_ps(lowest, in.at(at), x + at),
                     _mm512_mask_loadu_ps(lowest, in.at(at + W), x + at + W));
        }
        _mm512_store_ps(lanes[r], sum);
    }
    for (int first = 0; first < count; first += 4) {
        const auto at = [&](int i) { return _mm512_load_ps(lanes[group(first, i)]); };
        alignas(16) float sums[4];
        _mm_store_ps(sums, _mm512_castps512_ps128(join_rows<true>(at(0), at(1), at(2), at(3))));
        for (int r = first; r < std::min(first + 4, count); ++r) {
            parts[r][0] = tops[r];
            parts[r][1] = ordered[r] == 0xffff ? sums[r - first] : NAN;
        }
    }
}

}  // namespace

STOLON_END
