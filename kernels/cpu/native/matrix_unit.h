// The matrix unit (AMX): tiles of up to 16 rows of 64 bytes, and products of two tiles that are added to a third.
//
// A thread says how large its tiles are before it uses them, and gives them back afterwards: until then they are part of
// what the system saves when it takes the core away.
#pragma once

#include <cstdint>

#include "isa.h"

#if defined(STOLON_AMX)

STOLON_BEGIN
namespace {

// Sizes of the eight tiles.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, unused[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    constexpr void set(int tile, int of_rows, int bytes) {
        rows[tile] = uint8_t(of_rows);
        row_bytes[tile] = uint16_t(bytes);
    }
};
static_assert(sizeof(TileShapes) == 64);

STOLON_ALWAYS inline void use_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
STOLON_ALWAYS inline void release_tiles() { asm volatile("tilerelease"); }

// The instructions by the numbers of their tiles. (A compiler's own names for them don't tell it that they read and write memory.)
template <int Tile>
STOLON_ALWAYS inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Tile>
STOLON_ALWAYS inline void tile_load(const void* at, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
STOLON_ALWAYS inline void tile_store(void* at, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(stride), "i"(Tile) : "memory");
}
// Sum[i][j] += the sum over k of a[i][k] * b[k / 2][2 j + k % 2], in bfloat16: of even k and of odd k each in order, with fused
// operations, then both together, then that with what was there. Subnormal numbers count as zero.
template <int Sum, int A, int B>
STOLON_ALWAYS inline void tile_dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
}

// How the eight tiles are used: sums of up to 32 rows, in two halves, by two tiles of 16 columns.
constexpr int kUnitRows = 16, kUnitInputs = 32;            // of a half; bfloat16 that a row of a tile holds
constexpr int kUnitSums = 0, kUnitHalf = 4, kUnitColumns = 6;  // their numbers: [half][columns], [half], [columns]

constexpr TileShapes unit_shapes(int rows) {
    TileShapes of;
    for (int half = 0; half < 2; ++half) {
        const int some = rows < half * kUnitRows ? 0 : rows - half * kUnitRows < kUnitRows ? rows - half * kUnitRows : kUnitRows;
        for (int c = 0; some && c < 2; ++c) of.set(kUnitSums + 2 * half + c, some, 64);
        if (some) of.set(kUnitHalf + half, some, 64);
        of.set(kUnitColumns + half, kUnitInputs / 2, 64);
    }
    return of;
}

// The tiles of a lane, while it uses them. Saying how large they are takes as long as a dozen products.
class UnitTiles {
    int rows_ = 0;

public:
    UnitTiles() = default;
    UnitTiles(const UnitTiles&) = delete;
    UnitTiles& operator=(const UnitTiles&) = delete;
    ~UnitTiles() {
        if (rows_) release_tiles();
    }

    // From now on for so many rows. What the tiles held is lost.
    void of(int rows) {
        if (rows != rows_) use_tiles(unit_shapes(rows));
        rows_ = rows;
    }

    template <int Halves, int Columns>
    STOLON_ALWAYS static void clear() {
        unrolled<Halves * Columns>([]<int I>() STOLON_ALWAYS { tile_zero<kUnitSums + 2 * (I / Columns) + I % Columns>(); });
    }
    // Half H of the rows, and columns C, of 32 inputs: strides in bytes.
    template <int H>
    STOLON_ALWAYS static void load_half(const void* at, int64_t stride) {
        tile_load<kUnitHalf + H>(at, stride);
    }
    template <int C>
    STOLON_ALWAYS static void load_columns(const void* at, int64_t stride) {
        tile_load<kUnitColumns + C>(at, stride);
    }
    template <int H, int C>
    STOLON_ALWAYS static void multiply() {
        tile_dot_bf16<kUnitSums + 2 * H + C, kUnitHalf + H, kUnitColumns + C>();
    }
    // The sums of columns C to out[C], where rows lie `stride` floats apart.
    template <int Halves, int Columns>
    STOLON_ALWAYS static void store(float* const (&out)[2], int64_t stride) {
        unrolled<Halves * Columns>([&]<int I>() STOLON_ALWAYS {
            constexpr int H = I / Columns, C = I % Columns;
            tile_store<kUnitSums + 2 * H + C>(out[C] + H * kUnitRows * stride, stride * int64_t(sizeof(float)));
        });
    }
};

}  // namespace
STOLON_END

#endif
