// Weights as a GGUF file stores them, and the layout that the kernels read.
//
// A weight is cut into tiles of 16 output columns, and the inputs of a quantised type into groups of 32. A tile holds
// *records* of a few groups, one after the other: first the scales of these groups, then their codes. So a tile is read
// from its beginning to its end, which is what hardware recognises and reads ahead.
//
//   codes    A *quartet* is 64 bytes: byte 4c + j belongs to column c, input 4q + j, for q in 0..7.
//            4, 5, 6 bits: four vectors of 64 bytes; vector v has quartet v in its low halves and quartet
//            v + 4 in its high halves. 5 bits add one vector: bit q of byte i is the fifth bit of byte i of
//            quartet q. 6 bits add two, for quartets 0-3 and 4-7: bits 2q, 2q + 1 (q from 0) of byte i are
//            the upper bits of byte i of quartet q. 8 bits: eight quartets. Codes are unsigned: a value
//            is scale * (code - zero) + offset.
//   scales   Q4_0 Q5_0 Q8_0: float16 scale [16] a group, two groups a record. Q5_1: also float16 offset [16].
//            Q4_1: int16 (scale, offset) [16] a group, in units of the column: a value is
//            unit * (scale * (code - 8) + 8 * offset). Units are powers of two, uint8 exponents (as float32 has them)
//            [16] a tile, behind the last tile. So one 16-bit product sums both terms: an int32 that starts as
//            Q8Block::pair_start, and has the products with the codes added, holds the sum over code - 8 in its lower half
//            and 8 times the sum of the activations in its upper half, less one where the lower half is negative. That one
//            is an eighth of the least activation of the block that is not zero; each is rounded to half of it.
//            Q4_K Q5_K: eight groups a record, a head of float16 scale [16] and offset scale [16], then per group
//            uint8 [16] and uint8 [16]; scale = d * s, offset = -(dmin * m).
//            Q6_K: eight groups a record, a head of float16 scale [16] and as much again, unused, then per group
//            int8 [2][16]: one for each 16 inputs.
//
// F32, F16: 16 values an input. BF16: 16 pairs a pair of inputs.
#pragma once

#include "kernels.h"

namespace stolon {

// Numbers that a quantised type is described by.
struct QuantLayout {
    int bits;
    int zero;         // what is taken off a code, a power of two; 0 where there is an offset
    int group_codes;  // bytes
    int block_groups; // groups of a stored block
    int block_bytes;  // of a stored block
    int record_groups;
    int head;         // bytes, of a record
    int group_scales; // bytes of scales a group, outside the head

    constexpr int front() const { return head + record_groups * group_scales; }  // bytes before the codes of a record
    constexpr int record_bytes() const { return front() + record_groups * group_codes; }
    // Where things of group g lie in a tile.
    constexpr int64_t record_at(int64_t g) const { return g / record_groups * record_bytes(); }
    constexpr int64_t scales_at(int64_t g) const { return record_at(g) + head + g % record_groups * group_scales; }
    constexpr int64_t codes_at(int64_t g) const { return record_at(g) + front() + g % record_groups * group_codes; }
};

constexpr QuantLayout quant_layout(WeightType type) {
    switch (type) {
        case WeightType::Q4_0: return {4, 8, 256, 1, 18, 2, 0, 32};
        case WeightType::Q4_1: return {4, 0, 256, 1, 20, 1, 0, 64};
        case WeightType::Q5_0: return {5, 16, 320, 1, 22, 2, 0, 32};
        case WeightType::Q5_1: return {5, 0, 320, 1, 24, 1, 0, 64};
        case WeightType::Q8_0: return {8, 128, 512, 1, 34, 2, 0, 32};
        case WeightType::Q4_K: return {4, 0, 256, 8, 144, 8, 64, 32};
        case WeightType::Q5_K: return {5, 0, 320, 8, 176, 8, 64, 32};
        case WeightType::Q6_K: return {6, 32, 384, 8, 210, 8, 64, 32};
        default: return {0, 0, 0, 1, 0, 1, 0, 0};
    }
}

// Whether a type is of numbers as they are, without scales.
constexpr bool plain(WeightType type) {
    return type == WeightType::F32 || type == WeightType::F16 || type == WeightType::BF16;
}

constexpr ActivationType activation_of(WeightType type) {
    if (type == WeightType::BF16) return ActivationType::BF16;
    return plain(type) ? ActivationType::F32 : ActivationType::Q8;
}

// Whether scales and offsets are pairs of integers.
constexpr bool paired(WeightType type) { return type == WeightType::Q4_1; }

struct PackedShape {
    int64_t k_padded;
    int64_t tile_bytes;
    int64_t tiles;
    int64_t units;  // bytes of units a tile, behind the last tile
    int64_t bytes() const { return (tile_bytes + units) * tiles; }
};

// The matrix that was packed into `memory`.
Weight packed_weight(WeightType type, int64_t columns, int64_t k, const std::byte* memory);

// Bytes of `columns` stored rows of k inputs; -1 if k does not fit the type's block.
int64_t stored_bytes(WeightType type, int64_t columns, int64_t k);
PackedShape packed_shape(WeightType type, int64_t columns, int64_t k);

// Pack tiles claimed from `counter` (all lanes of a team at once). `out` has packed_shape().bytes().
void pack_tiles(WeightType type, const std::byte* stored, int64_t columns, int64_t k, std::byte* out, Counter& counter);

// One column, dequantised exactly as the file means it: out [k].
void unpack_column(const Weight& weight, int64_t column, float* out);

}  // namespace stolon
