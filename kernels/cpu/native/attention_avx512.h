// Scores, weights and values of a block with AVX-512: products of bf16 pairs. attention.cpp says what has to hold.
#pragma once

#include <cstring>

#include "attention_blocks.h"

STOLON_BEGIN

namespace {

constexpr int kMaxRows = 6;        // of a tile
constexpr int kMaxVectors = 4;     // of a tile
using Key = uint32_t;            // pair of features
using Value = bf16;
using Factor = bf16;
using Query = bf16;
constexpr int kChunk = kMaxVectors * W;  // positions whose keys lie together, features whose values do

inline uint32_t pair_at(const bf16* p) {
    uint32_t x;
    std::memcpy(&x, p, 4);
    return x;
}

// Four pairs of features, from `feature` on, of sixteen rows to four vectors of sixteen positions.
inline void transpose_pairs(const bf16* const* rows, int64_t feature, __m512i& k0, __m512i& k1, __m512i& k2,
                            __m512i& k3) {
    const auto four = [&](int first) {  // of rows 0, 4, 8 and 12 from `first` on
        const auto at = [&](int i) { return _mm_loadu_si128((const __m128i*)(rows[first + i] + feature)); };
        __m512i x = _mm512_castsi128_si512(at(0));
        x = _mm512_mask_broadcast_i32x4(x, 0x00f0, at(4));
        x = _mm512_mask_broadcast_i32x4(x, 0x0f00, at(8));
        return _mm512_mask_broadcast_i32x4(x, 0xf000, at(12));
    };
    const __m512i x0 = four(0), x1 = four(1), x2 = four(2), x3 = four(3);
    const __m512i a = _mm512_unpacklo_epi32(x0, x1), b = _mm512_unpacklo_epi32(x2, x3);
    const __m512i c = _mm512_unpackhi_epi32(x0, x1), d = _mm512_unpackhi_epi32(x2, x3);
    k0 = _mm512_unpacklo_epi64(a, b);
    k1 = _mm512_unpackhi_epi64(a, b);
    k2 = _mm512_unpacklo_epi64(c, d);
    k3 = _mm512_unpackhi_epi64(c, d);
}

alignas(64) const bf16 kZeros[kMaxHeadDim] = {};

// keys: [position / kChunk][head_dim / 2][kChunk] pairs of features.
void load_keys(const Source& s, Key* keys, Ahead& ahead) {
    const int pairs = s.head_dim / 2, quads = pairs / 4;
    for (int first = s.low / W * W; first < s.high; first += W) {
        const bf16* rows[W];
        for (int i = 0; i < W; ++i)
            rows[i] = first + i >= s.low && first + i < s.high ? s.k + s.slots[first + i] * s.stride : kZeros;
        Key* out = keys + int64_t(first / kChunk) * pairs * kChunk + first % kChunk;
        for (int quad = 0; quad < quads; ++quad) {
            ahead.tick();
            __m512i k[4];
            transpose_pairs(rows, 8 * quad, k[0], k[1], k[2], k[3]);
            STOLON_UNROLL
            for (int i = 0; i < 4; ++i) _mm512_storeu_si512(out + int64_t(4 * quad + i) * kChunk, k[i]);
        }
        for (int pair = quads * 4; pair < pairs; ++pair)
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
    const int begin = s.low / 2 * 2, end = int(round_up(s.high, 2));
    const auto row = [&s](int i) { return i >= s.low && i < s.high ? s.v + s.slots[i] * s.stride : kZeros; };
    const bool inside = s.low == begin && s.high == end;
    for (int chunk = 0; chunk < width; chunk += kChunk) {
        const int chunk_width = std::min(kChunk, width - chunk);
        Value* to = values + int64_t(chunk) * kPositions + int64_t(begin) * chunk_width;
        for (int i = begin; i < end; i += 2, to += 2 * chunk_width) {
            ahead.tick();
            const bf16* a = (inside ? s.v + s.slots[i] * s.stride : row(i)) + chunk;
            const bf16* b = (inside ? s.v + s.slots[i + 1] * s.stride : row(i + 1)) + chunk;
            if (chunk + kChunk <= s.head_dim) {
                STOLON_UNROLL
                for (int f = 0; f < kChunk; f += 32) {
                    const __m512i x = _mm512_loadu_si512(a + f), y = _mm512_loadu_si512(b + f);
                    _mm512_storeu_si512(to + 2 * f, _mm512_permutex2var_epi16(x, low, y));
                    _mm512_storeu_si512(to + 2 * f + 32, _mm512_permutex2var_epi16(x, high, y));
                }
                continue;
            }
            for (int f = 0; f < chunk_width; f += 32) {
                const int left = s.head_dim - chunk - f;
                const __mmask32 in = left >= 32 ? ~__mmask32(0) : (__mmask32(1) << left) - 1;
                const __m512i x = _mm512_maskz_loadu_epi16(in, a + f), y = _mm512_maskz_loadu_epi16(in, b + f);
                _mm512_storeu_si512(to + 2 * f, _mm512_permutex2var_epi16(x, low, y));
                if (f + W < chunk_width) _mm512_storeu_si512(to + 2 * f + 32, _mm512_permutex2var_epi16(x, high, y));
            }
        }
    }
}

template <int R, int V>
void score_tile(const Query* const* q, const Key* keys, int head_dim, float* scores, Ahead& ahead) {
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

// Lanes of the vector that starts at `first` which lie in [low, high).
inline __mmask16 lanes_within(int first, int low, int high) {
    const uint32_t below = high - first >= 16 ? 0xffffu : high <= first ? 0u : (1u << (high - first)) - 1;
    const uint32_t under = low - first >= 16 ? 0xffffu : low <= first ? 0u : (1u << (low - first)) - 1;
    return __mmask16(below & ~under);
}

// 2^x for x <= 0, 1 at 0: relative error below 1e-4, far below the rounding of a weight to bf16.
inline __m512 exp2_of(__m512 x) {
    const __m512 t = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // in [0, 1)
    __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(7.706706e-2f), t, _mm512_set1_ps(2.2764498e-1f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(6.9511679e-1f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, x);  // by the floor of x
}

// Sums of 16 in a fixed order, and the largest of 16.
inline float total_of(__m512 x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
inline float largest_of(__m512 x) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

// e^(score - top) of 32 positions, rounded. `exponent_of_top` is top * log2(e), rounded: the weights of a row all
// err by that factor, which is no more than the rounding of top itself makes.
inline __m512bh weights_of(__m512 x, __m512 y, __m512 exponent_of_top) {
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    return _mm512_cvtne2ps_pbh(exp2_of(_mm512_fmsub_ps(y, log2e, exponent_of_top)),
                               exp2_of(_mm512_fmsub_ps(x, log2e, exponent_of_top)));
}

// Weights of a row that sees the first `high` positions, the last of which lies in the N-th vector. Zero for what
// follows them in a pair of vectors.
template <int N>
void weigh_first(const float* scores, Factor* weights, int high, float* m, float* l) {
    constexpr int kPairs = (N + 1) / 2;
    const __mmask16 last = __mmask16(0xffffu >> (N * W - high));
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 x[2 * kPairs];
    STOLON_UNROLL
    for (int v = 0; v < N - 1; ++v) x[v] = _mm512_loadu_ps(scores + v * W);
    x[N - 1] = _mm512_mask_loadu_ps(lowest, last, scores + (N - 1) * W);
    if constexpr (N % 2) x[N] = lowest;
    __m512 top[kPairs];
    STOLON_UNROLL
    for (int i = 0; i < kPairs; ++i) top[i] = _mm512_max_ps(x[2 * i], x[2 * i + 1]);
    STOLON_UNROLL
    for (int i = 1; i < kPairs; ++i) top[0] = _mm512_max_ps(top[0], top[i]);
    const float highest = largest_of(top[0]);
    const __m512 exponent_of_top = _mm512_mul_ps(_mm512_set1_ps(highest), _mm512_set1_ps(1.44269504f));
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    STOLON_UNROLL
    for (int i = 0; i < kPairs; ++i) {
        const __m512bh p = weights_of(x[2 * i], x[2 * i + 1], exponent_of_top);
        _mm512_storeu_si512(weights + i * 2 * W, (__m512i)p);
        sum = _mm512_dpbf16_ps(sum, p, ones);
    }
    *m = highest;
    *l = total_of(sum);
}

using WeighFirst = void (*)(const float*, Factor*, int, float*, float*);
constexpr WeighFirst kWeighFirst[kPositions / W] = {weigh_first<1>, weigh_first<2>, weigh_first<3>, weigh_first<4>,
                                                    weigh_first<5>, weigh_first<6>, weigh_first<7>, weigh_first<8>};

// Weights of a row for the positions [low, high) that it sees, zero for the rest of [begin, end).
void weigh(float* scores, Factor* weights, int low, int high, int begin, int end, float softcap, float* m, float* l) {
    if (low == 0 && softcap == 0.0f) {
        kWeighFirst[(high - 1) / W](scores, weights, high, m, l);
        for (int i = int(round_up(high, 2 * W)); i < end; i += 2 * W)
            _mm512_storeu_si512(weights + i, _mm512_setzero_si512());
        return;
    }
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 top = lowest;
    for (int i = low / W * W; i < high; i += W) {
        const __mmask16 seen = lanes_within(i, low, high);
        vf s{_mm512_mask_loadu_ps(lowest, seen, scores + i)};
        if (softcap != 0.0f) {
            s = vset(softcap) * vtanh(s / vset(softcap));
            vstore(scores + i, s);
        }
        top = _mm512_mask_max_ps(top, seen, top, s.v);
    }
    const float highest = largest_of(top);
    const __m512 exponent_of_top = _mm512_mul_ps(_mm512_set1_ps(highest), _mm512_set1_ps(1.44269504f));
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    for (int i = begin / (2 * W) * (2 * W); i < end; i += 2 * W) {
        const __m512 x = _mm512_mask_loadu_ps(lowest, lanes_within(i, low, high), scores + i);
        const __m512 y = _mm512_mask_loadu_ps(lowest, lanes_within(i + W, low, high), scores + i + W);
        const __m512bh p = weights_of(x, y, exponent_of_top);
        _mm512_storeu_si512(weights + i, (__m512i)p);
        sum = _mm512_dpbf16_ps(sum, p, ones);
    }
    *m = highest;
    *l = total_of(sum);
}

constexpr bool kConvertQueries = false;

}  // namespace

STOLON_END
