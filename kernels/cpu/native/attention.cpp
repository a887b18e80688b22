// Attention over the paged cache, as attention_plan.h divides it.
//
// The partial of a row over a block of kKvBlock positions is a maximum m, weights p = e^(score - m), their
// sum l and the values weighted by them, o. It is computed from stacked rows (rows times the query heads of
// one kv head), a tile of a few at a time, keys and values of the block having been brought into order:
//
//   scores   a vector is a run of positions; summed over the features, in their order
//   o        a vector is a run of features; summed over the positions, in their order
//
// so every element is one chain of operations that no tile size changes. With AVX-512 both sums go by pairs
// (vdpbf16ps): features 2i and 2i+1, positions 2i and 2i+1. The weights are rounded to bf16 for it and l
// is the sum of the rounded ones: they add up to one exactly, and what rounding does to a weighted mean
// shrinks with the spread of the values. The other builds keep weights in float32.
//
// A position that a row doesn't see has weight 0, and a value that is read is finite (where a sum is not, rows
// are taken one by one, see `partials`), so it adds +0 or -0, which changes no sum but the sign of a zero; that
// sign is taken away at the end of the block. Hence what is masked adds exactly nothing.
#include <algorithm>

#include "attention_plan.h"
#include "isa.h"
#include "kernels.h"
#include "simd.h"

STOLON_BEGIN

namespace {

// The accumulators of a tile stay in registers only where the loops over them are unrolled early.
#define STOLON_UNROLL _Pragma("GCC unroll 8")

constexpr int kPositions = int(kKvBlock);
constexpr int kValuesAtOnce = 32;  // positions
constexpr int kState = 16;  // offset of the values in a state or partial: {m, l, padding, values}

// One stacked row.
struct Row {
    const bf16* q;
    int64_t position;
    float* state;
    float* out;
};

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// Slots of one block for one kv head: positions [low, high) of it are loaded, the others are zero.
struct Source {
    const bf16* k;
    const bf16* v;
    int64_t stride;  // from slot to slot
    const int64_t* slots;
    int low, high;
    int head_dim;

    Source part(int first, int count) const {
        Source s = *this;
        s.slots += first;
        s.low = std::max(0, low - first);
        s.high = std::min(count, high - first);
        return s;
    }
};

// The keys and values that are wanted next, brought near while others are computed with: a block's rows lie
// anywhere in the cache, so hardware doesn't see them coming.
struct Ahead {
    Source source{};
    int64_t width = 0;  // features: those of all kv heads of the item
    int next = 0, end = 0;
    int step = 0;  // rows at a time: a block is fetched in about as many steps as another is computed in

