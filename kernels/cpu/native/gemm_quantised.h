// One tile of a product with a quantised weight by vector instructions: R rows of activations by C tiles of 16 columns.
#pragma once

#include "gemm_runs.h"

STOLON_BEGIN
namespace {

template <WeightType T, int R, int C>
class QuantisedTile : QuantisedRuns<T, R, C> {
    using Base = QuantisedRuns<T, R, C>;
    static constexpr QuantLayout L = Base::L;
    static constexpr int kHalves = Base::kHalves, kQuartets = Base::kQuartets;
    using Base::groups_, Base::rows_, Base::codes_, Base::tile_bytes_;
    using typename Base::Cells, typename Base::Scales;
    using Sums = I16[R][C];

public:
    explicit QuantisedTile(const Operands& in) : Base(in) {}

    STOLON_ALWAYS void run(const Operands& in, Cells& cells) {
        Fetch fetch = *in.fetch;
        this->clear(cells);
        add_runs(fetch, cells);
        *in.fetch = fetch;
        this->finish(in, cells);
    }

private:
    STOLON_ALWAYS void add_runs(Fetch& fetch, Cells& cells) {
        // Two sets of sums: while the products of a run are added to one, the other is scaled. Otherwise scaling would
        // wait for the last product of a run and the first product of the next one for scaling.
        constexpr int kSets = kPipelined ? 2 : 1;
        Sums sums[kSets];
        if constexpr (!kPipelined) {
            for (int64_t g = 0; g < groups_; this->next(++g)) {
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
                this->next(g + 1);
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
                this->next(g);
                multiply_and_scale<0, 0, 1>(sums[1], g - 1, sums[0], cells);
                fetch.some();
                this->next(g + 1);
                multiply_and_scale<0, 0, 1>(sums[0], g, sums[1], cells);
            }
            if (g < groups_) {
                fetch.some();
                this->next(g);
                multiply_and_scale<0, 0, 1>(sums[1], g - 1, sums[0], cells);
                scale_all<0, 0>(g, sums[1], cells);
            } else {
                scale_all<0, 0>(g - 1, sums[0], cells);
            }
        }
    }

    // The quartets of a run in an order in which those of one load follow each other.
    static constexpr int quartet(int half, int i) { return kHalves == 2 ? 4 * half + i : i / 2 + 4 * (i % 2); }

    template <int H>
    STOLON_ALWAYS void begin(Sums& sums) const {
        unrolled<R>([&]<int r>() STOLON_ALWAYS {
            I16 first = i_set(0);
            if constexpr (Base::kStarts) first = this->template start<r, H>();
            unrolled<C>([&]<int c>() STOLON_ALWAYS { sums[r][c] = first; });
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

    // Number I of the elements, of a run with these scales, `Back` groups back.
    template <int I, int Back>
    STOLON_ALWAYS void scale(const Scales& scales, const Sums& sums, Cells& cells) const {
        this->template add_scaled<I / C, I % C, Back>(scales, sums[I / C][I % C], cells);
    }

    template <int H, int Back>
    STOLON_ALWAYS void scale_all(int64_t g, const Sums& sums, Cells& cells) const {
        const Scales scales = this->template scales_of<H, Back>(g);
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
        const Scales scales = this->template scales_of<Before, Back>(before);
        unrolled<kQuartets>([&]<int Q>() STOLON_ALWAYS {
            add_quartet<quartet(H, Q)>(sums);
            constexpr int from = Q * R * C / kQuartets, to = (Q + 1) * R * C / kQuartets;
            unrolled<to - from>([&]<int I>() STOLON_ALWAYS { scale<from + I, Back>(scales, done, cells); });
        });
    }
};

}  // namespace
STOLON_END
