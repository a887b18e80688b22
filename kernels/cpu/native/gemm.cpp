// Linear layers: rows of activations times tiles of packed weights.
#include <algorithm>
#include <limits>

#include "gemm_items.h"
#include "gemm_matrix.h"
#include "gemm_tile.h"
#include "gemm_together.h"

STOLON_BEGIN
namespace {

// Whether a product is little but reading a quantised weight. Then tiles go by one after the other, as they lie in memory:
// the hardware recognises that and reads ahead, faster than it does what it is asked for.
bool streams(const LinearArgs& args) {
    const auto is_plain = [](const Weight& w) { return plain(w.type); };
    return args.x->rows == 1 && std::none_of(args.weights.begin(), args.weights.end(), is_plain);
}

// How often something is asked for in an item, over all rows: with each group of inputs, with tables with each piece.
int64_t visits_of(const Activations& x, const Weight& w, int tiles, bool tabled) {
    const int64_t pieces = Pieces(x.rows, kRows).count, groups = tabled ? 1 : std::max<int64_t>(1, x.k / kBlock);
    return pieces * groups * (tiles / tiles_at_once(w.type, int(std::min<int64_t>(x.rows, kRows)), tiles));
}

// The same over all items.
int64_t visits_of(const LinearArgs& args, const Items& items, int width, bool tabled) {
    int64_t visits = 0;
    for (const Weight& w : args.weights) visits += items.of(w) * visits_of(*args.x, w, width, tabled);
    return args.gate == Gate::None ? visits : 2 * visits;
}

// All rows by the tiles of one item of one weight, piece by piece, while the memory of another is asked for.
class Product {
    const Activations* x_;
    const Weight* w_;
    const Item item_;
    const Pieces pieces_;
    const B64* const table_;
    Fetch fetch_;

public:
    // `table`: room for that of a tile, or null.
    Product(const Activations* x, const Weight& w, const Item& item, B64* table, Bytes next, CacheRows* rows, int64_t pace)
        : x_(x), w_(&w), item_(item), pieces_(x->rows, kRows), table_(table) {
        if (table_) fill_table(w, item.tile, table);
        fetch_ = fetch_in(visits_of(*x, w, item.tiles, table_), next, rows, pace);
    }

    // Pieces [begin, end) to out. Meanwhile what lies at `ahead`, if it is not null, is asked for: results will go there, and
    // rows lie far apart.
    void compute(int64_t begin, int64_t end, const Ending* ending, float* out, int64_t stride, const float* ahead) {
        const int64_t smaller = std::clamp(pieces_.larger(), begin, end);  // where pieces of one row less begin
        const int64_t done = (pieces_.begin(smaller) - pieces_.begin(begin)) * stride;
        const int width = tiles_at_once(w_->type, int(pieces_.rows(begin)), item_.tiles);
        for (int tile = 0; tile < item_.tiles; tile += x_->together ? 1 : width) {
            float* const to = out + tile * kTile;
            const float* const soon = ahead ? ahead + tile * kTile : nullptr;
            equal(begin, smaller, tile, width, ending, to, stride, soon);
            equal(smaller, end, tile, width, ending, to + done, stride, soon ? soon + done : nullptr);
        }
    }

private:
    // Pieces [begin, end), which have as many rows.
    void equal(int64_t begin, int64_t end, int tile, int width, const Ending* ending, float* out, int64_t stride,
               const float* ahead) {
        if (begin == end) return;
        const int64_t rows = pieces_.rows(begin);
        Operands in{x_, w_, pieces_.begin(begin), item_.tile + tile, &fetch_};
        if constexpr (kTogether)
            if (x_->together) return together_pieces(rows, in, table_, end - begin, ending, out, stride, ahead);
        const TileFunction function = tile_function(w_->type, int(rows), width);
        for (; begin < end; ++begin) {
            if (ahead)
                for (int64_t r = 0; r < rows; ++r, ahead += stride)
                    for (int c = 0; c < width; ++c) __builtin_prefetch(ahead + c * kTile, 1);
            function(in, ending, out, stride);
            in.row += rows;
            out += rows * stride;
        }
    }
};

constexpr int64_t kSingleTileRows = 32;
static_assert(kSingleTileRows <= kTabledRows);  // there is room for one table

constexpr int64_t kChunk = 8 * kColumns;  // pieces of a tile whose rows wait for their gates

}  // namespace

