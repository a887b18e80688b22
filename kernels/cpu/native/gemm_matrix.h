// Products through the matrix unit: rows of activations in bfloat16 times panels of weights in bfloat16.
//
// The unit adds 32 inputs at once to a sum: of the even and of the odd ones each in order, then both, then that and what was
// there. So an element is a sum over 32 inputs after 32 inputs, for one row as for many, and a row's result does not depend on
// the batch. Panels are made once for all rows of a call; that is what a product with few rows takes most of its time for.
#pragma once

#include "gemm_ending.h"
#include "gemm_items.h"
#include "gemm_tile.h"
#include "matrix_panel.h"
#include "matrix_unit.h"

STOLON_BEGIN

#if defined(STOLON_AMX)

namespace {

constexpr int kBlockOfRows = 2 * kUnitRows;
static_assert(kUnitRows == kTiledRows && kUnitInputs == kBlock);
constexpr int kPanels = 2;  // at once: of neighbouring columns, or a gate's and what it gates

// Whether the panels of a weight are its own memory.
constexpr bool is_panel(const Weight& w) { return w.type == WeightType::BF16; }

// Up to 32 rows, two tiles of them one below the other, by panels.
class Block {
    Activations::Tiled halves_[2];

public:
    // From `row` on, where a tile begins.
    Block(const Activations& x, int64_t row) : halves_{x.tiled_at(row), x.tiled_at(row)} {
        if (x.first + row + kUnitRows < x.tiled) halves_[1] = x.tiled_at(row + kUnitRows);
    }

    // Add group g of the inputs to the sums of all halves and panels from P to P + Count.
    template <int Halves, int P, int Count>
    STOLON_ALWAYS void add(int64_t g, const bf16* const (&panels)[kPanels]) const {
        unrolled<Halves>([&]<int H>() STOLON_ALWAYS { UnitTiles::load_half<H>(halves_[H].begin + g * halves_[H].step, 64); });
        unrolled<Count>([&]<int I>() STOLON_ALWAYS {
            UnitTiles::load_columns<P + I>(panels[P + I] + g * kGroupPanel, 64);
            unrolled<Halves>([&]<int H>() STOLON_ALWAYS { UnitTiles::multiply<H, P + I>(); });
        });
    }
};

// All rows by one or two panels.
class MatrixProduct {
    UnitTiles& unit_;
    const LinearArgs& args_;
    const Item item_;
    const Weight* weights_[kPanels];  // of the panels
    int64_t tiles_[kPanels];
    const bf16* panels_[kPanels];
    bf16* rooms_[kPanels];
    int count_;
    Fetch* const fetches_;

    const int64_t groups_;
    const int64_t valid_;  // columns of the item that are not padding
    const bool gated_;
    const int64_t lead_;  // rows before the first in its tile
    alignas(64) float cells_[kPanels][kBlockOfRows][kTile];

public:
    MatrixProduct(UnitTiles& unit, const LinearArgs& args, const Item& item, std::byte* scratch, Fetch* fetches)
        : unit_(unit), args_(args), item_(item), fetches_(fetches), groups_(args.x->k / kBlock),
          valid_(std::min<int64_t>(item.tiles * kTile, args.weights[item.weight].columns - item.tile * kTile)),
          gated_(args.gate != Gate::None), lead_(args.x->first % kUnitRows) {
        count_ = gated_ ? 2 : item.tiles;
        for (int p = 0; p < kPanels; ++p) {
            weights_[p] = gated_ && p == 1 ? &args.up[item.weight] : &args.weights[item.weight];
            tiles_[p] = item.tile + (gated_ ? 0 : p);
            rooms_[p] = reinterpret_cast<bf16*>(scratch) + p * groups_ * kGroupPanel;
            panels_[p] = rooms_[p];
            if (is_panel(*weights_[p]))
                panels_[p] = reinterpret_cast<const bf16*>(weights_[p]->data + tiles_[p] * weights_[p]->tile_bytes);
        }
    }

    void run() {
        // Blocks begin where tiles of rows do. What is left over of whole ones comes first, while the panels are made.
        const int64_t rows = lead_ + args_.x->rows, last = (rows - 1) / kBlockOfRows * kBlockOfRows;
        const int rest = int(rows - last);
        unit_.of(rest);
        const auto with_count = [&]<int Count>() {
            if (rest > kUnitRows)
                begin<2, Count>(last, rest);
            else
                begin<1, Count>(last, rest);
            if (!last) return;
            unit_.of(kBlockOfRows);
            for (int64_t row = 0; row < last; row += kBlockOfRows) multiply<Count>(row);
        };
        if (count_ == 2)
            with_count.template operator()<2>();
        else
            with_count.template operator()<1>();
    }

private:
    // Rows are counted from where the tile begins that the first one lies in.
    Block block(int64_t row) const { return {*args_.x, row - lead_}; }

    template <int Halves, int Count>
    void begin(int64_t row, int rows) {
        const Block these = block(row);
        UnitTiles::clear<Halves, Count>();
        unrolled<Count>([&]<int P>() {
            for_type(weights_[P]->type, [&]<WeightType T>() {
                if constexpr (!plain(T))
                    make_and_multiply<T, Halves, P>(these);
                else
                    for (int64_t g = 0; g < groups_; ++g, fetches_[P].some()) these.add<Halves, P, 1>(g, panels_);
            });
        });
        put<Halves, Count>(row, rows);
    }

