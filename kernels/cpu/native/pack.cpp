#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace stolon {
namespace {

using u8 = uint8_t;

uint32_t word(const u8* p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

template <class T>
void put(u8* p, int64_t index, T value) {
    std::memcpy(p + index * int64_t(sizeof(T)), &value, sizeof(T));
}

void add_bits(u8* p, int64_t index, uint32_t bits) { put(p, index, word(p + 4 * index) | bits); }

constexpr uint32_t kLow = 0x0f0f0f0fu;

// Four bits, one to the lowest bit of each byte.
uint32_t spread(uint32_t bits) { return (bits | (bits << 7) | (bits << 14) | (bits << 21)) & 0x01010101u; }

// Scales 0..63 and offsets 0..63 of the eight groups of a K block.
void k_scales(const u8* s, u8* scale, u8* offset) {
    for (int j = 0; j < 4; ++j) {
        scale[j] = s[j] & 63;
        offset[j] = s[j + 4] & 63;
        scale[j + 4] = u8((s[j + 8] & 15) | ((s[j] >> 6) << 4));
        offset[j + 4] = u8((s[j + 8] >> 4) | ((s[j + 4] >> 6) << 4));
    }
}

// One column of one stored block into its tile.
template <WeightType T>
void pack_block(const u8* block, int c, u8* codes, u8* scales, u8* head) {
    constexpr QuantLayout L = quant_layout(T);
    if constexpr (T == WeightType::Q4_0 || T == WeightType::Q4_1 || T == WeightType::Q5_0 ||
                  T == WeightType::Q5_1) {
        constexpr bool offset = T == WeightType::Q4_1 || T == WeightType::Q5_1;
        if constexpr (!paired(T)) {
            put(scales, c, half_at(block));
            if (offset) put(scales, 16 + c, half_at(block + 2));
        }
        const u8* p = block + (offset ? 4 : 2);
        if (L.bits == 5) {
            const uint32_t high = word(p);
            for (int q = 0; q < 8; ++q) add_bits(codes + 256, c, spread((high >> (4 * q)) & 15) << q);
            p += 4;
        }
        // The file pairs input i with input 16 + i as the layout here does.
        for (int v = 0; v < 4; ++v) put(codes, v * 16 + c, word(p + 4 * v));
    } else if constexpr (T == WeightType::Q8_0) {
        put(scales, c, half_at(block));
        for (int q = 0; q < 8; ++q) put(codes, q * 16 + c, word(block + 2 + 4 * q) ^ 0x80808080u);
    } else if constexpr (T == WeightType::Q4_K || T == WeightType::Q5_K) {
        put(head, c, half_at(block));
        put(head, 16 + c, half_at(block + 2));
        u8 scale[8], offset[8];
        k_scales(block + 4, scale, offset);
        const u8* high = block + 16;
        const u8* low = block + (L.bits == 5 ? 48 : 16);
        for (int g = 0; g < 8; ++g) {
            u8* out = codes + g * L.group_codes;
            u8* s = scales + g * L.group_scales;
            s[c] = scale[g];
            s[16 + c] = offset[g];
            const u8* p = low + 32 * (g / 2);
            const int shift = 4 * (g % 2);
            for (int v = 0; v < 4; ++v) {
                const uint32_t first = (word(p + 4 * v) >> shift) & kLow;
                const uint32_t second = (word(p + 16 + 4 * v) >> shift) & kLow;
                put(out, v * 16 + c, first | (second << 4));
            }
            if (L.bits == 5)
                for (int q = 0; q < 8; ++q)
                    add_bits(out + 256, c, ((word(high + 4 * q) >> g) & 0x01010101u) << q);
        }
    } else {
        static_assert(T == WeightType::Q6_K);
        put(head, c, half_at(block + 208));
        for (int g = 0; g < 8; ++g) {
            u8* out = codes + g * L.group_codes;
            u8* s = scales + g * L.group_scales;
            s[c] = block[192 + 2 * g];
            s[16 + c] = block[192 + 2 * g + 1];
            const int half = g / 4, part = g % 4;  // 128 inputs, 32 of them
            const u8* low = block + 64 * half + 32 * (part % 2);
            const u8* high = block + 128 + 32 * half;
            const int nibble = 4 * (part / 2), pair = 2 * part;
            for (int v = 0; v < 4; ++v) {
                const uint32_t first = (word(low + 4 * v) >> nibble) & kLow;
                const uint32_t second = (word(low + 16 + 4 * v) >> nibble) & kLow;
                put(out, v * 16 + c, first | (second << 4));
            }
            for (int q = 0; q < 8; ++q) {
                const uint32_t bits = (word(high + 4 * q) >> pair) & 0x03030303u;
                add_bits(out + 256 + 64 * (q / 4), c, bits << (2 * (q % 4)));
            }
        }
    }
}

// Scale and offset of a block as a pair of numbers, before they are divided by the unit.
struct ScalePair {
    float scale, offset;

    explicit ScalePair(const u8* block) : scale(float_from_half(half_at(block))) {
        offset = 0.125f * (float_from_half(half_at(block + 2)) + 8.0f * scale);  // of code - 8
    }
    bool finite() const { return std::isfinite(scale) && std::isfinite(offset); }
    float largest() const { return std::max(std::fabs(scale), std::fabs(offset)); }
};

// The pairs of one column's blocks to their groups. Returns the exponent of the unit: the smallest with which all numbers
// fit 16 bits. A scale that is not finite makes the column infinite.
template <WeightType T>
u8 pack_pairs(const u8* blocks, int64_t count, int c, u8* tile) {
    constexpr QuantLayout L = quant_layout(T);
    constexpr int kBias = 127;
    float largest = 0.0f;
    bool finite = true;
    for (int64_t b = 0; b < count; ++b) {
        const ScalePair pair(blocks + b * L.block_bytes);
        finite = finite && pair.finite();
        largest = std::max(largest, pair.largest());
    }
    int exponent = 0;
    if (finite && largest > 0.0f) {
        std::frexp(largest, &exponent);
        exponent -= 15;
        if (std::ldexp(largest, -exponent) > 32767.0f) ++exponent;
    }
    for (int64_t b = 0; b < count; ++b) {
        const ScalePair pair(blocks + b * L.block_bytes);
        int16_t numbers[2] = {1, 1};
        if (finite) {
            numbers[0] = int16_t(std::lrint(std::ldexp(pair.scale, -exponent)));
            numbers[1] = int16_t(std::lrint(std::ldexp(pair.offset, -exponent)));
        }
        std::memcpy(tile + L.scales_at(b) + 4 * c, numbers, 4);
    }
    return finite ? u8(kBias + exponent) : u8(255);
}

template <WeightType T>
void pack_quantised(const u8* stored, int64_t columns, int64_t k, int64_t tile, u8* out, u8* units) {
    constexpr QuantLayout L = quant_layout(T);
    const int64_t blocks = k / (32 * L.block_groups);
    const int64_t width = std::min<int64_t>(kTile, columns - tile * kTile);
    const u8* first = stored + tile * kTile * blocks * L.block_bytes;
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t g = b * L.block_groups;
        for (int64_t c = 0; c < width; ++c)
            pack_block<T>(first + (c * blocks + b) * L.block_bytes, int(c), out + L.codes_at(g), out + L.scales_at(g),
                          out + L.record_at(g));
    }
    if constexpr (paired(T))
        for (int64_t c = 0; c < width; ++c) units[c] = pack_pairs<T>(first + c * blocks * L.block_bytes, blocks, int(c), out);
}

template <class T, int Group>
void pack_plain(const u8* stored, int64_t columns, int64_t k, int64_t tile, u8* out) {
    const int64_t width = std::min<int64_t>(kTile, columns - tile * kTile);
    for (int64_t c = 0; c < width; ++c)
        for (int64_t i = 0; i < k; ++i)
            std::memcpy(out + (((i / Group) * kTile + c) * Group + i % Group) * int64_t(sizeof(T)),
                        stored + ((tile * kTile + c) * k + i) * int64_t(sizeof(T)), sizeof(T));
}

int64_t value_bytes(WeightType type) { return type == WeightType::F32 ? 4 : 2; }

}  // namespace

