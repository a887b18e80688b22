// Blocks that few rows need, with AVX-512: put in order in registers, nothing stored in between.
#pragma once

#include "attention_avx512.h"

STOLON_BEGIN

namespace {

// For a few rows a block is put in order in registers on the way to its one use. Term by term the same sums as
// score_tile's and value_tile's.
constexpr int kDirectRows = 8;

// Scores of 16 V positions, rows[0..16 V) of keys from `feature` on; head_dim is a multiple of 16. Of next[0..16 V) the
// same features are brought near.
template <int R, int V>
void score_direct(const Query* const* q, const bf16* const* rows, const bf16* const* next, int64_t feature,
                  int head_dim, float* scores, Ahead& ahead) {
    __m512 sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    for (int f = 0; f < head_dim; f += 16) {
        ahead.tick(4 * V);
        STOLON_UNROLL
        for (int i = 0; i < 8 * V; ++i)  // of each row, line by line
            __builtin_prefetch(next[(f / 2 * V + i) % (W * V)] + feature + f / 32 * 32);
        __m512i k[V][8];  // positions, pairs of features
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) turn_pairs(rows + v * W, feature + f, k[v]);
        STOLON_UNROLL
        for (int pair = 0; pair < 8; ++pair) {
            STOLON_UNROLL
            for (int r = 0; r < R; ++r) {
                const __m512bh x = (__m512bh)_mm512_set1_epi32(int(pair_at(q[r] + f + 2 * pair)));
                STOLON_UNROLL
                for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], x, (__m512bh)k[v][pair]);
            }
        }
    }
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) _mm512_storeu_ps(scores + r * kPositions + v * W, sum[r][v]);
    }
}

// 32 C features of the values weighted over positions [2 begin, 2 end), rows[2 begin..) from `feature` on. The rows
// kNear further on are pointers, too.
constexpr int kNear = 16;
template <int R, int C>
bool value_direct(const Factor* weights, const bf16* const* rows, int64_t feature, int begin, int end,
                  float* const* out, Ahead& ahead) {
    __m512 sum[R][2 * C];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < 2 * C; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    for (int pair = begin; pair < end; ++pair) {
        ahead.tick(C);
        const bf16 *a = rows[2 * pair] + feature, *b = rows[2 * pair + 1] + feature;
        STOLON_UNROLL
        for (int c = 0; c < C; ++c) {
            __builtin_prefetch(rows[2 * pair + kNear] + feature + 32 * c);
            __builtin_prefetch(rows[2 * pair + kNear + 1] + feature + 32 * c);
        }
        __m512bh x[2 * C];
        STOLON_UNROLL
        for (int c = 0; c < C; ++c) {
            const __m512i near = _mm512_loadu_si512(a + 32 * c), far = _mm512_loadu_si512(b + 32 * c);
            x[2 * c] = (__m512bh)_mm512_unpacklo_epi16(near, far);
            x[2 * c + 1] = (__m512bh)_mm512_unpackhi_epi16(near, far);
        }
        STOLON_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m512bh p = (__m512bh)_mm512_set1_epi32(int(pair_at(weights + r * kPositions + 2 * pair)));
            STOLON_UNROLL
            for (int v = 0; v < 2 * C; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], p, x[v]);
        }
    }
    // Of every 8 features the first vector holds four, the second the others.
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m512 odd = _mm512_setzero_ps();  // x - x is not 0 for an infinity or NaN
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int c = 0; c < C; ++c) {
            const __m512 x = _mm512_add_ps(sum[r][2 * c], _mm512_setzero_ps());
            const __m512 y = _mm512_add_ps(sum[r][2 * c + 1], _mm512_setzero_ps());
            odd = _mm512_or_ps(odd, _mm512_or_ps(_mm512_sub_ps(x, x), _mm512_sub_ps(y, y)));
            _mm512_storeu_ps(out[r] + 32 * c, _mm512_permutex2var_ps(x, first, y));
            _mm512_storeu_ps(out[r] + 32 * c + W, _mm512_permutex2var_ps(x, second, y));
        }
    }
    return _mm512_test_epi32_mask(_mm512_castps_si512(odd), _mm512_castps_si512(odd)) == 0;
}

using ScoreDirect = void (*)(const Query* const*, const bf16* const*, const bf16* const*, int64_t, int, float*, Ahead&);
using ValueDirect = bool (*)(const Factor*, const bf16* const*, int64_t, int, int, float* const*, Ahead&);

struct Direct {
    ScoreDirect scores[kDirectRows][2];  // of 16 positions, of positions[rows - 1]
    ValueDirect values[kDirectRows];  // of features[rows - 1] features
    int positions[kDirectRows];
    int features[kDirectRows];
    template <int R = 1>
    constexpr void fill() {
        constexpr int kHalves = R <= 6 ? 2 : 1;
        constexpr int kVectors = R <= 4 ? 2 : 1;
        scores[R - 1][0] = score_direct<R, 1>;
        scores[R - 1][1] = score_direct<R, kVectors>;
        positions[R - 1] = kVectors * W;
        values[R - 1] = value_direct<R, kHalves>;
        features[R - 1] = 32 * kHalves;
        if constexpr (R < kDirectRows) fill<R + 1>();
    }
    constexpr Direct() : scores{}, values{}, positions{}, features{} { fill(); }
};
constexpr Direct kDirect;

}  // namespace

STOLON_END
