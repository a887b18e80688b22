// What becomes of products on their way out: gate, bias, softcap, residual.
#pragma once

#include <algorithm>

#include "gemm_operands.h"
#include "simd.h"

STOLON_BEGIN
namespace {

vf activate(vf x, Gate gate) {
    if (gate == Gate::Silu) return x * vreciprocal(vset(1.0f) + vexp(vset(0.0f) - x));
    // gelu, tanh form: x / 2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    const vf inner = vset(0.7978845608f) * vfma(x * x * x, vset(0.044715f), x);
    return vset(0.5f) * x * (vset(1.0f) + vtanh(inner));
}

// Pointers are to the elements of row `row` and of the first column of tile `tile`; null where there is nothing to do.
struct Ending {
    int64_t row, tile;
    Gate activation;
    const float* gate;  // what the products are gated with
    int64_t gate_stride;
    const float* bias;
    float softcap;
    const float* residual;
    int64_t residual_stride;

    bool nothing() const { return !gate && !bias && softcap == 0.0f && !residual; }
    bool only_adds() const { return !gate && !bias && softcap == 0.0f && residual; }

    vf operator()(vf v, int64_t r, int64_t column) const {
        if (gate) v = activate(vload(gate + r * gate_stride + column), activation) * v;
        if (bias) v = v + vload(bias + column);
        if (softcap != 0.0f) v = vset(softcap) * vtanh(v / vset(softcap));
        if (residual) v = v + vload(residual + r * residual_stride + column);
        return v;
    }
};

// Cells of rows from `row` on and tiles from `tile` on to out[R][C * 16], where rows lie `stride` floats apart.
template <int R, int C>
STOLON_ALWAYS inline void put(const F16 (&cells)[R][C], int64_t row, int64_t tile, const Ending* ending, float* out,
                              int64_t stride) {
    if (!ending) {
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS { f_store(out + I / C * stride + I % C * kTile, cells[I / C][I % C]); });
        return;
    }
    const int64_t from = row - ending->row, column = (tile - ending->tile) * kTile;
    if (ending->only_adds()) {
        const float* residual = ending->residual + from * ending->residual_stride + column;
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS {
            constexpr int r = I / C, c = I % C;
            const F16 rest = f_load(residual + r * ending->residual_stride + c * kTile);
            f_store(out + r * stride + c * kTile, f_add(cells[r][c], rest));
        });
        return;
    }
    F16 kept[R][C];  // so that cells are in memory here alone
    unrolled<R * C>([&]<int I>() STOLON_ALWAYS { kept[I / C][I % C] = cells[I / C][I % C]; });
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c)
            for (int i = 0; i < kTile; i += W) {
                const vf v = (*ending)(f_part(kept[r][c], i / W), from + r, column + c * kTile + i);
                vstore(out + r * stride + c * kTile + i, v);
            }
}

// Cells [rows][16] in memory, of whole columns, to where they go.
void finish(const Ending& ending, const float* cells, int64_t rows, float* out, int64_t stride) {
    const auto each = [&](auto&& value) STOLON_ALWAYS {
        for (int64_t r = 0; r < rows; ++r)
            for (int i = 0; i < kTile; i += W) vstore(out + r * stride + i, value(vload(cells + r * kTile + i), r, i));
    };
    if (ending.only_adds())
        each([&](vf v, int64_t r, int64_t i) STOLON_ALWAYS { return v + vload(ending.residual + r * ending.residual_stride + i); });
    else
        each([&](vf v, int64_t r, int64_t i) STOLON_ALWAYS { return ending(v, r, i); });
}

// The last, padded tile: the same arithmetic, and its own columns only.
void finish_padded(const Ending& ending, const float* cells, int64_t rows, int width, int64_t valid, float* out,
                   int64_t stride) {
    alignas(64) float extra[kColumns * kTile] = {}, shift[kColumns * kTile] = {}, padded[kColumns * kTile];
    if (ending.bias) std::copy(ending.bias, ending.bias + valid, shift);
    for (int64_t r = 0; r < rows; ++r) {
        Ending own = ending;
        if (own.gate) own.gate += r * own.gate_stride;
        if (own.bias) own.bias = shift;
        if (own.residual) {
            std::copy(own.residual + r * own.residual_stride, own.residual + r * own.residual_stride + valid, extra);
            own.residual = extra;
        }
        for (int i = 0; i < width; i += W) vstore(padded + i, own(vload(cells + r * width + i), 0, i));
        std::copy(padded, padded + valid, out + r * stride);
    }
}

}  // namespace
STOLON_END
