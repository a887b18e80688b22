// One tile of a product with a quantised weight: R rows of activations by C tiles of 16 columns, group of inputs by
// group of inputs.
//
// What an element goes through (which products, in which order they are summed) does not depend on R, C, or its
// place in them, so a row's result does not depend on the batch.
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

// R rows by C tiles of a quantised type. Inputs go by in *runs* that share their scales, a group or half of one: the
// products of a run are summed in integers, which is exact, then scaled and added to the cells, run after run.
template <WeightType T, int R, int C>
class QuantisedTile {
    static constexpr QuantLayout L = quant_layout(T);
    static constexpr int kHalves = T == WeightType::Q6_K ? 2 : 1;  // runs of a group
    static constexpr int kQuartets = 8 / kHalves;                  // of a run
    static constexpr bool kOffsets = T == WeightType::Q5_1 || T == WeightType::Q4_K || T == WeightType::Q5_K;
    static constexpr bool kZero = L.zero && !(L.bits == 8 && kCentred8);
    static_assert(kHalves == 1 || kHalfStart == -L.zero);

    using Sums = I16[R][C];
    using Cells = F16[R][C];

    const int64_t groups_, tile_bytes_;
    const uint8_t* const first_;
    // Of the group that `next` has come to.
    Rows<R> rows_;
    const uint8_t* codes_;

public:
    explicit QuantisedTile(const Operands& in)
        : groups_(in.x->k / 32), tile_bytes_(in.w->tile_bytes), first_(in.weights()),
          rows_(in.x->q8 + in.row * in.x->q8_stride, in.x->q8_stride),
          codes_(first_ + L.codes_at(0)) {}

    STOLON_ALWAYS void run(const Operands& in, Cells& cells) {
        Fetch fetch = *in.fetch;
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS { cells[I / C][I % C] = f_zero(); });
        // Two sets of sums: while the products of a run are added to one, the other is scaled. Otherwise scaling would
        // wait for the last product of a run and the first product of the next one for scaling.
        constexpr int kSets = kPipelined ? 2 : 1;
        Sums sums[kSets];
        if constexpr (!kPipelined) {
            for (int64_t g = 0; g < groups_; next(++g)) {
                fetch.some();
                unrolled<kHalves>([&]<int H>() STOLON_ALWAYS {
                    multiply<H>(sums[0]);
                    scale_all<H, 0>(g, sums[0], cells);
                });
            }
        } else if constexpr (kHalves == 2) {
            multiply<0>(sums[0]);
            for (int64_t g = 0; g + 1 < groups_; ++g) {
                fetch.some();
                multiply_and_scale<1, 0, 0>(sums[1], g, sums[0], cells);
                next(g + 1);
                multiply_and_scale<0, 1, 1>(sums[0], g, sums[1], cells);
            }
            fetch.some();
            multiply_and_scale<1, 0, 0>(sums[1], groups_ - 1, sums[0], cells);
            scale_all<1, 0>(groups_ - 1, sums[1], cells);
        } else {
            fetch.some();
            multiply<0>(sums[0]);
            int64_t g = 1;
            for (; g + 2 <= groups_; g += 2) {
                fetch.some();
                next(g);
                multiply_and_scale<0, 0, 1>(sums[1], g - 1, sums[0], cells);
                fetch.some();
                next(g + 1);
                multiply_and_scale<0, 0, 1>(sums[0], g, sums[1], cells);
            }
            if (g < groups_) {
                fetch.some();
                next(g);
                multiply_and_scale<0, 0, 1>(sums[1], g - 1, sums[0], cells);
                scale_all<0, 0>(g, sums[1], cells);
            } else {
                scale_all<0, 0>(g - 1, sums[0], cells);
            }
        }
        *in.fetch = fetch;
        if constexpr (paired(T)) {
            unrolled<C>([&]<int c>() STOLON_ALWAYS {
                const F16 unit = f_mul(f_powers(in.w->units + (in.tile + c) * kTile), f_set(kPowerUnit));
                unrolled<R>([&]<int r>() STOLON_ALWAYS { cells[r][c] = f_mul(cells[r][c], unit); });
            });
        }
    }

