// IEEE 754 binary16 and bfloat16 to float, for code that runs once.
//
// Static: a shared copy could be the one that was compiled for another instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace stolon {

// The 16 bits at p, aligned or not.
static inline uint16_t half_at(const void* p) {
    uint16_t h;
    std::memcpy(&h, p, sizeof h);
    return h;
}

static inline float float_from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float float_from_bf16(uint16_t h) { return float_from_bits(uint32_t(h) << 16); }

static inline float float_from_half(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 0x1f;
    const uint32_t fraction = h & 0x3ff;
    if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
        const float size = float(fraction) * 0x1p-24f;
        return sign ? -size : size;
    }
    if (exponent == 31) return float_from_bits(sign | 0x7f800000u | (fraction << 13));
    return float_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
}

}  // namespace stolon
