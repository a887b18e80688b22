// Rows that lie together (activations.h) by one tile of a weight whose scales are pairs (pack.h), piece after piece.
//
// A sum of products takes two more multiplications: with the scale of the weight, and with that of the block of
// activations. Both use the ports of the products. As a block's scale has one of few mantissas (levels) and a power of two,
// which an addition to the exponent multiplies by, the products of a weight's scales with every level are had once for
// many rows, in a *table*, and one multiplication is left.
//
// What an element goes through is the same as in gemm_quantised.h.
#pragma once

#include "gemm_ending.h"
#include "gemm_rows.h"

STOLON_BEGIN
namespace {

static_assert(!kTogether || kRows == kPieceRows);

constexpr int64_t kTabledRows = 112;  // fewer do not pay for a table

// Where the vector of a level lies: the level is (kScaleLevels + i) << (14 - kScaleBits), twice.
inline int64_t table_offset(int32_t level) {
    static_assert(sizeof(B64) == 64 && 14 - kScaleBits >= 6);
    return int64_t(uint32_t(level) >> (16 + 14 - kScaleBits - 6)) - kTableBytes;
}

// The table of a tile: [groups][kScaleLevels].
void fill_table(const Weight& w, int64_t tile, B64* table) {
    constexpr QuantLayout L = quant_layout(WeightType::Q4_1);
    static_assert(paired(WeightType::Q4_1));
    const uint8_t* at = reinterpret_cast<const uint8_t*>(w.data) + tile * w.tile_bytes;
    for (int64_t g = 0; g < w.k / kBlock; ++g) {
        const B64 pair = b_load(at + L.scales_at(g));
        for (int i = 0; i < kScaleLevels; ++i)
            *table++ = b_scaled(pair, i_set(((kScaleLevels + i) << (14 - kScaleBits)) * 0x10001));
    }
}

// Pieces of R rows by one tile, with its table or without.
template <int R, bool Tabled>
class TogetherTile {
    static constexpr QuantLayout L = quant_layout(WeightType::Q4_1);
    static_assert(paired(WeightType::Q4_1) && L.record_groups == 1);
    static constexpr int kScalesStep = Tabled ? int(kTableBytes) : L.record_bytes();

    using Sums = I16[R];
    using Cells = F16[R][1];

    const int64_t groups_;
    const uint8_t* const first_codes_;
    const uint8_t* const first_scales_;
    // Of the group of inputs that `next` has come to.
    TogetherRows<R> rows_;
    const uint8_t* codes_;
    const uint8_t* scales_;  // a table, or the scales themselves

public:
    TogetherTile(const Operands& in, const B64* table)
        : groups_(in.x->k / kBlock), first_codes_(in.weights() + L.codes_at(0)),
          first_scales_(Tabled ? reinterpret_cast<const uint8_t*>(table) : in.weights() + L.scales_at(0)),
          rows_(in.x->pairs_of(in.row).begin), codes_(first_codes_), scales_(first_scales_) {}

    // To out[R * pieces][16], of which rows lie `stride` floats apart. What lies at `ahead` is asked for meanwhile.
    void run(const Operands& in, int64_t pieces, const Ending* ending, float* out, int64_t stride, const float* ahead) {
        Fetch fetch = *in.fetch;
        const F16 unit = f_mul(f_powers(in.w->units + in.tile * kTile), f_set(kPowerUnit));
        // Two sets of sums: while the products of a group are added to one, the other is scaled; so too from piece to piece.
        Sums sums[2];
        multiply(sums[0]);
        for (int64_t row = in.row;; row += R, out += R * stride) {
            fetch.some();
            if (ahead) {
                unrolled<R>([&]<int r>() STOLON_ALWAYS { __builtin_prefetch(ahead + r * stride, 1); });
                ahead += R * stride;
            }
            Cells cells;
            unrolled<R>([&]<int r>() STOLON_ALWAYS { cells[r][0] = f_zero(); });
            int64_t g = 1;
            for (; g + 2 <= groups_; g += 2) {
                if constexpr (!Tabled) fetch.some();
                next();
                multiply_and_scale(sums[1], sums[0], scales_ - kScalesStep, cells);
                if constexpr (!Tabled) fetch.some();
                next();
                multiply_and_scale(sums[0], sums[1], scales_ - kScalesStep, cells);
            }
            const bool last = --pieces == 0;
            const uint8_t* const done = scales_;
            if (g == groups_) {
                scale_all(sums[0], done, cells);
                if (!last) {
                    next_piece();
                    multiply(sums[0]);
                }
            } else {
                next();
                multiply_and_scale(sums[1], sums[0], done, cells);
                if (last) {
                    scale_all(sums[1], done + kScalesStep, cells);
                } else {
                    next_piece();
                    multiply_and_scale(sums[0], sums[1], done + kScalesStep, cells);
                }
            }
            unrolled<R>([&]<int r>() STOLON_ALWAYS { cells[r][0] = f_mul(cells[r][0], unit); });
            put(cells, row, in.tile, ending, out, stride);
            if (last) break;
        }
        *in.fetch = fetch;
    }

private:
    // To the following group.
    STOLON_ALWAYS void next() {
        rows_.next();
        codes_ += L.record_bytes();
        scales_ += kScalesStep;
    }