    void fetch() {
        for (const int stop = std::min(end, next + step); next < stop; ++next) {
            const int64_t at = source.slots[next] * source.stride;
            for (int64_t f = 0; f < width; f += 32) {
                __builtin_prefetch(source.k + at + f, 0, 2);
                __builtin_prefetch(source.v + at + f, 0, 2);
            }
        }
    }
};

#if defined(STOLON_AVX512)

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

// Four pairs of features of eight rows to four vectors of eight positions, kChunk apart. By half registers:
// inserts from memory and 256-bit shuffles, two a cycle, are faster than moving lanes of 512 bits.
inline void transpose_pairs(const bf16* const* rows, int64_t feature, Key* out) {
    __m256i x[4];
    for (int i = 0; i < 4; ++i) {
        const __m128i near = _mm_loadu_si128((const __m128i*)(rows[i] + feature));
        const __m128i far = _mm_loadu_si128((const __m128i*)(rows[i + 4] + feature));
        x[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(near), far, 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpacklo_epi32(x[2], x[3]);
    const __m256i c = _mm256_unpackhi_epi32(x[0], x[1]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    _mm256_storeu_si256((__m256i*)out, _mm256_unpacklo_epi64(a, b));
    _mm256_storeu_si256((__m256i*)(out + kChunk), _mm256_unpackhi_epi64(a, b));
    _mm256_storeu_si256((__m256i*)(out + 2 * kChunk), _mm256_unpacklo_epi64(c, d));
    _mm256_storeu_si256((__m256i*)(out + 3 * kChunk), _mm256_unpackhi_epi64(c, d));
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
        ahead.fetch();
        for (int half = 0; half < W; half += 8)
            for (int quad = 0; quad < quads; ++quad)
                transpose_pairs(rows + half, 8 * quad, out + int64_t(quad) * 4 * kChunk + half);
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
            if (i % 16 == 0) ahead.fetch();
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
void score_tile(const Query* const* q, const Key* keys, int head_dim, float* scores) {
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
                bool add) {
    __m512 sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = add ? _mm512_loadu_ps(out[r] + v * W) : _mm512_setzero_ps();
    }
    for (int pair = begin / 2; 2 * pair < end; ++pair) {
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

// 2^x for x <= 0 (relative error below 4e-6, far below the rounding of a weight; 1 at 0).
inline __m512 exp2_of(__m512 x) {
    const __m512 t = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(9.58285294e-3f), t, _mm512_set1_ps(5.59064262e-2f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(2.40240991e-1f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(6.93124175e-1f));
    y = _mm512_fmadd_ps(y, t, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, _mm512_sub_ps(x, t));
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

// Weights of a row that sees the whole block: the same operations as below without the masks.
void weigh_all(const float* scores, Factor* weights, float* m, float* l) {
    constexpr int kVectors = kPositions / W;
    __m512 x[kVectors];
    STOLON_UNROLL
    for (int v = 0; v < kVectors; ++v) x[v] = _mm512_loadu_ps(scores + v * W);
    const __m512 top = _mm512_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])),
                                     _mm512_max_ps(_mm512_max_ps(x[4], x[5]), _mm512_max_ps(x[6], x[7])));
    const float highest = largest_of(top);
    const __m512 base = _mm512_set1_ps(highest), log2e = _mm512_set1_ps(1.44269504f);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    STOLON_UNROLL
    for (int v = 0; v < kVectors; v += 2) {
        const __m512 p = exp2_of(_mm512_mul_ps(_mm512_sub_ps(x[v], base), log2e));
        const __m512 q = exp2_of(_mm512_mul_ps(_mm512_sub_ps(x[v + 1], base), log2e));
        const __m512bh rounded = _mm512_cvtne2ps_pbh(q, p);
        _mm512_storeu_si512(weights + v * W, (__m512i)rounded);
        sum = _mm512_dpbf16_ps(sum, rounded, ones);
    }
    *m = highest;
    *l = total_of(sum);
}

// Weights of a row for the positions [low, high) that it sees, zero for the rest of [begin, end).
void weigh(float* scores, Factor* weights, int low, int high, int begin, int end, float softcap, float* m, float* l) {
    if (low == 0 && high == kPositions && softcap == 0.0f) return weigh_all(scores, weights, m, l);
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int i = low / W * W; i < high; i += W) {
        const __mmask16 seen = lanes_within(i, low, high);
        vf s{_mm512_maskz_loadu_ps(seen, scores + i)};
        if (softcap != 0.0f) {
            s = vset(softcap) * vtanh(s / vset(softcap));
            vstore(scores + i, s);
        }
        top = _mm512_mask_max_ps(top, seen, top, s.v);
    }
    const float highest = largest_of(top);
    const __m512 base = _mm512_set1_ps(highest), log2e = _mm512_set1_ps(1.44269504f);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps();
    for (int i = begin / (2 * W) * (2 * W); i < end; i += 2 * W) {
        __m512 p[2];
        for (int v = 0; v < 2; ++v) {
            const __mmask16 seen = lanes_within(i + v * W, low, high);
            const __m512 s = _mm512_maskz_loadu_ps(seen, scores + i + v * W);
            p[v] = _mm512_maskz_mov_ps(seen, exp2_of(_mm512_mul_ps(_mm512_sub_ps(s, base), log2e)));
        }
        const __m512bh rounded = _mm512_cvtne2ps_pbh(p[1], p[0]);
        _mm512_storeu_si512(weights + i, (__m512i)rounded);
        sum = _mm512_dpbf16_ps(sum, rounded, ones);
    }
    *m = highest;
    *l = total_of(sum);
}

constexpr bool kConvertQueries = false;

#else

#if defined(STOLON_AVX2)
constexpr int kMaxRows = 6;
#else
constexpr int kMaxRows = 2;
#endif
constexpr int kMaxVectors = 2;
using Key = float;
using Value = float;
using Factor = float;
using Query = float;
constexpr int kChunk = kMaxVectors * W;

// keys: [position / kChunk][head_dim][kChunk].
void load_keys(const Source& s, Key* keys, Ahead& ahead) {
    for (int first = s.low / W * W; first < s.high; first += W) {
        float* out = keys + int64_t(first / kChunk) * s.head_dim * kChunk + first % kChunk;
        ahead.fetch();
        int f = 0;
#if defined(STOLON_AVX2)
        for (; f + W <= s.head_dim; f += W) {
            __m256 x[W], y[W];
            for (int i = 0; i < W; ++i) {
                const bool in = first + i >= s.low && first + i < s.high;
                x[i] = in ? vload_bf16(s.k + s.slots[first + i] * s.stride + f).v : _mm256_setzero_ps();
            }
            for (int i = 0; i < W; i += 2) {
                y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
                y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
            }
            for (int i = 0; i < W; i += 4) {
                x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
                x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
                x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
                x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
            }
            for (int i = 0; i < 4; ++i) {
                _mm256_storeu_ps(out + (f + i) * kChunk, _mm256_permute2f128_ps(x[i], x[i + 4], 0x20));
                _mm256_storeu_ps(out + (f + i + 4) * kChunk, _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
            }
        }
#endif
        for (int i = 0; i < W; ++i) {
            const bool in = first + i >= s.low && first + i < s.high;
            const bf16* k = in ? s.k + s.slots[first + i] * s.stride : nullptr;
            for (int g = f; g < s.head_dim; ++g) out[g * kChunk + i] = in ? float_of(k[g]) : 0.0f;
        }
    }
}

// values: [feature / kChunk][position][features of the chunk].
void load_values(const Source& s, Value* values, Ahead& ahead) {
    const int width = int(round_up(s.head_dim, W));
    for (int i = s.low; i < s.high; ++i) {
        const bf16* v = s.v + s.slots[i] * s.stride;
        if (i % 16 == 0) ahead.fetch();
        for (int f = 0; f < width; f += W) {
            const int chunk = f / kChunk * kChunk;
            float* to = values + int64_t(chunk) * kPositions + int64_t(i) * std::min(kChunk, width - chunk) + f - chunk;
            if (f + W <= s.head_dim) {
                vstore(to, vload_bf16(v + f));
            } else {
                for (int g = 0; g < W; ++g) to[g] = f + g < s.head_dim ? float_of(v[f + g]) : 0.0f;
            }
        }
    }
}

template <int R, int V>
void score_tile(const Query* const* q, const Key* keys, int head_dim, float* scores) {
    vf sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = vset(0.0f);
    }
    for (int f = 0; f < head_dim; ++f) {
        vf k[V];
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) k[v] = vload(keys + f * kChunk + v * W);
        STOLON_UNROLL
        for (int r = 0; r < R; ++r) {
            const vf x = vset(q[r][f]);
            STOLON_UNROLL
            for (int v = 0; v < V; ++v) sum[r][v] = vfma(x, k[v], sum[r][v]);
        }
    }
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) vstore(scores + r * kPositions + v * W, sum[r][v]);
    }
}

