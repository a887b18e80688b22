// What a block of 32 activations is scaled by, and what describes it (activations.h).
#pragma once

#include <algorithm>
#include <limits>

#include "half.h"
#include "isa.h"
#include "kernels.h"
#include "simd.h"

STOLON_BEGIN

namespace {

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

// A block whose largest value is below the first counts as zeros, one that is not up to the second as not a number: what
// lies between has exponents that are not negative with kPowerBias, and leaves room for sums.
constexpr float kTiny = 1e-17f, kHuge = 1e9f;

// From one scale to the next, as bits.
constexpr uint32_t kScaleStep = 1u << (23 - kScaleBits);

constexpr int32_t kExponent = 0x7f800000, kPowerOffset = (126 - kPowerBias) << 23;

// A scale is level / 2^15 * 2^(power - kPowerBias): the level, twice in 32 bits as 16-bit products take it, and the power
// where a float has its exponent. A scale that is not a number has a power that makes zero one that is none.
inline int32_t power_of(float scale) {
    if (scale == 0.0f) return 0;
    return scale != scale ? 0x7fc00000 : int32_t(bits_of(scale) & kExponent) - kPowerOffset;
}
inline int32_t level_of(float scale) {
    const uint32_t level = (bits_of(scale) / kScaleStep % kScaleLevels + kScaleLevels) << (14 - kScaleBits);
    return int32_t(level * 0x10001u);
}
// The least scale that is not below x.
inline float scale_from(float x) { return float_from_bits((bits_of(x) + kScaleStep - 1) & ~(kScaleStep - 1)); }

inline float scale_after(float scale) { return float_from_bits(bits_of(scale) + kScaleStep); }

// What belongs to the values of a block: its scale and the sums of its halves.
inline void describe(Q8Block& block, float scale, int32_t first, int32_t second) {
    const int32_t sum = first + second;
    block.scale = scale;
    block.weighted = scale * float(sum);
    block.power = power_of(scale);
    block.level = level_of(scale);
    block.pair_start = kPairStart * sum;
    block.minus_sum = -sum;
    block.half_starts[0] = kHalfStart * first;
    block.half_starts[1] = kHalfStart * second;
}

inline void describe(PairBlock& block, float scale, int32_t first, int32_t second) {
    block.power = power_of(scale);
    block.level = level_of(scale);
    block.pair_start = kPairStart * (first + second);
}

// A block that is not a number: all its products are none.
template <class Block>
inline void lose(Block& block) {
    std::memset(block.values, 0, kBlock);
    describe(block, std::numeric_limits<float>::quiet_NaN(), 0, 0);
}

// The scales tried for a block: the least one by which its largest value is at most kLimit, which still is rounded to
// 127, and those that follow. Whichever makes the error of the block the smallest is taken: against the least alone, that
// takes 8 % off the squared error of normal values.
constexpr float kLimit = 127.49f;
constexpr int kCandidates = 2;

struct Chosen {
    float scale, inverse;  // both 0 for zeros
};

// `squares(inverse)`: the sum of the squared errors of a block's values times `inverse`, as rounded.
template <class Squares>
inline Chosen choose_scale(float absmax, Squares squares) {
    Chosen chosen{0.0f, 0.0f};
    if (absmax < kTiny) return chosen;
    float least = std::numeric_limits<float>::infinity(), scale = scale_from(absmax / kLimit);
    for (int i = 0; i < kCandidates; ++i, scale = scale_after(scale)) {
        const float inverse = 1.0f / scale, error = scale * scale * squares(inverse);
        if (error < least) {
            chosen = {scale, inverse};
            least = error;
        }
    }
    return chosen;
}

}  // namespace
STOLON_END