int64_t stored_bytes(WeightType type, int64_t columns, int64_t k) {
    int64_t row, total;
    if (plain(type)) {
        if (__builtin_mul_overflow(k, value_bytes(type), &row)) return -1;
    } else {
        const QuantLayout L = quant_layout(type);
        const int64_t block = 32 * L.block_groups;
        if (k % block || __builtin_mul_overflow(k / block, int64_t(L.block_bytes), &row)) return -1;
    }
    return __builtin_mul_overflow(row, columns, &total) ? -1 : total;
}

PackedShape packed_shape(WeightType type, int64_t columns, int64_t k) {
    PackedShape shape{k, 0, (columns + kTile - 1) / kTile, paired(type) ? kTile : 0};
    if (plain(type)) {
        if (type == WeightType::BF16) shape.k_padded = (k + 1) / 2 * 2;
        shape.tile_bytes = shape.k_padded * kTile * value_bytes(type);
    } else {
        const QuantLayout L = quant_layout(type);
        shape.tile_bytes = (k / 32 + L.record_groups - 1) / L.record_groups * L.record_bytes();
    }
    shape.tile_bytes = (shape.tile_bytes + 63) / 64 * 64;
    return shape;
}

Weight packed_weight(WeightType type, int64_t columns, int64_t k, const std::byte* memory) {
    const PackedShape shape = packed_shape(type, columns, k);
    const auto* units = reinterpret_cast<const u8*>(memory) + shape.tiles * shape.tile_bytes;
    return {type, columns, k, shape.k_padded, shape.tile_bytes, memory, shape.units ? units : nullptr};
}

