// What lanes divide matrices side by side into, and the memory that each part takes.
#pragma once

#include <algorithm>

#include "gemm_operands.h"

STOLON_BEGIN
namespace {

struct Item {
    size_t weight;
    int64_t tile, column;  // the first tile of the item, its first column in the output
    int tiles;
};

int64_t tiles_of(const Weight& w) { return (w.columns + kTile - 1) / kTile; }

// So many tiles each, of one matrix.
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

// Of what this lane reads in the next call of `linear`: what it probably reads first.
Bytes first_bytes(const Lane& lane, std::span<const Weight> upcoming, int width) {
    if (upcoming.empty()) return {};
    const Items items(upcoming, width);
    const Item first = items[lane.likely_first(items.count())];
    return bytes_of(upcoming[first.weight], first);
}

// Parts of a row of the cache to be fetched with each of `visits`, which all lanes make, so that this one is through with all
// that are due.
int64_t pace_of(const Lane& lane, const LinearArgs& args, int64_t visits) {
    return args.cache_rows ? args.cache_rows_due * kRowParts * lane.count / visits + 1 : 0;
}

// `next`, and rows of the cache, asked for in `visits`.
Fetch fetch_in(int64_t visits, Bytes next, CacheRows* rows, int64_t pace) {
    const int64_t lines = (next.end - next.begin + 63) / 64;
    return {next.begin, next.end, (lines + visits - 1) / visits * 64, rows, pace};
}

}  // namespace
STOLON_END