// Values weighted over positions [begin, end), `add`: to what `out` holds. Returns whether every sum is finite.
template <int R, int V>
bool value_tile(const Factor* weights, const Value* values, int row_width, int begin, int end, float* const* out,
                bool add) {
    vf sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = add ? vload(out[r] + v * W) : vset(0.0f);
    }
    for (int i = begin; i < end; ++i) {
        vf x[V];
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) x[v] = vload(values + int64_t(i) * row_width + v * W);
        STOLON_UNROLL
        for (int r = 0; r < R; ++r) {
            const vf p = vset(weights[r * kPositions + i]);
            STOLON_UNROLL
            for (int v = 0; v < V; ++v) sum[r][v] = vfma(p, x[v], sum[r][v]);
        }
    }
    vf odd = vset(0.0f);  // x * 0 is not 0 for an infinity or NaN
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) {
            odd = vfma(sum[r][v], vset(0.0f), odd);
            vstore(out[r] + v * W, sum[r][v] + vset(0.0f));
        }
    }
    return vsum(odd) == 0.0f;
}

// Weights of a row for the positions [low, high) that it sees, zero for the rest of [begin, end).
void weigh(float* scores, Factor* weights, int low, int high, int begin, int end, float softcap, float* m, float* l) {
    const int first = low / W * W, last = int(round_up(high, W));
    for (int i = first; i < low; ++i) scores[i] = -INFINITY;
    for (int i = high; i < last; ++i) scores[i] = -INFINITY;
    vf top = vset(-INFINITY);
    for (int i = first; i < last; i += W) {
        vf s = vload(scores + i);
        if (softcap != 0.0f) {
            s = vset(softcap) * vtanh(s / vset(softcap));
            vstore(scores + i, s);
            for (int j = i; j < low; ++j) scores[j] = -INFINITY;
            for (int j = high; j < i + W; ++j) scores[j] = -INFINITY;
            s = vload(scores + i);
        }
        top = vmax(top, s);
    }
    const float highest = vhigh(top);
    vf sum = vset(0.0f);
    for (int i = begin / W * W; i < first; i += W) vstore(weights + i, vset(0.0f));
    for (int i = first; i < last; i += W) {
        vf p = vexp(vload(scores + i) - vset(highest));
        sum = sum + p;
        vstore(weights + i, p);
    }
    for (int i = last; i < end; i += W) vstore(weights + i, vset(0.0f));
    *m = highest;
    *l = vsum(sum);
}