void pack_tiles(WeightType type, const std::byte* stored, int64_t columns, int64_t k, std::byte* out,
                Counter& counter) {
    const PackedShape shape = packed_shape(type, columns, k);
    const u8* in = reinterpret_cast<const u8*>(stored);
    for (int64_t tile; (tile = Lane::claim(counter)) < shape.tiles;) {
        u8* to = reinterpret_cast<u8*>(out) + tile * shape.tile_bytes;
        u8* units = reinterpret_cast<u8*>(out) + shape.tiles * shape.tile_bytes + tile * shape.units;
        std::memset(to, 0, size_t(shape.tile_bytes));
        std::memset(units, 0, size_t(shape.units));
        switch (type) {
            case WeightType::F32: pack_plain<uint32_t, 1>(in, columns, k, tile, to); break;
            case WeightType::F16: pack_plain<uint16_t, 1>(in, columns, k, tile, to); break;
            case WeightType::BF16: pack_plain<uint16_t, 2>(in, columns, k, tile, to); break;
            case WeightType::Q4_0: pack_quantised<WeightType::Q4_0>(in, columns, k, tile, to, units); break;
            case WeightType::Q4_1: pack_quantised<WeightType::Q4_1>(in, columns, k, tile, to, units); break;
            case WeightType::Q5_0: pack_quantised<WeightType::Q5_0>(in, columns, k, tile, to, units); break;
            case WeightType::Q5_1: pack_quantised<WeightType::Q5_1>(in, columns, k, tile, to, units); break;
            case WeightType::Q8_0: pack_quantised<WeightType::Q8_0>(in, columns, k, tile, to, units); break;
            case WeightType::Q4_K: pack_quantised<WeightType::Q4_K>(in, columns, k, tile, to, units); break;
            case WeightType::Q5_K: pack_quantised<WeightType::Q5_K>(in, columns, k, tile, to, units); break;
            case WeightType::Q6_K: pack_quantised<WeightType::Q6_K>(in, columns, k, tile, to, units); break;
        }
    }
}

}  // namespace stolon
