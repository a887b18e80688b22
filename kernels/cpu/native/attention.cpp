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
constexpr int64_t kAheadBytes = 512 << 10;  // fetched early, at most: half of a usual second-level cache
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
    int64_t feature;  // of the token's row in the cache, at which k and v are

    Source part(int first, int count) const {
        Source s = *this;
        s.slots += first;
        s.low = std::max(0, low - first);
        s.high = std::min(count, high - first);
        return s;
    }
};

// The keys and values that are wanted next, brought near while others are computed with: a block's rows lie
// anywhere in the cache, so hardware doesn't see them coming. Row by row: of many lines at once the processor
// drops some.
class Ahead {
   public:
    // Rows [begin, end) of `source`, `width` features of each (those of all kv heads of an item), over the next
    // `ticks` calls of `tick`.
    void set(const Source& source, int64_t width, int64_t begin, int64_t end, int64_t ticks) {
        const int64_t rows = std::max<int64_t>(1, end - begin);
        source_ = source;
        width_ = width;
        next_ = begin;
        end_ = end;
        period_ = std::max<int64_t>(1, ticks / rows);
        step_ = (rows + ticks - 1) / ticks;
        wait_ = 1;
    }
    void clear() { next_ = end_ = 0; }

    void tick() {
        if (--wait_ == 0) fetch();
    }

   private:
    __attribute__((noinline)) void fetch() {
        wait_ = period_;
        for (const int64_t stop = std::min(end_, next_ + step_); next_ < stop; ++next_) {
            const int64_t at = source_.slots[next_] * source_.stride;
            for (int64_t f = 0; f < width_; f += 64 / int64_t(sizeof(bf16))) {
                __builtin_prefetch(source_.k + at + f, 0, 2);
                __builtin_prefetch(source_.v + at + f, 0, 2);
            }
        }
    }

