// One tile of a product with a quantised weight: R rows of activations by C tiles of 16 columns, group of inputs by
// group of inputs.
//
// What an element goes through (which products, in which order they are summed) does not depend on R, C, or its
// place in them, so a row's result does not depend on the batch.
#pragma once

#include <type_traits>

#include "gemm_rows.h"
#include "matrix_unit.h"

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
//
// `Matrix`: of one tile, by the matrix unit, which leaves sums in memory.
template <WeightType T, int R, int C, bool Matrix = false>
class QuantisedTile {
    static constexpr QuantLayout L = quant_layout(T);
    static constexpr int kHalves = T == WeightType::Q6_K ? 2 : 1;  // runs of a group
    static constexpr int kQuartets = 8 / kHalves;                  // of a run
    static constexpr bool kOffsets = T == WeightType::Q5_1 || T == WeightType::Q4_K || T == WeightType::Q5_K;
    static constexpr bool kZero = L.zero && !(L.bits == 8 && kCentred8);
    static_assert(kHalves == 1 || kHalfStart == -L.zero);

    static_assert(!Matrix || C == 1);
    struct Stored {
        alignas(64) int32_t of[R][kTile];
    };
    struct Held {
        I16 of[R][C];
    };
    using Sums = std::conditional_t<Matrix, Stored, Held>;
    using Cells = F16[R][C];

    const int64_t groups_, tile_bytes_;
    const uint8_t* const first_;
    // Of the group that `next` has come to.
    Rows<R> rows_;
    const uint8_t* codes_;
    const uint8_t* bytes_;  // codes a byte each, [groups][quartets][64], if it is Matrix

public:
    explicit QuantisedTile(const Operands& in, const uint8_t* bytes = nullptr)
        : groups_(in.x->k / 32), tile_bytes_(in.w->tile_bytes), first_(in.weights()),
          rows_(in.x->q8 + in.row * in.x->q8_stride, in.x->q8_stride),
          codes_(first_ + L.codes_at(0)), bytes_(bytes) {}

#if defined(STOLON_AMX)
    static constexpr TileShapes shapes() {
        TileShapes of;
        for (int parity = 0; parity < 2; ++parity) {
            of.set(kSumsAt + parity, R, 64);
            of.set(kActivationsAt + parity, R, kBlock / kHalves);
            of.set(kCodesAt + parity, kQuartets, 64);
        }
        return of;
    }
#endif

    STOLON_ALWAYS void run(const Operands& in, Cells& cells) {
        Fetch fetch = *in.fetch;
        clear(cells);
        add_runs(fetch, cells);
        *in.fetch = fetch;
        finish(in, cells);
    }

#if defined(STOLON_AMX)
    // `pieces` pieces, one after the other; `put` takes the cells of each. The number of runs is even.
    //
    // What the unit takes for a run are steps that wait for one another, and long: tiles are loaded, multiplied, stored, and the
    // sums can't be loaded until the store is through. So the steps of five runs are interleaved, from piece to piece too: that
    // of run n + 4 is loaded while n + 3 is multiplied, n + 2 stored, and n scaled, with two tiles of each kind by turns.
    template <class Put>
    STOLON_ALWAYS void run_pieces(const Operands& in, int64_t pieces, Put&& put) {
        Fetch fetch = *in.fetch;
        Sums sums[4];
        Loads loads{rows_.first(), bytes_, groups_, pieces};
        load_tiles<0>(loads);
        multiply_tiles<0>();
        load_tiles<1>(loads);
        multiply_tiles<1>();
        load_tiles<0>(loads);
        tile_store<kSumsAt>(sums[0].of, 64);
        multiply_tiles<0>();
        load_tiles<1>(loads);
        tile_store<kSumsAt + 1>(sums[1].of, 64);
        int64_t n = 0;
        for (; pieces; --pieces) {
            Cells cells;
            clear(cells);
            for (int64_t g = 0; g < groups_;) {
                fetch.some();
                unrolled<2>([&]<int P>() STOLON_ALWAYS {
                    multiply_tiles<1 - P>();
                    load_tiles<P>(loads);
                    tile_store<kSumsAt + P>(sums[(n + 2 + P) & 3].of, 64);
                    scale_all<P % kHalves, 0>(g, sums[(n + P) & 3], cells);
                    if constexpr (kHalves == 1 || P == 1) next(++g);
                });
                n += 2;
            }
            finish(in, cells);
            put(cells);
            rows_.skip(R * rows_.row_bytes() - groups_ * int64_t(sizeof(Q8Block)));
            codes_ = first_ + L.codes_at(0);
        }
        *in.fetch = fetch;
    }
#endif

private:
    STOLON_ALWAYS static void clear(Cells& cells) {
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS { cells[I / C][I % C] = f_zero(); });
    }

    STOLON_ALWAYS void finish(const Operands& in, Cells& cells) const {
        if constexpr (paired(T)) {
            unrolled<C>([&]<int c>() STOLON_ALWAYS {
                const F16 unit = f_mul(f_powers(in.w->units + (in.tile + c) * kTile), f_set(kPowerUnit));
                unrolled<R>([&]<int r>() STOLON_ALWAYS { cells[r][c] = f_mul(cells[r][c], unit); });
            });
        }
    }