constexpr bool kConvertQueries = true;

#endif

using ScoreTile = void (*)(const Query* const*, const Key*, int, float*);
using ValueTile = bool (*)(const Factor*, const Value*, int, int, int, float* const*, bool);

template <int R, int... V>
constexpr void fill_row(ScoreTile* scores, ValueTile* values) {
    ((scores[V - 1] = score_tile<R, V>, values[V - 1] = value_tile<R, V>), ...);
}

struct Tiles {
    ScoreTile scores[kMaxRows][kMaxVectors];
    ValueTile values[kMaxRows][kMaxVectors];
    template <int R = 1>
    constexpr void fill() {
#if defined(STOLON_AVX512)
        fill_row<R, 1, 2, 3, 4>(scores[R - 1], values[R - 1]);
#else
        fill_row<R, 1, 2>(scores[R - 1], values[R - 1]);
#endif
        if constexpr (R < kMaxRows) fill<R + 1>();
    }
    constexpr Tiles() : scores{}, values{} { fill(); }
};
constexpr Tiles kTiles;

// state <- state + partial, for up to kTileRows rows: the one formula by which blocks are joined.
void join(float* const* states, const float* const* partials, int count, int head_dim) {
    alignas(64) float gap[kTileRows + W];
    for (int i = 0; i < count; ++i) gap[i] = -std::fabs(states[i][0] - partials[i][0]);
    for (int i = count; i < int(round_up(count, W)); ++i) gap[i] = 0.0f;
    for (int i = 0; i < count; i += W) vstore(gap + i, vexp(vload(gap + i)));
    for (int i = 0; i < count; ++i) {
        float* state = states[i];
        const float* part = partials[i];
        const bool rises = part[0] > state[0];
        const vf factor = vset(gap[i]);
        const float smaller = rises ? state[1] : part[1], larger = rises ? part[1] : state[1];
        state[1] = smaller * gap[i] + larger;
        if (rises) {
            state[0] = part[0];
            for (int f = kState; f < kState + head_dim; f += W)
                vstore(state + f, vfma(vload(state + f), factor, vload(part + f)));
        } else {
            for (int f = kState; f < kState + head_dim; f += W)
                vstore(state + f, vfma(vload(part + f), factor, vload(state + f)));
        }
    }
}

