// Partial results of blocks are joined: {m, l, values} of a row, in the order of the blocks.
#pragma once

#include "attention_blocks.h"

STOLON_BEGIN

namespace {

// state <- state + partial, for up to kStacked rows: the one formula by which blocks are joined.
void join(float* const* states, const float* const* partials, int count, int head_dim) {
    alignas(64) float gap[kStacked + W];
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
    const float share = 1.0f / state[1];
    int f = 0;
    for (; f + W <= head_dim; f += W) vstore(out + f, vload(state + kState + f) * vset(share));
    for (; f < head_dim; ++f) out[f] = state[kState + f] * share;
}

}  // namespace

STOLON_END
