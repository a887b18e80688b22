// What a tile of a product is computed from, how large tiles are, and what is brought near meanwhile.
#pragma once

#include <algorithm>
#include <limits>

#include "pack.h"
#include "tile.h"

STOLON_BEGIN
namespace {

constexpr int kPrefetchLevel = 2;  // into the second-level cache

#if defined(STOLON_AVX512)
constexpr int kRows = 6, kColumns = 2;
#if defined(STOLON_AMX)
constexpr bool kTogether = false;
#else
constexpr bool kTogether = true;  // rows that lie together are taken (gemm_together.h)
#endif
constexpr int kCells = 6;  // of a tile: two sets of integer sums and one of float ones, of 32 registers
constexpr bool kPipelined = true;
#elif defined(STOLON_AVX2)
constexpr int kRows = 2, kColumns = 1;
constexpr bool kTogether = false;
constexpr int kCells = 2;
constexpr bool kPipelined = false;
#else
constexpr int kRows = 4, kColumns = 1;
constexpr bool kTogether = false;
constexpr int kCells = 4;
constexpr bool kPipelined = false;
#endif

constexpr int64_t kRowParts = 1024;  // of a row of the cache

// What a lane reads next, asked for meanwhile, `step` bytes with each group of inputs: left alone, the hardware stops
// at every page. And some of the cache, for the attention to come.
struct Fetch {
    const uint8_t* at;
    const uint8_t* end;
    int64_t step;
    CacheRows* rows;  // if there is a pace
    int64_t pace;     // parts of a row with each group

    void some() {
        if (pace) some_rows();
        for (const uint8_t* stop = std::min(at + step, end); at < stop; at += 64) __builtin_prefetch(at, 0, kPrefetchLevel);
    }

private:
    void some_rows() {
        CacheRows& from = *rows;
        for (from.due += pace; from.due >= kRowParts && from.next < from.end; from.due -= kRowParts) {
            const int64_t at = *from.next++ * from.row_bytes;
            for (int64_t i = 0; i < from.row_bytes; i += 64) {
                __builtin_prefetch(from.k + at + i, 0, kPrefetchLevel);
                __builtin_prefetch(from.v + at + i, 0, kPrefetchLevel);
            }
        }
    }
};

// Rows of the activations from `row` on, and tiles of a weight from `tile` on.
struct Operands {
    const Activations* x;
    const Weight* w;
    int64_t row, tile;
    Fetch* fetch;

    const uint8_t* weights() const { return reinterpret_cast<const uint8_t*>(w->data) + tile * w->tile_bytes; }
};

}  // namespace
STOLON_END
