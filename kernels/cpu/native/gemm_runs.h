// Products of R rows of activations with C tiles of 16 columns of a quantised weight, apart from how sums are made.
//
// Inputs go by in *runs* that share their scales, a group of 32 or half of one: the products of a run are summed in integers,
// which is exact in any order, then scaled and added to the cells, run after run. What an element goes through does not depend
// on R, C, its place in them, or what made the sums, so a row's result does not depend on the batch.
#pragma once

#include "gemm_rows.h"

STOLON_BEGIN
namespace {

// The codes of quartet Q of a group.
template <int Bits, int Q>
inline B64 load_codes(const uint8_t* group) {
    if constexpr (Bits == 8) return b_load(group + 64 * Q);
    const B64 both = b_load(group + 64 * (Q % 4));
    B64 codes = Q < 4 ? b_low(both) : b_high(both);
    if constexpr (Bits == 5) codes = b_or<4 - Q, 16>(codes, b_load(group + 256));
    if constexpr (Bits == 6) codes = b_or<4 - 2 * (Q % 4), 48>(codes, b_load(group + 256 + 64 * (Q / 4)));
    return codes;
}

template <WeightType T, int R, int C>
class QuantisedRuns {
protected:
    static constexpr QuantLayout L = quant_layout(T);
    static constexpr int kHalves = T == WeightType::Q6_K ? 2 : 1;  // runs of a group
    static constexpr int kQuartets = 8 / kHalves;                  // of a run
    static constexpr bool kOffsets = T == WeightType::Q5_1 || T == WeightType::Q4_K || T == WeightType::Q5_K;
    static constexpr bool kZero = L.zero && !(L.bits == 8 && kCentred8);
    static constexpr bool kStarts = paired(T) || kHalves == 2 || kZero;  // whether sums begin with something
    static_assert(kHalves == 1 || kHalfStart == -L.zero);

    using Cells = F16[R][C];

    const int64_t groups_, tile_bytes_;
    const uint8_t* const first_;
    // Of the group that `next` has come to.
    Rows<R> rows_;
    const uint8_t* codes_;

    explicit QuantisedRuns(const Operands& in)
        : groups_(in.x->k / 32), tile_bytes_(in.w->tile_bytes), first_(in.weights()),
          rows_(in.x->q8 + in.row * in.x->q8_stride, in.x->q8_stride), codes_(first_ + L.codes_at(0)) {}

    // To group g, the following one.
    STOLON_ALWAYS void next(int64_t g) {
        rows_.next();
        if constexpr (L.record_groups == 1)
            codes_ += L.record_bytes();
        else
            codes_ = first_ + L.codes_at(g);
    }

    // Behind the last group: to the first one of the R rows that follow.
    STOLON_ALWAYS void next_rows() {
        rows_.skip(R * rows_.row_bytes() - groups_ * int64_t(sizeof(Q8Block)));
        codes_ = first_ + L.codes_at(0);
    }

    // What a sum of row r begins with, if it does, which takes the zero point off the codes.
    template <int r, int H>
    STOLON_ALWAYS I16 start() const {
        if constexpr (paired(T))
            return rows_.template spread<r, kPairStartAt>();
        else if constexpr (kHalves == 2)
            return rows_.template spread<r, kHalfStartsAt + 4 * H>();
        else
            return i_times<L.zero>(rows_.template spread<r, kMinusSumAt>());
    }

    // Of half H of group g: as integers where they are pairs.
    struct Scales {
        F16 scale[C], offset[C];
        B64 pair[C];
    };

    template <int H, int Back>
    STOLON_ALWAYS Scales scales_of(int64_t g) const {
        Scales scales;
        unrolled<C>([&]<int c>() STOLON_ALWAYS {
            const uint8_t* s = c * tile_bytes_ + (L.record_groups == 1 ? codes_ - L.front() - Back * L.record_bytes()
                                                                       : first_ + L.scales_at(g));
            if constexpr (paired(T)) {
                scales.pair[c] = b_load(s);
            } else if constexpr (L.head) {
                const uint8_t* head = first_ + c * tile_bytes_ + L.record_at(g);
                scales.scale[c] = f_mul(f_half(head), kHalves == 2 ? f_i8(s + 16 * H) : f_u8(s));
                if constexpr (kOffsets) scales.offset[c] = f_mul(f_half(head + 32), f_mul(f_u8(s + 16), f_set(-1.0f)));
            } else {
                scales.scale[c] = f_half(s);
                if constexpr (kOffsets) scales.offset[c] = f_half(s + 32);
            }
        });
        return scales;
    }

    // Add the sum of one element, of half H of the group `Back` before, scaled.
    template <int r, int c, int Back>
    STOLON_ALWAYS void add_scaled(const Scales& scales, I16 sum, Cells& cells) const {
        constexpr int before = -Back * int(sizeof(Q8Block));
        F16& cell = cells[r][c];
        if constexpr (paired(T)) {
            const B64 pair = b_scaled(scales.pair[c], rows_.template spread<r, before + kLevelAt>());
            cell = rows_.template add_raised<r, before + kPowerAt>(cell, f_int(i_pairs(sum, pair)));
        } else {
            const F16 row_scale = f_bits(rows_.template spread<r, before + kScaleAt>());
            cell = f_fma(f_int(sum), f_mul(scales.scale[c], row_scale), cell);
            if constexpr (kOffsets)
                cell = f_fma(scales.offset[c], f_bits(rows_.template spread<r, before + kWeightedAt>()), cell);
        }
    }

    STOLON_ALWAYS static void clear(Cells& cells) {
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS { cells[I / C][I % C] = f_zero(); });
    }

    // What is left to do when the last run has been added.
    STOLON_ALWAYS static void finish(const Operands& in, Cells& cells) {
        if constexpr (paired(T)) {
            unrolled<C>([&]<int c>() STOLON_ALWAYS {
                const F16 unit = f_mul(f_powers(in.w->units + (in.tile + c) * kTile), f_set(kPowerUnit));
                unrolled<R>([&]<int r>() STOLON_ALWAYS { cells[r][c] = f_mul(cells[r][c], unit); });
            });
        }
    }
};

}  // namespace
STOLON_END
