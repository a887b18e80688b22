// Scores, weights and values of a block in float32, for AVX2 and portable builds. attention_partials.h says what has
// to hold.
#pragma once

#include "attention_blocks.h"

STOLON_BEGIN

namespace {

#if defined(STOLON_AVX2)
constexpr int kMaxRows = 6;
#else
constexpr int kMaxRows = 2;
#endif
constexpr int kMaxVectors = 2;
constexpr int kFeatureStep = 1;
using Key = float;
using Value = float;
using Factor = float;
using Query = float;
constexpr bool kConvertQueries = true;
constexpr bool kFindsPeaks = true;
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

struct Peak {};  // nothing is found on the way

template <int R, int V>
void score_tile(const Query* const* q, const Key* keys, int head_dim, float* scores, Peak*, bool, Ahead& ahead) {
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
void weigh_row(float* scores, Factor* weights, int low, int high, int begin, int end, float softcap, float* part) {
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
    bool ordered = true;  // vexp makes nothing of a NaN
    for (int i = low; i < high; ++i) ordered &= scores[i] == scores[i];
    part[0] = highest;
    part[1] = ordered ? vsum(sum) : NAN;
}

void weigh(float* scores, Factor* weights, const Span* seen, const Peak*, int count, int begin, int end, float softcap,
           float* const* parts) {
    for (int r = 0; r < count; ++r)
        weigh_row(scores + r * kPositions, weights + r * kPositions, seen[r].low, seen[r].high, begin, end, softcap,
                  parts[r]);
}

}  // namespace

STOLON_END
