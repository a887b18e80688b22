// Packed weights read back: what embedding takes, a column at a time.
#include <cstring>

#include "half.h"
#include "pack.h"

namespace stolon {

namespace {

// The code of input i of column c in a group.
int code_at(const uint8_t* group, int bits, int c, int i) {
    const int q = i / 4, byte = 4 * c + i % 4;
    if (bits == 8) return group[q * 64 + byte];
    int code = (group[(q % 4) * 64 + byte] >> (q < 4 ? 0 : 4)) & 15;
    if (bits == 5) code |= ((group[256 + byte] >> q) & 1) << 4;
    if (bits == 6) code |= ((group[256 + 64 * (q / 4) + byte] >> (2 * (q % 4))) & 3) << 4;
    return code;
}

}  // namespace

void unpack_column(const Weight& weight, int64_t column, float* out) {
    const uint8_t* tile = reinterpret_cast<const uint8_t*>(weight.data) + column / kTile * weight.tile_bytes;
    const int c = int(column % kTile);
    if (plain(weight.type)) {
        const int64_t group = weight.type == WeightType::BF16 ? 2 : 1;
        for (int64_t i = 0; i < weight.k; ++i) {
            const int64_t at = ((i / group) * kTile + c) * group + i % group;
            if (weight.type == WeightType::F32)
                std::memcpy(out + i, tile + 4 * at, 4);
            else
                out[i] = weight.type == WeightType::F16 ? float_from_half(half_at(tile + 2 * at))
                                                        : float_from_bf16(half_at(tile + 2 * at));
        }
        return;
    }
    const QuantLayout L = quant_layout(weight.type);
    const int64_t groups = weight.k / 32;
    for (int64_t g = 0; g < groups; ++g) {
        const uint8_t *codes = tile + L.codes_at(g), *s = tile + L.scales_at(g), *head = tile + L.record_at(g);
        float scale[2], offset = 0.0f;  // of the two halves of the group
        if (paired(weight.type)) {
            int16_t pair[2];
            std::memcpy(pair, s + 4 * c, 4);
            const float unit = float_from_bits(uint32_t(weight.units[column]) << 23);
            for (int i = 0; i < 32; ++i)
                out[g * 32 + i] = unit * float(pair[0] * (code_at(codes, L.bits, c, i) - 8) + 8 * pair[1]);
            continue;
        }
        if (!L.head) {
            scale[0] = scale[1] = float_from_half(half_at(s + 2 * c));
            if (L.group_scales == 64) offset = float_from_half(half_at(s + 32 + 2 * c));
        } else {
            const float d = float_from_half(half_at(head + 2 * c));
            if (weight.type == WeightType::Q6_K) {
                scale[0] = d * float(int8_t(s[c]));
                scale[1] = d * float(int8_t(s[16 + c]));
            } else {
                scale[0] = scale[1] = d * float(s[c]);
                offset = -(float_from_half(half_at(head + 32 + 2 * c)) * float(s[16 + c]));
            }
        }
        for (int i = 0; i < 32; ++i)
            out[g * 32 + i] = scale[i / 16] * float(code_at(codes, L.bits, c, i) - L.zero) + offset;
    }
}

}  // namespace stolon
