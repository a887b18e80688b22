// Many rows by tiles of a quantised weight through the matrix unit: codes a byte each, made once for all rows.
//
// What an element goes through is the same as in gemm_quantised.h: the sums of a run are exact integers, whoever adds them up.
#pragma once

#include "gemm_tile.h"

STOLON_BEGIN
namespace {

#if defined(STOLON_AMX)

template <WeightType T>
void unpack_codes(const Weight& w, int64_t tile, uint8_t* to) {
    constexpr QuantLayout L = quant_layout(T);
    const uint8_t* from = reinterpret_cast<const uint8_t*>(w.data) + tile * w.tile_bytes;
    for (int64_t g = 0; g < w.k / kBlock; ++g, to += kGroupCodes)
        unrolled<8>([&]<int Q>() STOLON_ALWAYS { b_store(to + 64 * Q, load_codes<L.bits, Q>(from + L.codes_at(g))); });
}

// The codes of a tile: [groups][quartets][64].
void unpack(const Weight& w, int64_t tile, uint8_t* to) {
    for_type(w.type, [&]<WeightType T>() {
        if constexpr (!plain(T)) unpack_codes<T>(w, tile, to);
    });
}

template <WeightType T, int R>
void matrix_pieces(Operands in, const uint8_t* codes, int64_t pieces, const Ending* ending, float* out, int64_t stride) {
    static constexpr TileShapes shapes = QuantisedTile<T, R, 1, true>::shapes();
    use_tiles(shapes);
    QuantisedTile<T, R, 1, true>(in, codes).run_pieces(in, pieces, [&](const F16 (&cells)[R][1]) STOLON_ALWAYS {
        put(cells, in.row, in.tile, ending, out, stride);
        in.row += R;
        out += R * stride;
    });
    release_tiles();
}

using MatrixFunction = void (*)(Operands, const uint8_t*, int64_t, const Ending*, float*, int64_t);

// Pieces are as even as they come, so that the smallest has half of the rows of the largest, or about that.
template <WeightType T, int R = kMatrixPiece>
MatrixFunction matrix_function(int64_t rows) {
    if constexpr (R < kMatrixPiece / 2)
        return nullptr;
    else
        return rows == R ? matrix_pieces<T, R> : matrix_function<T, R - 1>(rows);
}

// `pieces` pieces of `rows` rows each.
void matrix_product(int64_t rows, const Operands& in, const uint8_t* codes, int64_t pieces, const Ending* ending, float* out,
                    int64_t stride) {
    for_type(in.w->type, [&]<WeightType T>() {
        if constexpr (!plain(T)) matrix_function<T>(rows)(in, codes, pieces, ending, out, stride);
    });
}

#else

void unpack(const Weight&, int64_t, uint8_t*) {}
void matrix_product(int64_t, const Operands&, const uint8_t*, int64_t, const Ending*, float*, int64_t) {}

#endif

}  // namespace
STOLON_END