void write_out(const float* state, float* out, int head_dim) {
    const vf sum = vset(state[1]);
    int f = 0;
    for (; f + W <= head_dim; f += W) vstore(out + f, vload(state + kState + f) / sum);
    for (; f < head_dim; ++f) out[f] = state[kState + f] / state[1];
}

// What one lane works with for one call.
class Worker {
   public:
    Worker(const Lane& lane, const AttentionArgs& args)
        : args_(args), plan_(*args.plan), head_dim_(args.shape.head_dim), width_(int(round_up(head_dim_, 16))) {
        std::byte* at = lane.scratch;
        const auto take = [&at]<typename T>(T*& to, int64_t count) {
            to = reinterpret_cast<T*>(at);
            at += round_up(count * int64_t(sizeof(T)), 64);
        };
        take(keys_, kKvBlock * (kConvertQueries ? head_dim_ : head_dim_ / 2));
        take(values_, kKvBlock * width_);
        take(scores_, kTileRows * kKvBlock);
        take(weights_, kTileRows * kKvBlock);
        take(parts_, kTileRows * (kState + width_));
        if constexpr (kConvertQueries) take(queries_, kTileRows * head_dim_);
        const int64_t most = std::max<int64_t>(kItemRows, plan_.group);
        take(states_, most * (kState + width_));
        take(rows_, most);
    }

    // Many rows: the item takes long, and its loads little of it.
    bool is_long(const AttentionPlan::Item& item) const {
        return !item.partial && (item.end_row - item.first_row) * plan_.group > 2 * kTileRows;
    }

    // `next`: the item that this lane will do after it, or null.
    void run(const AttentionPlan::Item& item, const AttentionPlan::Item* next) {
        next_ = next;
        if (item.partial) {
            divided(item);
        } else {
            whole(item);
        }
    }

   private:
    Source source_of(const AttentionPlan::Run& run, int64_t head, int64_t block) const {
        const int64_t feature = head * head_dim_;
        return {args_.k + feature, args_.v + feature, int64_t(args_.shape.num_kv_heads) * head_dim_,
                run.slots + block * kKvBlock, 0, kPositions, head_dim_};
    }

    // What follows `block` of an item is to be fetched.
    void look_ahead(const AttentionPlan::Item& item, int64_t block) {
        ahead_.next = ahead_.end = 0;
        const AttentionPlan::Item* to = &item;
        if (++block == item.end_block) {
            to = next_;
            if (to == nullptr) return;
            block = to->first_block;
        }
        const AttentionPlan::Run& run = plan_.runs[plan_.members[to->first_run]];
        ahead_.source = source_of(run, to->first_head, block);
        ahead_.width = (to->end_head - to->first_head) * head_dim_;
        ahead_.next = int(std::clamp<int64_t>(low_of(run.position) - block * kKvBlock, 0, kKvBlock));
        ahead_.end = int(std::min<int64_t>(kKvBlock, run.length - block * kKvBlock));
        ahead_.step = int(std::max<int64_t>(1, kPositions / (16 * (item.end_head - item.first_head))));
    }

    // [first, end) of the positions of a block that a row at `position` sees; empty if none.
    int64_t low_of(int64_t position) const { return plan_.window > 0 ? std::max<int64_t>(0, position - plan_.window + 1) : 0; }
    bool sees(int64_t position, int64_t block) const {
        return block * kKvBlock <= position && low_of(position) < (block + 1) * kKvBlock;
    }

