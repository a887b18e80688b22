// Many rows by tiles of a quantised weight through the matrix unit: codes a byte each, made once for all rows.
//
// What an element goes through is the same as for few rows (gemm_runs.h).
#pragma once

#include "gemm_tile.h"
#include "matrix_unit.h"

STOLON_BEGIN
namespace {

#if defined(STOLON_AMX)

// R rows after R rows by one tile.
template <WeightType T, int R>
class MatrixTile : QuantisedRuns<T, R, 1> {
    using Base = QuantisedRuns<T, R, 1>;
    static constexpr int kHalves = Base::kHalves, kQuartets = Base::kQuartets;
    using Base::groups_, Base::rows_;
    using typename Base::Cells, typename Base::Scales;
    using Sums = int32_t[R][kTile];

    static constexpr int kSumsAt = 0, kActivationsAt = 2, kCodesAt = 4;  // numbers of tiles
    const uint8_t* const codes_;                                         // of all groups

public:
    static constexpr TileShapes shapes() {
        TileShapes of;
        for (int parity = 0; parity < 2; ++parity) {
            of.set(kSumsAt + parity, R, 64);
            of.set(kActivationsAt + parity, R, kBlock / kHalves);
            of.set(kCodesAt + parity, kQuartets, 64);
        }
        return of;
    }

    // `codes`: a byte each, [groups][quartets][64].
    MatrixTile(const Operands& in, const uint8_t* codes) : Base(in), codes_(codes) {}

    // `pieces` pieces, one after the other; `put` takes the cells of each. The number of runs is even.
    //
    // What the unit takes for a run are steps that wait for one another, and long: tiles are loaded, multiplied, stored, and the
    // sums can't be loaded until the store is through. So the steps of five runs are interleaved, from piece to piece too: that
    // of run n + 4 is loaded while n + 3 is multiplied, n + 2 stored, and n scaled, with two tiles of each kind by turns.
    template <class Put>
    STOLON_ALWAYS void run(const Operands& in, int64_t pieces, Put&& put) {
        Fetch fetch = *in.fetch;
        alignas(64) Sums sums[4];
        Loads loads{rows_.first(), codes_, groups_, pieces};
        load_tiles<0>(loads);
        multiply_tiles<0>();
        load_tiles<1>(loads);
        multiply_tiles<1>();
        load_tiles<0>(loads);
        tile_store<kSumsAt>(sums[0], 64);
        multiply_tiles<0>();
        load_tiles<1>(loads);
        tile_store<kSumsAt + 1>(sums[1], 64);
        int64_t n = 0;
        for (; pieces; --pieces) {
            Cells cells;
            this->clear(cells);
            for (int64_t g = 0; g < groups_;) {
                fetch.some();
                unrolled<2>([&]<int P>() STOLON_ALWAYS {
                    multiply_tiles<1 - P>();
                    load_tiles<P>(loads);
                    tile_store<kSumsAt + P>(sums[(n + 2 + P) & 3], 64);
                    add_run<P % kHalves>(g, sums[(n + P) & 3], cells);
                    if constexpr (kHalves == 1 || P == 1) this->next(++g);
                });
                n += 2;
            }
            this->finish(in, cells);
            put(cells);
            this->next_rows();
        }
        *in.fetch = fetch;
    }

private:
    // What tiles are loaded from. Behind the last group of the last piece: from that again.
    struct Loads {
        const std::byte* rows;
        const uint8_t* codes;
        int64_t groups, pieces, group = 0;
    };

    // Of runs with parity P: half P of a group, if groups have halves.
    template <int P>
    STOLON_ALWAYS void load_tiles(Loads& from) const {
        constexpr int H = P % kHalves;
        tile_load<kActivationsAt + P>(from.rows + kValuesAt + kBlock / kHalves * H, rows_.row_bytes());
        tile_load<kCodesAt + P>(from.codes + H * kQuartets * 64, 64);
        if constexpr (kHalves == 1 || P == 1) {
            const int64_t back = from.groups - 1;
            if (++from.group < from.groups) {
                from.rows += sizeof(Q8Block);
                from.codes += kGroupCodes;
            } else if (--from.pieces > 0) {
                from.group = 0;
                from.rows += R * rows_.row_bytes() - back * int64_t(sizeof(Q8Block));
                from.codes -= back * kGroupCodes;
            } else {
                from.group = back;
            }
        }
    }
    template <int P>
    STOLON_ALWAYS void multiply_tiles() const {
        tile_zero<kSumsAt + P>();
        tile_dot_bytes<kSumsAt + P, kActivationsAt + P, kCodesAt + P>();
    }

    // The sums of a run, half H of group g.
    template <int H>
    STOLON_ALWAYS void add_run(int64_t g, const Sums& sums, Cells& cells) const {
        const Scales scales = this->template scales_of<H, 0>(g);
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            I16 sum = i_load(sums[r]);
            if constexpr (Base::kStarts) sum = i_add(sum, this->template start<r, H>());
            this->template add_scaled<r, 0, 0>(scales, sum, cells);
        });
    }
};

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
    static constexpr TileShapes shapes = MatrixTile<T, R>::shapes();
    use_tiles(shapes);
    MatrixTile<T, R>(in, codes).run(in, pieces, [&](const F16 (&cells)[R][1]) STOLON_ALWAYS {
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
