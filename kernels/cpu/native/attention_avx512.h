// Scores and weighted values of a block with AVX-512: products of bf16 pairs. attention_partials.h says what has to
// hold.
#pragma once

#include <cstring>

#include "attention_blocks.h"

STOLON_BEGIN

namespace {

#if defined(STOLON_AMX)
constexpr int kMaxRows = 32;       // of a tile
constexpr int kFeatureStep = 32;   // features that are multiplied at once: what is missing is zeros
constexpr int kValueStep = 32;     // positions whose values are summed at once
#else
constexpr int kMaxRows = 6;
constexpr int kFeatureStep = 2;
constexpr int kValueStep = 2;
#endif
constexpr int kMaxVectors = 4;     // of a tile
using Key = uint32_t;            // pair of features
using Value = bf16;
using Factor = bf16;
using Query = bf16;
constexpr bool kConvertQueries = false;
#if defined(STOLON_AMX)
constexpr bool kFindsPeaks = false;
#else
constexpr bool kFindsPeaks = true;
#endif
constexpr int kChunk = kMaxVectors * W;  // positions whose keys lie together, features whose values do

inline uint32_t pair_at(const bf16* p) {
    uint32_t x;
    std::memcpy(&x, p, 4);
    return x;
}

// Eight pairs of features, from `feature` on, of sixteen rows to eight vectors of sixteen positions.
inline void turn_pairs(const bf16* const* rows, int64_t feature, __m512i* k) {
    const auto half = [&](int i) { return _mm256_loadu_si256((const __m256i*)(rows[i] + feature)); };
    __m512i x[8], y[8];
    STOLON_UNROLL
    for (int i = 0; i < 8; ++i) {
        const int row = i < 4 ? i : i + 4;
        x[i] = _mm512_inserti64x4(_mm512_castsi256_si512(half(row)), half(row + 4), 1);
    }
    STOLON_UNROLL
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    STOLON_UNROLL
    for (int i = 0; i < 8; i += 4) {  // rows of four in a lane: pairs j, 4 + j, and both again four rows on
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    STOLON_UNROLL
    for (int j = 0; j < 4; ++j) {
        k[j] = _mm512_shuffle_i32x4(x[j], x[j + 4], 0x88);
        k[j + 4] = _mm512_shuffle_i32x4(x[j], x[j + 4], 0xdd);
    }
}

alignas(64) const bf16 kZeros[kMaxHeadDim] = {};

// keys: [position / kChunk][pairs of features, in steps][kChunk].
void load_keys(const Source& s, Key* keys, Ahead& ahead) {
    const int pairs = s.head_dim / 2, eights = pairs / 8;
    for (int first = s.low / W * W; first < s.high; first += W) {
        const bf16* rows[W];
        for (int i = 0; i < W; ++i)
            rows[i] = first + i >= s.low && first + i < s.high ? s.k + s.slots[first + i] * s.stride : kZeros;
        Key* out = keys + int64_t(first / kChunk) * round_up(s.head_dim, kFeatureStep) / 2 * kChunk + first % kChunk;
        for (int eight = 0; eight < eights; ++eight) {
            __m512i k[8];
            turn_pairs(rows, 16 * eight, k);
            STOLON_UNROLL
            for (int i = 0; i < 8; ++i) _mm512_storeu_si512(out + int64_t(8 * eight + i) * kChunk, k[i]);
        }
        ahead.tick(2 * eights);
        for (int pair = eights * 8; pair < pairs; ++pair)
            for (int i = 0; i < W; ++i) out[int64_t(pair) * kChunk + i] = pair_at(rows[i] + 2 * pair);
    }
}

// values: [feature / kChunk][position / 2][features of the chunk][2].
void load_values(const Source& s, Value* values, Ahead& ahead) {
    alignas(64) static const uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                  8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kLow);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const int width = int(round_up(s.head_dim, W));
    const int begin = s.low / kValueStep * kValueStep, end = int(round_up(s.high, kValueStep));
    const auto row = [&s](int i) { return i >= s.low && i < s.high ? s.v + s.slots[i] * s.stride : kZeros; };
    for (int i = begin; i < end; i += 2) {
        const bf16 *a = row(i), *b = row(i + 1);
        Value* to = values + int64_t(i) * std::min(kChunk, width);
        int f = 0;
        for (; f + kChunk <= s.head_dim; f += kChunk, to += int64_t(kChunk) * kPositions) {
            STOLON_UNROLL
            for (int g = 0; g < kChunk; g += 32) {
                const __m512i x = _mm512_loadu_si512(a + f + g), y = _mm512_loadu_si512(b + f + g);
                _mm512_storeu_si512(to + 2 * g, _mm512_permutex2var_epi16(x, low, y));
                _mm512_storeu_si512(to + 2 * g + 32, _mm512_permutex2var_epi16(x, high, y));
            }
        }
        to = values + int64_t(f) * kPositions + int64_t(i) * (width - f);  // the last chunk may be narrower
        for (; f < width; f += 32, to += 64) {
            const int left = s.head_dim - f;
            const __mmask32 in = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
            const __m512i x = _mm512_maskz_loadu_epi16(in, a + f), y = _mm512_maskz_loadu_epi16(in, b + f);
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(x, low, y));
            if (f + W < width) _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(x, high, y));
        }
        if (i % 8 == 6) ahead.tick(4);
    }
}