    // Stacked rows of row r of a run, from rows_[count].
    int64_t stack(const AttentionPlan::Run& run, int64_t r, int64_t head, int64_t count) {
        const int64_t row = run.row + r, heads = args_.shape.num_heads;
        for (int64_t g = 0; g < plan_.group; ++g) {
            const int64_t at = (row * heads + head * plan_.group + g) * head_dim_;
            rows_[count++] = {args_.q + at, run.position + r, nullptr, args_.out + at};
        }
        return count;
    }

    // All blocks that some rows of one run see. The heads take turns at a block.
    void whole(const AttentionPlan::Item& item) {
        const AttentionPlan::Run& run = plan_.runs[plan_.members[item.first_run]];
        const int64_t heads = item.end_head - item.first_head;
        int64_t count = 0;
        for (int64_t h = item.first_head; h < item.end_head; ++h)
            for (int64_t r = item.first_row; r < item.end_row; ++r) count = stack(run, r, h, count);
        for (int64_t i = 0; i < count; ++i) rows_[i].state = states_ + i * (kState + width_);
        const int64_t each = count / heads;
        for (int64_t block = item.first_block; block < item.end_block; ++block) {
            int64_t begin = 0, end = each;
            while (begin < end && !sees(rows_[begin].position, block)) ++begin;
            while (end > begin && !sees(rows_[end - 1].position, block)) --end;
            look_ahead(item, block);
            if (begin == end) continue;
            for (int64_t h = 0; h < heads; ++h)
                partials(run, item.first_head + h, block, rows_ + h * each + begin, end - begin, true);
        }
        for (int64_t i = 0; i < count; ++i) write_out(rows_[i].state, rows_[i].out, head_dim_);
    }

    // Some blocks of one run, or one block of several; the last to end joins the run's partials.
    void divided(const AttentionPlan::Item& item) {
        const int64_t* members = plan_.members.data() + item.first_run;
        for (int64_t block = item.first_block; block < item.end_block; ++block) {
            look_ahead(item, block);
            for (int64_t head = item.first_head; head < item.end_head; ++head) {
                int64_t count = 0;
                for (int64_t i = 0; i < item.run_count; ++i) {
                    const AttentionPlan::Run& run = plan_.runs[members[i]];
                    for (int64_t r = 0; r < run.rows; ++r) {
                        if (!sees(run.position + r, block)) continue;
                        const int64_t begin = count;
                        count = stack(run, r, head, count);
                        for (int64_t g = 0; g < plan_.group; ++g)
                            rows_[begin + g].state = plan_.partial(run, head, block, r * plan_.group + g);
                    }
                }
                if (count > 0) partials(plan_.runs[members[0]], head, block, rows_, count, false);
            }
        }
        for (int64_t i = 0; i < item.run_count; ++i) {
            const AttentionPlan::Run& run = plan_.runs[members[i]];
            for (int64_t head = item.first_head; head < item.end_head; ++head) {
                std::atomic<int64_t>& ended = plan_.ended[members[i] * args_.shape.num_kv_heads + head];
                if (ended.fetch_add(1, std::memory_order_acq_rel) + 1 < run.parts) continue;
                ended.store(0, std::memory_order_relaxed);
                join_blocks(run, head);
            }
        }
    }

    void join_blocks(const AttentionPlan::Run& run, int64_t head) {
        for (int64_t r = 0; r < run.rows; ++r) {
            const int64_t position = run.position + r;
            for (int64_t g = 0; g < plan_.group; g += kTileRows) {
                const int count = int(std::min<int64_t>(kTileRows, plan_.group - g));
                float* states[kTileRows];
                const float* parts[kTileRows];
                const int64_t first = low_of(position) / kKvBlock;
                for (int i = 0; i < count; ++i) states[i] = plan_.partial(run, head, first, r * plan_.group + g + i);
                for (int64_t block = first + 1; block <= position / kKvBlock; ++block) {
                    for (int i = 0; i < count; ++i) parts[i] = plan_.partial(run, head, block, r * plan_.group + g + i);
                    join(states, parts, count, head_dim_);
                }
                const int64_t at = (run.row + r) * args_.shape.num_heads + head * plan_.group + g;
                for (int i = 0; i < count; ++i) write_out(states[i], args_.out + (at + i) * head_dim_, head_dim_);
            }
        }
    }