    // From the last group of a piece to the first one of the following piece.
    STOLON_ALWAYS void next_piece() {
        rows_.next();
        codes_ = first_codes_;
        scales_ = first_scales_;
    }

    // sums[r] += codes of quartet Q times the activations of row r.
    template <int Q>
    STOLON_ALWAYS void add_quartet(Sums& sums) const {
        const B64 both = b_load(codes_ + 64 * (Q % 4)), codes = Q < 4 ? b_low(both) : b_high(both);
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            rows_.template dot<r, int(offsetof(PairBlock, values)) + 4 * Q, L.bits>(sums[r], codes);
        });
    }

    // Quartets in an order in which those of one load follow each other.
    static constexpr int quartet(int i) { return i / 2 + 4 * (i % 2); }

    // What takes the zero point off the codes.
    STOLON_ALWAYS void begin(Sums& sums) const {
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            sums[r] = rows_.template spread<r, int(offsetof(PairBlock, pair_start))>();
        });
    }

    STOLON_ALWAYS void multiply(Sums& sums) const {
        begin(sums);
        unrolled<8>([&]<int I>() STOLON_ALWAYS { add_quartet<quartet(I)>(sums); });
    }

    // Add the scaled sums of row r, of the group `Back` before, whose scales are `scales`.
    template <int r, int Back>
    STOLON_ALWAYS void scale(const Sums& sums, const uint8_t* scales, Cells& cells) const {
        constexpr int before = -Back * TogetherRows<R>::kGroupBytes;
        constexpr int level = before + int(offsetof(PairBlock, level)), power = before + int(offsetof(PairBlock, power));
        B64 pair;
        if constexpr (Tabled)
            pair = b_load(scales + table_offset(rows_.template word<r, level>()));
        else
            pair = b_scaled(b_load(scales), rows_.template spread<r, level>());
        const F16 product = rows_.template raised<r, power>(f_int(i_pairs(sums[r], pair)));
        cells[r][0] = f_add(cells[r][0], product);
    }

    STOLON_ALWAYS void scale_all(const Sums& sums, const uint8_t* scales, Cells& cells) const {
        unrolled<R>([&]<int r>() STOLON_ALWAYS { scale<r, 0>(sums, scales, cells); });
    }

    // The products of a group, and between them what is to be done with the sums of the group before.
    STOLON_ALWAYS void multiply_and_scale(Sums& sums, const Sums& done, const uint8_t* scales, Cells& cells) const {
        begin(sums);
        unrolled<8>([&]<int I>() STOLON_ALWAYS {
            add_quartet<quartet(I)>(sums);
            constexpr int from = I * R / 8, to = (I + 1) * R / 8;
            unrolled<to - from>([&]<int J>() STOLON_ALWAYS { scale<from + J, 1>(done, scales, cells); });
        });
    }
};

// `pieces` pieces of `rows` rows each; without a table if `table` is null.
template <int R = kRows>
void together_pieces(int64_t rows, const Operands& in, const B64* table, int64_t pieces, const Ending* ending, float* out,
                     int64_t stride, const float* ahead) {
    if constexpr (R > 0) {
        if (rows != R)
            together_pieces<R - 1>(rows, in, table, pieces, ending, out, stride, ahead);
        else if (table)
            TogetherTile<R, true>(in, table).run(in, pieces, ending, out, stride, ahead);
        else
            TogetherTile<R, false>(in, table).run(in, pieces, ending, out, stride, ahead);
    }
}

}  // namespace
STOLON_END
