// Linear layers: rows of activations times tiles of packed weights.
#include <algorithm>
#include <limits>

#include "gemm_matrix.h"
#include "gemm_together.h"

STOLON_BEGIN
namespace {

struct Item {
    size_t weight;
    int64_t tile, column;  // the first tile of the item, its first column in the output
    int tiles;
};

int64_t tiles_of(const Weight& w) { return (w.columns + kTile - 1) / kTile; }

// What lanes divide matrices side by side into: so many tiles each, of one matrix.
class Items {
    std::span<const Weight> weights_;
    int width_;

public:
    Items(std::span<const Weight> weights, int width) : weights_(weights), width_(width) {}

    int64_t of(const Weight& w) const { return (tiles_of(w) + width_ - 1) / width_; }
    int64_t count() const {
        int64_t sum = 0;
        for (const Weight& w : weights_) sum += of(w);
        return sum;
    }
    // Number `index`, which is less than the count.
    Item operator[](int64_t index) const {
        int64_t column = 0;
        size_t weight = 0;
        for (int64_t items; index >= (items = of(weights_[weight])); ++weight) {
            index -= items;
            column += weights_[weight].columns;
        }
        const int64_t tile = index * width_;
        return {weight, tile, column + tile * kTile, int(std::min<int64_t>(width_, tiles_of(weights_[weight]) - tile))};
    }
};

struct Bytes {
    const uint8_t* begin;
    const uint8_t* end;
};

// The memory that an item takes of a weight.
Bytes bytes_of(const Weight& w, const Item& item) {
    const uint8_t* begin = reinterpret_cast<const uint8_t*>(w.data) + item.tile * w.tile_bytes;
    return {begin, begin + item.tiles * w.tile_bytes};
}

// Whether a product is little but reading a quantised weight. Then tiles go by one after the other, as they lie in memory:
// the hardware recognises that and reads ahead, faster than it does what it is asked for.
bool streams(const LinearArgs& args) {
    const auto is_plain = [](const Weight& w) { return plain(w.type); };
    return args.x->rows == 1 && std::none_of(args.weights.begin(), args.weights.end(), is_plain);
}

// How the rows of a call go by.
struct Way {
    bool tabled;  // with tables of scales (gemm_together.h)
    bool matrix;  // through the matrix unit, which takes pairs of groups

    Way(const LinearArgs& args) : tabled(args.x->together >= kTabledRows) {
        const auto is_plain = [](const Weight& w) { return plain(w.type); };
        matrix = args.x->rows >= kMatrixRows && args.x->k % (2 * kBlock) == 0 &&
                 std::none_of(args.weights.begin(), args.weights.end(), is_plain) &&
                 (args.gate == Gate::None || std::none_of(args.up, args.up + args.weights.size(), is_plain));
    }
    Pieces pieces(int64_t rows) const { return Pieces(rows, matrix ? kMatrixPiece : kRows); }
};

// How often something is asked for in an item, over all rows: with each group of inputs, with tables with each piece.
int64_t visits_of(const Activations& x, const Weight& w, int tiles, Way way) {
    const auto [tabled, matrix] = way;
    const int64_t pieces = way.pieces(x.rows).count;
    const int64_t groups = tabled ? 1 : std::max<int64_t>(1, x.k / kBlock);
    const int at_once = matrix ? tiles : tiles_at_once(w.type, int(std::min<int64_t>(x.rows, kRows)), tiles);
    return pieces * groups * (tiles / at_once);
}

// Parts of a row of the cache to be fetched with each group, so that this lane is through with all that are due.
int64_t pace_of(const Lane& lane, const LinearArgs& args, const Items& items, int width, Way way) {
    if (!args.cache_rows) return 0;
    int64_t visits = 0;
    for (const Weight& w : args.weights) visits += items.of(w) * visits_of(*args.x, w, width, way);
    if (args.gate != Gate::None) visits *= 2;
    return args.cache_rows_due * kRowParts * lane.count / visits + 1;
}

// All rows by the tiles of one item of one weight, piece by piece, while the memory of another is asked for.
class Product {
    const Activations* x_;
    const Weight* w_;
    const Item item_;
    const Pieces pieces_;
    const B64* const table_;
    const bool matrix_;
    uint8_t* const codes_;  // a byte each, if it is matrix_
    Fetch fetch_;

public:
    // `room`: for a table, or for codes that are unpacked; null if nothing will be computed.
    Product(const Activations* x, const Weight& w, const Item& item, Way way, std::byte* room, Bytes next, CacheRows* rows,
            int64_t pace)
        : x_(x), w_(&w), item_(item), pieces_(way.pieces(x->rows)), table_(way.tabled ? reinterpret_cast<B64*>(room) : nullptr),
          matrix_(way.matrix), codes_(reinterpret_cast<uint8_t*>(room)) {
        if (room && matrix_) unpack(w, item.tile, codes_);
        if (room && way.tabled) fill_table(w, item.tile, reinterpret_cast<B64*>(room));
        const int64_t visits = visits_of(*x, w, item.tiles, way), lines = (next.end - next.begin + 63) / 64;
        fetch_ = {next.begin, next.end, (lines + visits - 1) / visits * 64, rows, pace};
    }

    // Pieces [begin, end) to out. Meanwhile what lies at `ahead`, if it is not null, is asked for: results will go there, and
    // rows lie far apart.
    void compute(int64_t begin, int64_t end, const Ending* ending, float* out, int64_t stride, const float* ahead) {
        const int64_t smaller = std::clamp(pieces_.larger(), begin, end);  // where pieces of one row less begin
        const int64_t done = (pieces_.begin(smaller) - pieces_.begin(begin)) * stride;
        const int width = matrix_ ? item_.tiles : tiles_at_once(w_->type, int(pieces_.rows(begin)), item_.tiles);
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
        if (matrix_) return matrix_product(rows, in, codes_, end - begin, ending, out, stride);
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

void linear(const Lane& lane, const LinearArgs& args) {
    const bool gated = args.gate != Gate::None;
    const Way way(args);
    std::byte* const room = lane.scratch;
    std::byte* const gate_room = gated ? room + args.x->k / kBlock * (way.tabled ? kTableBytes : kGroupCodes) : nullptr;
    const bool streamed = streams(args);
    // Tiles of an item. With many rows an item takes long, and lanes should end together.
    const int width = streamed || way.matrix || args.x->together >= kSingleTileRows ? 1 : kColumns;
    const Items items(args.weights, width);
    const int64_t total = items.count();
    constexpr int64_t kMost = std::max<int64_t>(kRows, kMatrixPiece);
    alignas(64) float cells[kChunk * kMost * kTile], gates[kChunk * kMost * kTile];
    const Pieces pieces = way.pieces(args.x->rows);
    const int64_t chunks = (pieces.count * width + kChunk - 1) / kChunk;
    const int64_t pace = pace_of(lane, args, items, width, way);
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
        } else if (!args.upcoming.empty()) {
            const Items to_come(args.upcoming, width);
            const Item first = to_come[lane.likely_first(to_come.count())];
            soon = bytes_of(args.upcoming[first.weight], first);
        }
        const Weight& w = args.weights[item.weight];
        const int columns = item.tiles * kTile;
        const int64_t valid = std::min<int64_t>(columns, w.columns - item.tile * kTile);
        Product product(args.x, gated ? args.up[item.weight] : w, item, way, room, gated ? soon_up : soon, args.cache_rows,
                        pace);
        Product gate_product(args.x, w, item, way, gate_room, soon, args.cache_rows, pace);
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