#if defined(STOLON_AMX)
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
#endif

    STOLON_ALWAYS void add_runs(Fetch& fetch, Cells& cells) {
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
    }

    static constexpr int kSumsAt = 0, kActivationsAt = 2, kCodesAt = 4;  // numbers of tiles

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

    // What a sum of row r begins with, which takes the zero point off the codes; `At` blocks from where `next` has come to.
    static constexpr bool kStarts = paired(T) || kHalves == 2 || kZero;
    template <int r, int H, int At = 0>
    STOLON_ALWAYS I16 start() const {
        constexpr int at = At * int(sizeof(Q8Block));
        if constexpr (paired(T))
            return rows_.template spread<r, at + kPairStartAt>();
        else if constexpr (kHalves == 2)
            return rows_.template spread<r, at + kHalfStartsAt + 4 * H>();
        else
            return i_times<L.zero>(rows_.template spread<r, at + kMinusSumAt>());
    }

    template <int H>
    STOLON_ALWAYS void begin(Sums& sums) const {
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            I16 first = i_set(0);
            if constexpr (kStarts) first = start<r, H>();
            unrolled<C>([&]<int c>() STOLON_ALWAYS { sums.of[r][c] = first; });
        });
    }

    // sums[r][c] += codes of quartet Q times the activations of row r.
    template <int Q>
    STOLON_ALWAYS void add_quartet(Sums& sums) const {
        B64 codes[C];
        unrolled<C>([&]<int c>() STOLON_ALWAYS { codes[c] = load_codes<L.bits, Q>(codes_ + c * tile_bytes_); });
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            unrolled<C>([&]<int c>() STOLON_ALWAYS {
                rows_.template dot<r, kValuesAt + 4 * Q, L.bits>(sums.of[r][c], codes[c]);
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

    // The sum of one element, complete, of half H of the group `Back` before.
    template <int r, int c, int H, int Back>
    STOLON_ALWAYS I16 sum_of(const Sums& sums) const {
        if constexpr (!Matrix)
            return sums.of[r][c];
        else if constexpr (kStarts)
            return i_add(i_load(sums.of[r]), start<r, H, -Back>());
        else
            return i_load(sums.of[r]);
    }

    // Add the scaled sum of one element, number I of them, of half H of the group `Back` before.
    template <int I, int H, int Back>
    STOLON_ALWAYS void scale(const Scales& scales, const Sums& sums, Cells& cells) const {
        constexpr int r = I / C, c = I % C;
        constexpr int before = -Back * int(sizeof(Q8Block));
        F16& cell = cells[r][c];
        const I16 sum = sum_of<r, c, H, Back>(sums);
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

    template <int H, int Back>
    STOLON_ALWAYS void scale_all(int64_t g, const Sums& sums, Cells& cells) const {
        const Scales scales = scales_of<H, Back>(g);
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS { scale<I, H, Back>(scales, sums, cells); });
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
            unrolled<to - from>([&]<int I>() STOLON_ALWAYS { scale<from + I, Before, Back>(scales, done, cells); });
        });
    }
};

}  // namespace
STOLON_END