// With fewer rows, a step has a schedule of its own for each number of them.
extern const int64_t together_rows = kTogether ? 9 : std::numeric_limits<int64_t>::max();

bool by_unit(std::span<const Weight> weights, std::span<const Weight> up) {
    return takes_unit(weights) && takes_unit(up);
}

void linear(const Lane& lane, const LinearArgs& args) {
    const bool gated = args.gate != Gate::None;
    if (by_unit(args.weights, {args.up, gated ? args.weights.size() : 0})) return matrix_linear(lane, args);
    const bool tabled = args.x->together >= kTabledRows;
    B64* const table = tabled ? reinterpret_cast<B64*>(lane.scratch) : nullptr;
    B64* const gate_table = tabled && gated ? table + args.x->k / kBlock * kScaleLevels : nullptr;
    const bool streamed = streams(args);
    // Tiles of an item. With many rows an item takes long, and lanes should end together.
    const int width = streamed || args.x->together >= kSingleTileRows ? 1 : kColumns;
    const Items items(args.weights, width);
    const int64_t total = items.count();
    alignas(64) float cells[kChunk * kRows * kTile], gates[kChunk * kRows * kTile];
    const Pieces pieces(args.x->rows, kRows);
    const int64_t chunks = (pieces.count * width + kChunk - 1) / kChunk;
    const int64_t pace = pace_of(lane, args, visits_of(args, items, width, tabled));
    Lane::Run run = lane.claim_run(*args.counter, total);
    int64_t index = run.begin;
    while (index < total) {
        if (++run.begin == run.end) run = lane.claim_run(*args.counter, total);
        const int64_t next = run.begin;
        const Item item = items[index];
        // After the last item of this call: the first one of the next.
        Bytes soon{}, soon_up{};
        int64_t next_column = -1;
        if (next < total) {
            const Item following = items[next];
            next_column = following.column;
            if (!streamed || next != index + 1) {
                soon = bytes_of(args.weights[following.weight], following);
                if (gated) soon_up = bytes_of(args.up[following.weight], following);
            }
        } else {
            soon = first_bytes(lane, args.upcoming, width);
        }
        const Weight& w = args.weights[item.weight];
        const int columns = item.tiles * kTile;
        const int64_t valid = std::min<int64_t>(columns, w.columns - item.tile * kTile);
        Product product(args.x, gated ? args.up[item.weight] : w, item, table, gated ? soon_up : soon, args.cache_rows, pace);
        Product gate_product(args.x, w, item, gate_table, soon, args.cache_rows, pace);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t begin = pieces.count * chunk / chunks, end = pieces.count * (chunk + 1) / chunks;
            const int64_t row = pieces.begin(begin), count = pieces.begin(end) - row;
            const int64_t first = row * args.out_stride + item.column;
            const Ending ending{row, item.tile, args.gate, gated ? gates : nullptr, columns,
                                args.bias ? args.bias + item.column : nullptr, args.softcap,
                                args.residual ? args.residual + first : nullptr, args.out_stride};
            const float* ahead = next_column < 0 ? nullptr : args.out + row * args.out_stride + next_column;
            if (gated) gate_product.compute(begin, end, nullptr, gates, columns, nullptr);
            if (valid == columns) {
                product.compute(begin, end, ending.nothing() ? nullptr : &ending, args.out + first, args.out_stride, ahead);
            } else {
                product.compute(begin, end, nullptr, cells, columns, nullptr);
                finish_padded(ending, cells, count, columns, valid, args.out + first, args.out_stride);
            }
        }
        index = next;
    }
}

STOLON_END