    // Partials of `rows`, which all see something of the block. `joined`: into the rows' states, which begin with
    // the first block that a row sees; else each state is a partial of its own.
    void partials(const AttentionPlan::Run& run, int64_t head, int64_t block, const Row* rows, int64_t count,
                  bool joined) {
        const int64_t start = block * kKvBlock;
        const auto low = [&](const Row& row) { return int(std::max<int64_t>(0, low_of(row.position) - start)); };
        const auto high = [&](const Row& row) { return int(std::min<int64_t>(kKvBlock, row.position + 1 - start)); };
        Source source = source_of(run, head, block);
        source.low = kPositions;
        source.high = 0;
        for (int64_t i = 0; i < count; ++i) {
            source.low = std::min(source.low, low(rows[i]));
            source.high = std::max(source.high, high(rows[i]));
        }
        const bool once = count <= kTileRows;  // then it is loaded bit by bit, and stays in the first-level cache
        const auto load = [&] {
            if (once) return;
            load_keys(source, keys_, ahead_);
            load_values(source, values_, ahead_);
        };
        load();
        for (int64_t i = 0; i < count; i += kTileRows) {
            const int64_t end = std::min(count, i + kTileRows);
            if (tile_rows(block, rows + i, int(end - i), joined, false, once ? &source : nullptr)) continue;
            // Some value is not finite, and 0 * infinity is not 0: a row may not meet what it doesn't see.
            for (int64_t j = i; j < end; ++j) {
                Source own = source;
                own.low = low(rows[j]);
                own.high = high(rows[j]);
                tile_rows(block, rows + j, 1, joined, true, &own);
            }
            load();
        }
    }

