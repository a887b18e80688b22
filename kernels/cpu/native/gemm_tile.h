// A tile of a product from its operands to where it goes, for every type of weight and every size of tile.
#pragma once

#include "gemm_ending.h"
#include "gemm_quantised.h"

STOLON_BEGIN
namespace {

template <WeightType T, int R, int C>
inline void plain_tile(const Operands& in, F16 (&out)[R][C]) {
    const Activations& x = *in.x;
    const int64_t tile_bytes = in.w->tile_bytes;
    for (auto& row : out)
        for (F16& cell : row) cell = f_zero();
    if constexpr (T == WeightType::BF16) {
        const bf16* a = x.half + in.row * x.half_stride;
        Fetch fetch = *in.fetch;
        for (int64_t i = 0; i < in.w->k_padded; i += 2) {
            B64 w[C];
            for (int c = 0; c < C; ++c) w[c] = b_load(in.weights() + c * tile_bytes + 32 * i);
            if (i % 32 == 0) fetch.some();
            for (int r = 0; r < R; ++r) {
                const int32_t pair = load_word(a + r * x.half_stride + i);
                for (int c = 0; c < C; ++c) out[r][c] = dot_bf16(out[r][c], w[c], pair);
            }
        }
        *in.fetch = fetch;
    } else {
        const float* a = x.f32 + in.row * x.f32_stride;
        for (int64_t i = 0; i < x.k; ++i) {
            F16 w[C];
            for (int c = 0; c < C; ++c) {
                const uint8_t* p = in.weights() + c * tile_bytes;
                w[c] = T == WeightType::F16 ? f_half(p + 32 * i) : f_load((const float*)(p + 64 * i));
            }
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < C; ++c) out[r][c] = f_fma(w[c], f_set(a[r * x.f32_stride + i]), out[r][c]);
        }
    }
}

// out[R][C * 16], rows lie `stride` floats apart.
template <WeightType T, int R, int C>
void tile_of(const Operands& in, const Ending* ending, float* out, int64_t stride) {
    F16 cells[R][C];
    if constexpr (plain(T))
        plain_tile<T, R, C>(in, cells);
    else
        QuantisedTile<T, R, C>(in).run(in, cells);
    put(cells, in.row, in.tile, ending, out, stride);
}

using TileFunction = void (*)(const Operands&, const Ending*, float*, int64_t);

// How many of `columns` tiles are computed at once for so many rows.
constexpr int tiles_at_once(WeightType type, int rows, int columns) {
    return plain(type) || rows * columns <= kCells ? columns : 1;
}

template <WeightType T, int C, int R>
TileFunction tile_with_rows(int rows) {
    if constexpr (R == 0)
        return nullptr;
    else if constexpr (tiles_at_once(T, R, C) < C)
        return tile_with_rows<T, C, R - 1>(rows);
    else
        return rows == R ? tile_of<T, R, C> : tile_with_rows<T, C, R - 1>(rows);
}

template <WeightType T>
TileFunction tile_with(int rows, int columns) {
    if constexpr (kColumns > 1)
        if (columns == 2) return tile_with_rows<T, 2, kRows>(rows);
    return tile_with_rows<T, 1, kRows>(rows);
}

// `with` called with a type as a constant.
template <class With>
auto for_type(WeightType type, With&& with) {
    switch (type) {
        case WeightType::F32: return with.template operator()<WeightType::F32>();
        case WeightType::F16: return with.template operator()<WeightType::F16>();
        case WeightType::BF16: return with.template operator()<WeightType::BF16>();
        case WeightType::Q4_0: return with.template operator()<WeightType::Q4_0>();
        case WeightType::Q4_1: return with.template operator()<WeightType::Q4_1>();
        case WeightType::Q5_0: return with.template operator()<WeightType::Q5_0>();
        case WeightType::Q5_1: return with.template operator()<WeightType::Q5_1>();
        case WeightType::Q8_0: return with.template operator()<WeightType::Q8_0>();
        case WeightType::Q4_K: return with.template operator()<WeightType::Q4_K>();
        case WeightType::Q5_K: return with.template operator()<WeightType::Q5_K>();
        case WeightType::Q6_K: break;
    }
    return with.template operator()<WeightType::Q6_K>();
}

TileFunction tile_function(WeightType type, int rows, int columns) {
    return for_type(type, [&]<WeightType T>() { return tile_with<T>(rows, columns); });
}

}  // namespace
STOLON_END