// What a row's scores are measured against, found on the way: the highest of each lane, and the lanes without a NaN.
struct Peak {
    alignas(64) float highest[W];
    __mmask16 ordered;
};

// `peaks`: of blocks that are seen whole, begun by `first`; else null.
template <int R, int V>
void score_tile(const Query* const* q, const Key* keys, int head_dim, float* scores, Peak* peaks, bool first,
                Ahead& ahead) {
    __m512 sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    const bf16* queries[R];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) queries[r] = q[r];
    for (int pair = 0; pair < head_dim / 2; ++pair) {
        ahead.tick();
        __m512bh k[V];
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) k[v] = (__m512bh)_mm512_loadu_si512(keys + int64_t(pair) * kChunk + v * W);
        STOLON_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32(int(pair_at(queries[r] + 2 * pair)));
            STOLON_UNROLL
            for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], x, k[v]);
        }
    }
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) _mm512_storeu_ps(scores + r * kPositions + v * W, sum[r][v]);
    }
    if constexpr (V == kMaxVectors) {
        if (peaks == nullptr) return;
        STOLON_UNROLL
        for (int r = 0; r < R; ++r) {
            const __mmask16 known = first ? __mmask16(0xffff) : peaks[r].ordered;
            const __mmask16 half = _mm512_mask_cmp_ps_mask(known, sum[r][0], sum[r][1], _CMP_ORD_Q);
            peaks[r].ordered = _mm512_mask_cmp_ps_mask(half, sum[r][2], sum[r][3], _CMP_ORD_Q);
            __m512 top = _mm512_max_ps(_mm512_max_ps(sum[r][0], sum[r][1]), _mm512_max_ps(sum[r][2], sum[r][3]));
            if (!first) top = _mm512_max_ps(top, _mm512_load_ps(peaks[r].highest));
            _mm512_store_ps(peaks[r].highest, top);
        }
    }
}

// Values weighted over positions [begin, end), `add`: to what `out` holds. Returns whether every sum is finite.
template <int R, int V>
bool value_tile(const Factor* weights, const Value* values, int row_width, int begin, int end, float* const* out,
                bool add, Ahead& ahead) {
    __m512 sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = add ? _mm512_loadu_ps(out[r] + v * W) : _mm512_setzero_ps();
    }
    for (int pair = begin / 2; 2 * pair < end; ++pair) {
        ahead.tick();
        __m512bh x[V];
        STOLON_UNROLL
        for (int v = 0; v < V; ++v)
            x[v] = (__m512bh)_mm512_loadu_si512(values + (int64_t(pair) * row_width + v * W) * 2);
        STOLON_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m512bh p = (__m512bh)_mm512_set1_epi32(int(pair_at(weights + r * kPositions + 2 * pair)));
            STOLON_UNROLL
            for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], p, x[v]);
        }
    }
    __m512 odd = _mm512_setzero_ps();  // x - x is not 0 for an infinity or NaN
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) {
            odd = _mm512_or_ps(odd, _mm512_sub_ps(sum[r][v], sum[r][v]));
            _mm512_storeu_ps(out[r] + v * W, _mm512_add_ps(sum[r][v], _mm512_setzero_ps()));
        }
    }
    return _mm512_test_epi32_mask(_mm512_castps_si512(odd), _mm512_castps_si512(odd)) == 0;
}

}  // namespace

STOLON_END
