// Quantised weights as the matrix unit takes them: *panels* of 16 columns in bfloat16, [inputs / 2][16][2].
//
// A code becomes the fraction of a float between 1 and 2, by one instruction that masks it and sets the exponent. So a value is
// one fused multiplication and addition away: scale * code + offset = (2^p scale) * (1 + code / 2^p) + (offset - 2^p scale).
#pragma once

#include "gemm_quantised.h"
#include "pack.h"

#if defined(STOLON_AMX)

STOLON_BEGIN
namespace {

inline constexpr int kPairLines = kBlock / 2;               // lines of 64 bytes of a group of inputs
inline constexpr int64_t kGroupPanel = kPairLines * kTile * 2;  // its numbers

// Two floats each to bfloat16, cut off, side by side.
STOLON_ALWAYS inline __m512i bf16_pairs(__m512 even, __m512 odd) {
    constexpr __mmask64 kLow = 0x3333333333333333;  // the lower two bytes of every four: there go the upper two of `even`
    const __m512i upper = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    return _mm512_mask_shuffle_epi8(_mm512_castps_si512(odd), kLow, _mm512_castps_si512(even), upper);
}

// Cutting a number off takes half a unit in its last place on average, of 2^7 to 2^8 that it has. So much is added first, for a
// number in the middle (1.44): what is left of the error is hardly larger than that of rounding, and what bfloat16 has stays.
constexpr float kCut = 1.0f + 0.5f / 1.44f / 128.0f;

// One tile of a weight, group by group.
template <WeightType T>
class PanelMaker {
    static constexpr QuantLayout L = quant_layout(T);

    const uint8_t* const tile_;
    __m512 unit_{};

    // value = scale * code + offset
    struct Scales {
        __m512 scale, offset;
    };
    // value = scale * (1 + code / 2^Power) + offset
    template <int Power>
    struct Terms {
        __m512 scale, offset;

        STOLON_ALWAYS explicit Terms(const Scales& of) {
            scale = _mm512_mul_ps(of.scale, _mm512_set1_ps(float(1 << Power)));
            offset = _mm512_sub_ps(of.offset, scale);
        }
        // Of codes that lie `Left` bits too low to be the upper bits of a fraction (or too high).
        template <int Left>
        STOLON_ALWAYS __m512 values(__m512i codes) const {
            constexpr int kPlace = 23 - Power, kAndOr = 0xea;
            if constexpr (Left > 0) codes = _mm512_slli_epi32(codes, unsigned(Left));
            if constexpr (Left < 0) codes = _mm512_srli_epi32(codes, unsigned(-Left));
            const __m512i mask = _mm512_set1_epi32(((1 << L.bits) - 1) << kPlace), one = _mm512_set1_epi32(0x3f800000);
            return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_ternarylogic_epi32(codes, mask, one, kAndOr)), scale, offset);
        }
    };

    // Of half H of a group, where halves have scales of their own; times kCut.
    template <int H>
    STOLON_ALWAYS Scales scales_of(int64_t g) const {
        const uint8_t *s = tile_ + L.scales_at(g), *head = tile_ + L.record_at(g);
        const auto times = [](__m512 x, float by) STOLON_ALWAYS { return _mm512_mul_ps(x, _mm512_set1_ps(by)); };
        const auto half = [&](const uint8_t* at) STOLON_ALWAYS { return times(f_half(at).v, kCut); };
        if constexpr (paired(T)) {
            const __m512i pairs = _mm512_loadu_si512(s);
            const __m512 scale = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16));
            const __m512 offset = times(_mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16)), scale), 8.0f);
            return {_mm512_mul_ps(scale, unit_), _mm512_mul_ps(offset, unit_)};
        } else if constexpr (T == WeightType::Q6_K) {
            const __m512 scale = _mm512_mul_ps(half(head), f_i8(s + 16 * H).v);
            return {scale, times(scale, float(-L.zero))};
        } else if constexpr (L.head) {
            const __m512 least = _mm512_mul_ps(half(head + 32), f_u8(s + 16).v);
            return {_mm512_mul_ps(half(head), f_u8(s).v), times(least, -1.0f)};
        } else {
            const __m512 scale = half(s);
            if constexpr (L.zero)
                return {scale, times(scale, float(-L.zero))};
            else
                return {scale, half(s + 32)};
        }
    }

    // Lines of quartet Q, of codes of a byte each, a byte of them at bit `At`.
    template <int At, int Power>
    STOLON_ALWAYS static void quartet(const Terms<Power>& terms, __m512i codes, uint8_t* lines) {
        constexpr int kLeft = 23 - Power - At;
        const auto value = [&]<int J>() STOLON_ALWAYS { return terms.template values<kLeft - 8 * J>(codes); };
        const auto line = [&]<int J>() STOLON_ALWAYS {
            return bf16_pairs(value.template operator()<J>(), value.template operator()<J + 1>());
        };
        _mm512_store_si512(lines, line.template operator()<0>());
        _mm512_store_si512(lines + 64, line.template operator()<2>());
    }

public:
    PanelMaker(const Weight& w, int64_t tile) : tile_(reinterpret_cast<const uint8_t*>(w.data) + tile * w.tile_bytes) {
        if constexpr (paired(T)) unit_ = _mm512_mul_ps(f_powers(w.units + tile * kTile).v, _mm512_set1_ps(kCut));
    }

    // Group g of the inputs to [16][16][2].
    STOLON_ALWAYS void group(int64_t g, bf16* to) const {
        const uint8_t* codes = tile_ + L.codes_at(g);
        uint8_t* lines = reinterpret_cast<uint8_t*>(to);
        if constexpr (L.bits == 4) {
            // As they lie: the lower and the upper halves of bytes, at places where most shifts serve both.
            const Scales scales = scales_of<0>(g);
            const Terms<7> lower(scales);
            const Terms<11> upper(scales);
            unrolled<4>([&]<int V>() STOLON_ALWAYS {
                const __m512i both = _mm512_loadu_si512(codes + 64 * V);
                quartet<0>(lower, both, lines + 128 * V);
                quartet<4>(upper, both, lines + 128 * (V + 4));
            });
        } else {
            constexpr int kHalves = T == WeightType::Q6_K ? 2 : 1, kPower = L.bits == 8 ? 8 : 7;
            unrolled<kHalves>([&]<int H>() STOLON_ALWAYS {
                const Terms<kPower> terms(scales_of<H>(g));
                unrolled<8 / kHalves>([&]<int I>() STOLON_ALWAYS {
                    constexpr int Q = H * 4 + I;
                    quartet<0>(terms, load_codes<L.bits, Q>(codes).v, lines + 128 * Q);
                });
            });
        }
    }
};

}  // namespace
STOLON_END

#endif
