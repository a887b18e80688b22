// Tables of a weight's scales times the scales of activations.
//
// A sum of products takes two more multiplications: with the scale of the weight, and with that of the block of
// activations. Both use the ports of the products. As a block's scale has one of few mantissas (levels) and a power of two,
// which an addition to the exponent multiplies by, the products of a weight's scales with every level are had once for
// many rows, and one multiplication is left.
#pragma once

#include "gemm_operands.h"

STOLON_BEGIN
namespace {

// Of a group of inputs and a tile of 16 columns: a vector for each level.
constexpr int64_t kTableBytes = kScaleLevels * int64_t(sizeof(B64));
constexpr int64_t kTabledRows = 192;  // fewer do not pay for a table

// Where the vector of a level lies: the level is (kScaleLevels + i) << (14 - kScaleBits), twice.
inline int64_t table_offset(int32_t level) {
    static_assert(sizeof(B64) == 64 && 14 - kScaleBits >= 6);
    return int64_t(uint32_t(level) >> (16 + 14 - kScaleBits - 6)) - kTableBytes;
}

// The table of a tile of a weight whose scales are pairs: [groups][kScaleLevels].
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

// Room for a table of a tile of every weight, and behind it one of its gate; null if they are not worth their making.
B64* room_for_tables(const Lane& lane, const LinearArgs& args) {
    const int tables = args.gate == Gate::None ? 1 : 2;
    const int64_t bytes = args.x->k / kBlock * kTableBytes * tables;
    const bool any = std::any_of(args.weights.begin(), args.weights.end(), [](const Weight& w) { return paired(w.type); });
    const bool worth = kTables && any && args.x->rows >= kTabledRows && bytes <= int64_t(kTableScratch);
    return worth && bytes <= int64_t(lane.scratch_bytes) ? reinterpret_cast<B64*>(lane.scratch) : nullptr;
}

}  // namespace
STOLON_END
