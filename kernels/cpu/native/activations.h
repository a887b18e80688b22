// Rows of activations in the forms that products take.
#pragma once

#include <algorithm>
#include <cstdint>

namespace stolon {

using bf16 = uint16_t;  // bit pattern

inline constexpr int kBlock = 32;  // inputs that share an activation scale

// What the weights are multiplied with.
enum class ActivationType : int { F32, BF16, Q8, Tiles };

// A block of 32 activations in 8 bits, and what products with it take: one line of the cache.
//
// Its scale is at least absmax / 127.49, and 0 where all are zeros. It has kScaleBits bits behind the leading one, so that
// the products of the scales of a weight with every one of them can be had beforehand (gemm_together.h).
struct alignas(64) Q8Block {
    int8_t values[kBlock];
    float scale;
    float weighted;        // the scale times the sum of the values
    int32_t power, level;  // scale = level / 2^15 * 2^(power's exponent - kPowerBias); quantise_block.h says how
    int32_t pair_start;    // what a sum of products begins with where a weight has pairs (pack.h)
    int32_t minus_sum;     // minus the sum of the values
    int32_t half_starts[2];  // with 6-bit codes: -32 times the sum of 16 values
};
inline constexpr int kScaleBits = 6, kScaleLevels = 1 << kScaleBits;
// Of the products of the scales of 16 columns with every level, for a group of inputs.
inline constexpr int64_t kTableBytes = int64_t(kScaleLevels) * 64;
inline constexpr int kPowerBias = 64;          // powers are not negative
inline constexpr int32_t kPairStart = 8 * 0xffff;  // times the sum of the values: 8 in the upper half of 32 bits, -8
inline constexpr int32_t kHalfStart = -32;

// Rows cut into pieces of at most kPieceRows, as even as they come, the larger ones first: 8 rows are 4 and 4, not 6 and 2.
inline constexpr int64_t kPieceRows = 6;
class Pieces {
    int64_t fewer_, larger_;

public:
    const int64_t count;

    explicit Pieces(int64_t rows, int64_t most = kPieceRows)
        : fewer_(0), larger_(0), count((rows + most - 1) / most) {
        if (!count) return;
        fewer_ = rows / count;
        larger_ = rows % count;
    }
    int64_t rows(int64_t piece) const { return fewer_ + (piece < larger_); }
    int64_t begin(int64_t piece) const { return piece * fewer_ + std::min(piece, larger_); }
    int64_t of(int64_t row) const { return row < larger_ * (fewer_ + 1) ? row / (fewer_ + 1) : (row - larger_) / fewer_; }
    int64_t larger() const { return larger_; }  // how many there are
};

inline constexpr int64_t kTiledRows = 16;

// What products with a weight whose scales are pairs (pack.h) take of a block.
struct alignas(16) PairBlock {
    int8_t values[kBlock];
    int32_t power, level, pair_start, unused;
};

// Rows of activations in the form that a weight type takes.
struct Activations {
    int64_t rows;
    int64_t k;
    const float* f32;       // [rows, k]: always given
    int64_t f32_stride;     // floats from row to row
    bf16* half;             // BF16: [rows, k_padded], zero beyond k
    int64_t half_stride;    // k rounded up to a multiple of 32
    Q8Block* q8;            // Q8: [rows, k / 32]
    int64_t q8_stride;      // blocks from row to row: q8_blocks(k)
    // Rows may lie together instead, in pieces: those of a piece have a block each for the first group of inputs, then for
    // the second, and so on. So they are read as one stream (gemm_together.h).
    PairBlock* pairs;       // of all rows
    int64_t together;       // how many rows these are, or 0: they are at `q8`
    int64_t first;          // which of them, or of those at `tiles`, is the first one here
    // Tiles, as a matrix unit takes them: bfloat16 [rows / 16][k / 32][16][32], with fewer rows in the last of them.
    bf16* tiles;            // of all rows
    int64_t tiled;          // how many rows these are

    // The blocks of a row of them.
    struct Row {
        PairBlock* begin;
        int64_t step;  // from one group of inputs to the next
    };
    Row pairs_of(int64_t row) const {
        const Pieces pieces(together);
        const int64_t piece = pieces.of(first + row), lead = pieces.begin(piece);
        return {pairs + lead * (k / kBlock) + (first + row - lead), pieces.rows(piece)};
    }

    // The numbers of a row in its tiles.
    struct Tiled {
        bf16* begin;
        int64_t step;  // numbers from one group of inputs to the next
    };
    Tiled tiled_at(int64_t row) const {
        const int64_t at = first + row, lead = at / kTiledRows * kTiledRows;
        return {tiles + lead * k + (at - lead) * kBlock, std::min(kTiledRows, tiled - lead) * kBlock};
    }
};

// An odd number: rows that are read together don't crowd into a few sets of a cache.
inline int64_t q8_blocks(int64_t k) { return k / kBlock | 1; }

}  // namespace stolon