    // `source`: what is yet to be loaded, or null. `alone`: that holds nothing that the rows don't see.
    // Otherwise returns false, with no state joined, if a sum is not finite.
    bool tile_rows(int64_t block, const Row* rows, int count, bool joined, bool alone, const Source* source) {
        const int64_t start = block * kKvBlock;
        const int tiles = (count + kMaxRows - 1) / kMaxRows;
        int first[kTileRows + 1];  // rows of the tiles
        int seen_from[kTileRows], seen_to[kTileRows], begin[kTileRows], end[kTileRows];  // positions of the tiles
        int low[kTileRows], high[kTileRows];
        const Query* q[kTileRows];
        float* parts[kTileRows];
        float* values[kTileRows];
        bool fresh[kTileRows];
        for (int i = 0; i < count; ++i) {
            low[i] = int(std::max<int64_t>(0, low_of(rows[i].position) - start));
            high[i] = int(std::min<int64_t>(kKvBlock, rows[i].position + 1 - start));
            fresh[i] = !joined || low_of(rows[i].position) >= start || block == 0;
            parts[i] = fresh[i] ? rows[i].state : parts_ + i * (kState + width_);
            if constexpr (kConvertQueries) {
                float* to = reinterpret_cast<float*>(queries_) + i * head_dim_;
                for (int f = 0; f < head_dim_; ++f) to[f] = float_of(rows[i].q[f]);
                q[i] = reinterpret_cast<const Query*>(to);
            } else {
                q[i] = reinterpret_cast<const Query*>(rows[i].q);
            }
        }
        for (int t = 0; t <= tiles; ++t) first[t] = count * t / tiles;
        int block_begin = kPositions, block_end = 0;
        for (int t = 0; t < tiles; ++t) {
            seen_from[t] = *std::min_element(low + first[t], low + first[t + 1]);
            seen_to[t] = *std::max_element(high + first[t], high + first[t + 1]);
            begin[t] = seen_from[t] / W * W;
            end[t] = int(round_up(seen_to[t], W));
            block_begin = std::min(block_begin, begin[t]);
            block_end = std::max(block_end, end[t]);
        }

        const int64_t keys_of_chunk = int64_t(kChunk) * (kConvertQueries ? head_dim_ : head_dim_ / 2);
        for (int chunk = block_begin / kChunk; chunk * kChunk < block_end; ++chunk) {
            if (source != nullptr) load_keys(source->part(chunk * kChunk, kChunk), keys_, ahead_);
            const Key* keys = source != nullptr ? keys_ : keys_ + chunk * keys_of_chunk;
            for (int t = 0; t < tiles; ++t) {
                const int from = std::max(begin[t], chunk * kChunk);
                const int to = std::min(end[t], (chunk + 1) * kChunk);
                if (from >= to) continue;
                ahead_.fetch();
                kTiles.scores[first[t + 1] - first[t] - 1][(to - from) / W - 1](
                    q + first[t], keys + from % kChunk, head_dim_,
                    scores_ + first[t] * kPositions + from);
            }
        }
        ahead_.fetch();
        for (int t = 0; t < tiles; ++t)
            for (int i = first[t]; i < first[t + 1]; ++i)
                weigh(scores_ + i * kPositions, weights_ + i * kPositions, low[i], high[i], begin[t], end[t],
                      args_.softcap, parts[i], parts[i] + 1);
        const int width = int(round_up(head_dim_, W));
        bool finite = true;
        const int step = source != nullptr ? kValuesAtOnce : kPositions;
        for (int at = block_begin / step * step; at < block_end; at += step) {
            if (source != nullptr) load_values(source->part(at, step), values_, ahead_);
            for (int chunk = 0; chunk < width; chunk += kChunk) {
                const int chunk_width = std::min(kChunk, width - chunk);
                for (int i = 0; i < count; ++i) values[i] = parts[i] + kState + chunk;
                for (int t = 0; t < tiles; ++t) {
                    const int from = std::max(seen_from[t] - at, 0), to = std::min(seen_to[t] - at, step);
                    if (from >= to) continue;
                    ahead_.fetch();
                    finite &= kTiles.values[first[t + 1] - first[t] - 1][chunk_width / W - 1](
                        weights_ + first[t] * kPositions + at, values_ + int64_t(chunk) * kPositions, chunk_width,
                        from, to, values + first[t], seen_from[t] < at);
                }
            }
        }
        if (!finite && !alone) return false;

        float* states[kTileRows];
        const float* others[kTileRows];
        int joining = 0;
        for (int i = 0; i < count; ++i) {
            if (fresh[i]) continue;
            states[joining] = rows[i].state;
            others[joining++] = parts[i];
        }
        if (joining > 0) join(states, others, joining, head_dim_);
        return true;
    }

    const AttentionArgs& args_;
    const AttentionPlan& plan_;
    const int head_dim_;
    const int width_;  // features of a state: head_dim rounded up
    const AttentionPlan::Item* next_ = nullptr;
    Ahead ahead_;
    Key* keys_;
    Value* values_;
    float* scores_;
    Factor* weights_;
    float* parts_;
    Query* queries_ = nullptr;
    float* states_;
    Row* rows_;
};

}  // namespace

void attention(const Lane& lane, const AttentionArgs& args) {
    const AttentionPlan& plan = *args.plan;
    const int64_t count = int64_t(plan.items.size());
    Worker worker(lane, args);
    // Where items are many, a lane claims one ahead, so that it knows what to fetch.
    const bool ahead = count >= 4 * lane.count;
    int64_t i = Lane::claim(*args.counter);
    while (i < count) {
        const AttentionPlan::Item& item = plan.items[size_t(i)];
        if (ahead && !worker.is_long(item)) {
            i = Lane::claim(*args.counter);
            worker.run(item, i < count ? &plan.items[size_t(i)] : nullptr);
        } else {
            worker.run(item, nullptr);
            i = Lane::claim(*args.counter);
        }
    }
}

STOLON_END
