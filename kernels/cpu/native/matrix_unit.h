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

}  // namespace
STOLON_END

#endif