    // A group is multiplied a little after it was made: what was just stored can't be loaded yet.
    template <WeightType T, int Halves, int P>
    void make_and_multiply(const Block& rows) {
        constexpr int64_t kBehind = 2;
        const PanelMaker<T> maker(*weights_[P], tiles_[P]);
        Fetch fetch = fetches_[P];
        for (int64_t g = 0; g < groups_; ++g) {
            fetch.some();
            maker.group(g, rooms_[P] + g * kGroupPanel);
            if (g >= kBehind) rows.template add<Halves, P, 1>(g - kBehind, panels_);
        }
        for (int64_t g = std::max<int64_t>(0, groups_ - kBehind); g < groups_; ++g)
            rows.template add<Halves, P, 1>(g, panels_);
        fetches_[P] = fetch;
    }

    // A whole block from `row` on.
    template <int Count>
    void multiply(int64_t row) {
        const Block rows = block(row);
        UnitTiles::clear<2, Count>();
        for (int64_t g = 0; g < groups_; ++g) rows.add<2, 0, Count>(g, panels_);
        put<2, Count>(row, kBlockOfRows);
    }

    // The sums of a block to where they go, but for rows that are none of this call's.
    template <int Halves, int Count>
    void put(int64_t row, int rows) {
        const int64_t skipped = std::max<int64_t>(0, lead_ - row), count = rows - skipped;
        row += skipped - lead_;
        const int64_t stride = args_.out_stride, first = row * stride + item_.column;
        Ending ending{row, item_.tile, args_.gate, gated_ ? cells_[0][skipped] : nullptr, kTile,
                      args_.bias ? args_.bias + item_.column : nullptr, args_.softcap,
                      args_.residual ? args_.residual + first : nullptr, stride};
        if (args_.tiles) {
            UnitTiles::store<Halves, Count>({cells_[0][0], cells_[1][0]}, kTile);
            return put_tiles(row, count, skipped);
        }
        float* to = args_.out + first;
        if (ending.nothing() && valid_ == item_.tiles * kTile && !skipped)
            return UnitTiles::store<Halves, Count>({to, to + kTile}, stride);
        UnitTiles::store<Halves, Count>({cells_[0][0], cells_[1][0]}, kTile);
        for (int tile = 0; tile < item_.tiles; ++tile, to += kTile) {
            const float* const cells = cells_[gated_ ? 1 : tile][skipped];
            const int64_t valid = std::min<int64_t>(kTile, valid_ - tile * kTile);
            if (valid < kTile)
                finish_padded(ending, cells, count, kTile, valid, to, stride);
            else
                finish(ending, cells, count, to, stride);
            if (ending.bias) ending.bias += kTile;
            if (ending.residual) ending.residual += kTile;
        }
    }

    // Gated, to the tiles of rows that the next product takes.
    void put_tiles(int64_t row, int64_t count, int64_t from) {
        for (int64_t r = 0; r < count; ++r) {
            const auto [begin, step] = args_.tiles->tiled_at(row + r);
            const vf gate = activate(vload(cells_[0][from + r]), args_.gate), v = gate * vload(cells_[1][from + r]);
            vstore_bf16(begin + item_.column / kBlock * step + item_.column % kBlock, v);
        }
    }
};

// Whether all weights of a product are such that the unit takes them.
bool takes_unit(std::span<const Weight> weights) {
    return std::all_of(weights.begin(), weights.end(), [](const Weight& w) {
        return !plain(w.type) || (w.type == WeightType::BF16 && w.k % kBlock == 0);
    });
}

void matrix_linear(const Lane& lane, const LinearArgs& args) {
    const bool gated = args.gate != Gate::None;
    const int width = gated ? 1 : kPanels;
    const Items items(args.weights, width);
    const int64_t total = items.count(), groups = args.x->k / kBlock;
    const int64_t pace = pace_of(lane, args, total * kPanels * groups);
    UnitTiles unit;
    Lane::Run run = lane.claim_run(*args.counter, total);
    int64_t index = run.begin;
    while (index < total) {
        if (++run.begin == run.end) run = lane.claim_run(*args.counter, total);
        const int64_t next = run.begin;
        Bytes soon[kPanels] = {};
        if (next >= total) {
            soon[0] = first_bytes(lane, args.upcoming, width);
        } else {
            const Item following = items[next];
            soon[0] = bytes_of(args.weights[following.weight], following);
            if (gated) soon[1] = bytes_of(args.up[following.weight], following);
        }
        Fetch fetches[kPanels];
        for (int p = 0; p < kPanels; ++p) fetches[p] = fetch_in(groups, soon[p], args.cache_rows, pace);
        MatrixProduct(unit, args, items[index], lane.scratch, fetches).run();
        index = next;
    }
}

}  // namespace

#else

namespace {

bool takes_unit(std::span<const Weight>) { return false; }
void matrix_linear(const Lane&, const LinearArgs&) {}

}  // namespace

#endif

STOLON_END