private:
    // To group g, the following one.
    STOLON_ALWAYS void next(int64_t g) {
        rows_.next();
        if constexpr (L.record_groups == 1)
            codes_ += L.record_bytes();
        else
            codes_ = first_ + L.codes_at(g);
    }

    // The quartets of a run in an order in which those of one load follow each other.
    static constexpr int quartet(int half, int i) { return kHalves == 2 ? 4 * half + i : i / 2 + 4 * (i % 2); }

    // Sums before the first product: what takes the zero point off the codes.
    template <int H>
    STOLON_ALWAYS void begin(Sums& sums) const {
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            I16 start = i_set(0);
            if constexpr (paired(T)) {
                start = rows_.template spread<r, kPairStartAt>();
            } else if constexpr (kHalves == 2) {
                start = rows_.template spread<r, kHalfStartsAt + 4 * H>();
            } else if constexpr (kZero) {
                start = i_times<L.zero>(rows_.template spread<r, kMinusSumAt>());
            }
            unrolled<C>([&]<int c>() STOLON_ALWAYS { sums[r][c] = start; });
        });
    }

    // sums[r][c] += codes of quartet Q times the activations of row r.
    template <int Q>
    STOLON_ALWAYS void add_quartet(Sums& sums) const {
        B64 codes[C];
        unrolled<C>([&]<int c>() STOLON_ALWAYS { codes[c] = load_codes<L.bits, Q>(codes_ + c * tile_bytes_); });
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            unrolled<C>([&]<int c>() STOLON_ALWAYS {
                rows_.template dot<r, kValuesAt + 4 * Q, L.bits>(sums[r][c], codes[c]);
            });
        });
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

    // Add the scaled sums of one element, number I of them, of the group `Back` before.
    template <int I, int Back>
    STOLON_ALWAYS void scale(const Scales& scales, const Sums& sums, Cells& cells) const {
        constexpr int r = I / C, c = I % C;
        constexpr int before = -Back * int(sizeof(Q8Block));
        F16& cell = cells[r][c];
        if constexpr (paired(T)) {
            const B64 pair = b_scaled(scales.pair[c], rows_.template spread<r, before + kLevelAt>());
            const F16 product = f_int(i_pairs(sums[r][c], pair));
            cell = f_add(cell, rows_.template raised<r, before + kPowerAt>(product));
        } else {
            const F16 row_scale = f_bits(rows_.template spread<r, before + kScaleAt>());
            cell = f_fma(f_int(sums[r][c]), f_mul(scales.scale[c], row_scale), cell);
            if constexpr (kOffsets)
                cell = f_fma(scales.offset[c], f_bits(rows_.template spread<r, before + kWeightedAt>()), cell);
        }
    }

    template <int H, int Back>
    STOLON_ALWAYS void scale_all(int64_t g, const Sums& sums, Cells& cells) const {
        const Scales scales = scales_of<H, Back>(g);
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS { scale<I, Back>(scales, sums, cells); });
    }

    template <int H>
    STOLON_ALWAYS void multiply(Sums& sums) const {
        begin<H>(sums);
        unrolled<kQuartets>([&]<int Q>() STOLON_ALWAYS { add_quartet<quartet(H, Q)>(sums); });
    }

    // The products of a run, half H, and between them what is to be done with the sums of the run before: half Before of
    // group `before`, `Back` groups back.
    template <int H, int Before, int Back>
    STOLON_ALWAYS void multiply_and_scale(Sums& sums, int64_t before, const Sums& done, Cells& cells) const {
        begin<H>(sums);
        const Scales scales = scales_of<Before, Back>(before);
        unrolled<kQuartets>([&]<int Q>() STOLON_ALWAYS {
            add_quartet<quartet(H, Q)>(sums);
            constexpr int from = Q * R * C / kQuartets, to = (Q + 1) * R * C / kQuartets;
            unrolled<to - from>([&]<int I>() STOLON_ALWAYS { scale<from + I, Back>(scales, done, cells); });
        });
    }
};

}  // namespace
STOLON_END