    Source source_{};
    int64_t width_ = 0, next_ = 0, end_ = 0, period_ = 1, step_ = 1, wait_ = 1;
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

// e^(x - top) of 32 positions, rounded; x is rounded more coarsely than `exponent_of_top` is.
inline __m512bh weights_of(__m512 x, __m512 y, __m512 exponent_of_top) {
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    return _mm512_cvtne2ps_pbh(exp2_of(_mm512_fmsub_ps(y, log2e, exponent_of_top)),
                               exp2_of(_mm512_fmsub_ps(x, log2e, exponent_of_top)));
}

// Weights of a row that sees the first `high` positions, which end in the N-th vector; N is even or one below.
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

// For a few rows a block is put in order in registers on the way to the one use of it. The same sums, term by term,
// as score_tile's and value_tile's.
constexpr int kDirectRows = 8;

// Scores of 16 V positions, rows[0..16 V) of keys from `feature` on; head_dim is a multiple of 8. Of next[0..32)
// the same features are brought near.
template <int R, int V>
void score_direct(const Query* const* q, const bf16* const* rows, const bf16* const* next, int64_t feature,
                  int head_dim, float* scores, Ahead& ahead) {
    __m512 sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
    }
    for (int f = 0; f < head_dim; f += 8) {
        ahead.tick();
        STOLON_UNROLL
        for (int i = f; i < f + 8; ++i)  // each of 32 rows, line by line
            __builtin_prefetch(next[i % 32] + feature + i / 32 * 32);
        __m512i k[4][V];  // pairs of features, positions
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) transpose_pairs(rows + v * W, feature + f, k[0][v], k[1][v], k[2][v], k[3][v]);
        STOLON_UNROLL
        for (int pair = 0; pair < 4; ++pair) {
            STOLON_UNROLL
            for (int r = 0; r < R; ++r) {
                const __m512bh x = (__m512bh)_mm512_set1_epi32(int(pair_at(q[r] + f + 2 * pair)));
                STOLON_UNROLL
                for (int v = 0; v < V; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], x, (__m512bh)k[pair][v]);
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
        ahead.tick();
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
    ScoreDirect scores[kDirectRows][2];
    ValueDirect values[kDirectRows];  // of kFeatures[rows - 1] features
    int features[kDirectRows];
    template <int R = 1>
    constexpr void fill() {
        constexpr int kHalves = R <= 6 ? 2 : 1;
        scores[R - 1][0] = score_direct<R, 1>;
        scores[R - 1][1] = score_direct<R, 2>;
        values[R - 1] = value_direct<R, kHalves>;
        features[R - 1] = 32 * kHalves;
        if constexpr (R < kDirectRows) fill<R + 1>();
    }
    constexpr Direct() : scores{}, values{}, features{} { fill(); }
};
constexpr Direct kDirect;

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
        ahead.tick();
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
void score_tile(const Query* const* q, const Key* keys, int head_dim, float* scores, Ahead& ahead) {
    vf sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = vset(0.0f);
    }
    for (int f = 0; f < head_dim; ++f) {
        ahead.tick();
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
                bool add, Ahead& ahead) {
    vf sum[R][V];
    STOLON_UNROLL
    for (int r = 0; r < R; ++r) {
        STOLON_UNROLL
        for (int v = 0; v < V; ++v) sum[r][v] = add ? vload(out[r] + v * W) : vset(0.0f);
    }
    for (int i = begin; i < end; ++i) {
        ahead.tick();
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

using ScoreTile = void (*)(const Query* const*, const Key*, int, float*, Ahead&);
using ValueTile = bool (*)(const Factor*, const Value*, int, int, int, float* const*, bool, Ahead&);

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

// state <- state + partial for `count` partials that follow it at `stride`: in their order, and as `join` does it.
void join_all(float* state, int64_t stride, int64_t count, int head_dim) {
    constexpr int kMost = 64;
    constexpr int kVectors = 4;
    alignas(64) float gap[kMost];
    bool rises[kMost];
    for (const float* parts = state + stride; count > 0; count -= kMost, parts += kMost * stride) {
        const int n = int(std::min<int64_t>(count, kMost));
        float top = state[0];
        for (int i = 0; i < n; ++i) {
            const float m = parts[i * stride];
            gap[i] = -std::fabs(top - m);
            rises[i] = m > top;
            if (rises[i]) top = m;
        }
        state[0] = top;
        for (int i = n; i < int(round_up(n, W)); ++i) gap[i] = 0.0f;
        for (int i = 0; i < n; i += W) vstore(gap + i, vexp(vload(gap + i)));
        float sum = state[1];
        for (int i = 0; i < n; ++i) {
            const float other = parts[i * stride + 1];
            sum = rises[i] ? sum * gap[i] + other : other * gap[i] + sum;
        }
        state[1] = sum;
        for (int f = kState; f < kState + head_dim; f += kVectors * W) {
            const int vectors = std::min(kVectors, (kState + head_dim - f + W - 1) / W);
            vf x[kVectors];
            for (int v = 0; v < kVectors; ++v) x[v] = v < vectors ? vload(state + f + v * W) : vset(0.0f);
            for (int i = 0; i < n; ++i) {
                const float* part = parts + i * stride + f;
                const vf factor = vset(gap[i]);
                if (vectors == kVectors && !rises[i]) {
                    STOLON_UNROLL
                    for (int v = 0; v < kVectors; ++v) x[v] = vfma(vload(part + v * W), factor, x[v]);
                    continue;
                }
                STOLON_UNROLL
                for (int v = 0; v < kVectors; ++v) {
                    if (v >= vectors) continue;
                    const vf y = vload(part + v * W);
                    x[v] = rises[i] ? vfma(x[v], factor, y) : vfma(y, factor, x[v]);
                }
            }
            STOLON_UNROLL
            for (int v = 0; v < kVectors; ++v)
                if (v < vectors) vstore(state + f + v * W, x[v]);
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
                run.slots + block * kKvBlock, 0, kPositions, head_dim_, feature};
    }

    // Stacked rows of each head of an item.
    int64_t stacked_rows(const AttentionPlan::Item& item) const {
        if (!item.partial) return (item.end_row - item.first_row) * plan_.group;
        int64_t rows = 0;
        for (int64_t i = 0; i < item.run_count; ++i) rows += plan_.runs[plan_.members[item.first_run + i]].rows;
        return rows * plan_.group;
    }

    // What follows `block` of an item is to be fetched: the next block, or what the next item begins with. That is
    // much of it if this block takes long to compute.
    void look_ahead(const AttentionPlan::Item& item, int64_t block, int64_t stacked) {
        const AttentionPlan::Item* to = &item;
        int64_t blocks = 1;
        if (++block == item.end_block) {
            to = next_;
            if (to == nullptr) return ahead_.clear();
            block = to->first_block;
            if (stacked >= kTileRows) blocks = to->end_block - block;
        }
        const int64_t heads = item.end_head - item.first_head;
        const int64_t passes = stacked <= kTileRows ? (stacked + kMaxRows - 1) / kMaxRows : stacked / kMaxRows;
        const AttentionPlan::Run& run = plan_.runs[plan_.members[to->first_run]];
        const int64_t width = (to->end_head - to->first_head) * head_dim_;
        const int64_t most = std::max<int64_t>(kKvBlock, kAheadBytes / (width * 2 * int64_t(sizeof(bf16))));
        const int64_t end = std::min({blocks * kKvBlock, run.length - block * kKvBlock, most});
        const int64_t begin = std::clamp<int64_t>(low_of(run.position) - block * kKvBlock, 0, end);
        ahead_.set(source_of(run, to->first_head, block), width, begin, end, heads * passes * (kPositions / 2));
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
            look_ahead(item, block, each);
            if (begin == end) continue;
            for (int64_t h = 0; h < heads; ++h)
                partials(run, item.first_head + h, block, rows_ + h * each + begin, end - begin, true);
        }
        for (int64_t i = 0; i < count; ++i) write_out(rows_[i].state, rows_[i].out, head_dim_);
    }

    // Some blocks of one run, or one block of several; the last to end joins the run's partials.
    void divided(const AttentionPlan::Item& item) {
        const int64_t* members = plan_.members.data() + item.first_run;
        const int64_t stacked = stacked_rows(item);
        for (int64_t block = item.first_block; block < item.end_block; ++block) {
            look_ahead(item, block, stacked);
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
            const int64_t position = run.position + r, first = low_of(position) / kKvBlock;
            const int64_t at = (run.row + r) * args_.shape.num_heads + head * plan_.group;
            for (int64_t g = 0; g < plan_.group; ++g) {
                float* state = plan_.partial(run, head, first, r * plan_.group + g);
                const int64_t stride = run.rows * plan_.group * plan_.partial_floats();  // from block to block
                join_all(state, stride, position / kKvBlock - first, head_dim_);
                write_out(state, args_.out + (at + g) * head_dim_, head_dim_);
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
#if defined(STOLON_AVX512)
        const bool direct = source != nullptr && count <= kDirectRows && head_dim_ % kDirect.features[count - 1] == 0;
#else
        constexpr bool direct = false;
#endif
        const int tiles = direct ? 1 : (count + kMaxRows - 1) / kMaxRows;
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
        for (int chunk = block_begin / kChunk; !direct && chunk * kChunk < block_end; ++chunk) {
            if (source != nullptr) load_keys(source->part(chunk * kChunk, kChunk), keys_, ahead_);
            const Key* keys = source != nullptr ? keys_ : keys_ + chunk * keys_of_chunk;
            for (int t = 0; t < tiles; ++t) {
                const int from = std::max(begin[t], chunk * kChunk);
                const int to = std::min(end[t], (chunk + 1) * kChunk);
                if (from >= to) continue;
                kTiles.scores[first[t + 1] - first[t] - 1][(to - from) / W - 1](
                    q + first[t], keys + from % kChunk, head_dim_,
                    scores_ + first[t] * kPositions + from, ahead_);
            }
        }
#if defined(STOLON_AVX512)
        if (direct) {
            find_rows(*source);
            for (int at = block_begin; at < block_end; at += 2 * W) {
                const bool last = at + 2 * W >= block_end;
                kDirect.scores[count - 1][std::min(2 * W, block_end - at) / W - 1](
                    q, key_rows_ + at, last ? value_rows_ + block_begin : key_rows_ + at + 2 * W, source->feature,
                    head_dim_, scores_ + at, ahead_);
            }
        }
#endif
        for (int t = 0; t < tiles; ++t)
            for (int i = first[t]; i < first[t + 1]; ++i)
                weigh(scores_ + i * kPositions, weights_ + i * kPositions, low[i], high[i], begin[t], end[t],
                      args_.softcap, parts[i], parts[i] + 1);
        const int width = int(round_up(head_dim_, W));
        bool finite = true;
#if defined(STOLON_AVX512)
        if (direct) {
            const int features = kDirect.features[count - 1];
            for (int at = 0; at < head_dim_; at += features) {
                for (int i = 0; i < count; ++i) values[i] = parts[i] + kState + at;
                finite &= kDirect.values[count - 1](weights_, value_rows_, source->feature + at, seen_from[0] / 2,
                                                    (seen_to[0] + 1) / 2, values, ahead_);
            }
        }
#endif
        const int step = source != nullptr ? kValuesAtOnce : kPositions;
        for (int at = block_begin / step * step; !direct && at < block_end; at += step) {
            if (source != nullptr) load_values(source->part(at, step), values_, ahead_);
            for (int chunk = 0; chunk < width; chunk += kChunk) {
                const int chunk_width = std::min(kChunk, width - chunk);
                for (int i = 0; i < count; ++i) values[i] = parts[i] + kState + chunk;
                for (int t = 0; t < tiles; ++t) {
                    const int from = std::max(seen_from[t] - at, 0), to = std::min(seen_to[t] - at, step);
                    if (from >= to) continue;
                    finite &= kTiles.values[first[t + 1] - first[t] - 1][chunk_width / W - 1](
                        weights_ + first[t] * kPositions + at, values_ + int64_t(chunk) * kPositions, chunk_width,
                        from, to, values + first[t], seen_from[t] < at, ahead_);
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

#if defined(STOLON_AVX512)
    // Where each position's keys and values are (of kv head 0), for all heads of a block at once. For a position that
    // isn't loaded: those of another one, whose weight is 0.
    void find_rows(const Source& s) {
        if (found_slots_ == s.slots && found_low_ == s.low && found_high_ == s.high) return;
        found_slots_ = s.slots;
        found_low_ = s.low;
        found_high_ = s.high;
        const bf16 *k = s.k - s.feature, *v = s.v - s.feature;
        for (int i = 0; i < kPositions + 2 * W; ++i) {
            const int64_t at = s.slots[std::clamp(i, s.low, s.high - 1)] * s.stride;
            key_rows_[i] = k + at;
            value_rows_[i] = v + at;
        }
    }

    const bf16* key_rows_[kPositions + 2 * W];
    const bf16* value_rows_[kPositions + 2 * W];
    const int64_t* found_slots_ = nullptr;
    int found_low_ = 0, found_high_ = 0;
#endif
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
    const int64_t count = int64_t(plan.batches.size()) - 1;
    Worker worker(lane, args);
    // Where batches are many, a lane claims one ahead, so that it knows what to fetch.
    const bool ahead = count >= 4 * lane.count;
    int64_t batch = Lane::claim(*args.counter);
    while (batch < count) {
        const int64_t end = plan.batches[size_t(batch) + 1];
        int64_t i = plan.batches[size_t(batch)];
        for (; i + 1 < end; ++i) worker.run(plan.items[size_t(i)], &plan.items[size_t(i) + 1]);
        const AttentionPlan::Item& last = plan.items[size_t(i)];
        if (ahead && !worker.is_long(last)) {
            batch = Lane::claim(*args.counter);
            worker.run(last, batch < count ? &plan.items[size_t(plan.batches[size_t(batch)])] : nullptr);
        } else {
            worker.run(last, nullptr);
            batch = Lane::claim(*args.counter);
        }
    }
}

STOLON_END
