// Quantising activations: blocks of 32 floats to int8, their scale, and what products with them take (activations.h).
//
// The largest magnitude of a block is found among the bit patterns: there a NaN is larger than everything, so that it
// reaches the scale and is not lost.
#pragma once

#include "isa.h"

#if defined(STOLON_AVX512)
#include "quantise_avx512.h"
#else
#include <cassert>

#include "quantise_block.h"
#include "simd.h"

STOLON_BEGIN
namespace {

#if defined(STOLON_AVX2)

void quantise_run(const float* x, int64_t blocks, Q8Block* out) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    // Packing works within 128 bits: dword m of part j comes out as dword 4j + m, hence the permutation.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t i = 0; i < blocks; ++i, x += kBlock) {
        Q8Block& to = out[i];
        __m256 v[4];
        __m256i high = _mm256_setzero_si256();
        for (int j = 0; j < 4; ++j) {
            v[j] = _mm256_loadu_ps(x + 8 * j);
            high = _mm256_max_epu32(high, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
        }
        __m128i half = _mm_max_epu32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
        half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
        const float absmax = float_from_bits(uint32_t(_mm_cvtsi128_si32(half)));
        if (!(absmax <= kHuge)) {
            lose(to);
            continue;
        }
        const Chosen chosen = choose_scale(absmax, [&](float inverse) {
            vf squares = vset(0.0f);
            for (int j = 0; j < 4; ++j) {
                const vf scaled = vf{v[j]} * vset(inverse), error = scaled - vround(scaled);
                squares = vfma(error, error, squares);
            }
            return vsum(squares);
        });
        const __m256 inverse = _mm256_set1_ps(chosen.inverse);
        __m256i q[4];
        for (int j = 0; j < 4; ++j) q[j] = _mm256_cvtps_epi32(_mm256_mul_ps(v[j], inverse));
        const __m256i packed = _mm256_permutevar8x32_epi32(
            _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])), order);
        _mm256_storeu_si256((__m256i*)to.values, packed);
        // Four unsigned sums of eight bytes.
        const __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(packed, _mm256_set1_epi8(char(0x80))),
                                             _mm256_setzero_si256());
        int64_t eights[4];
        _mm256_storeu_si256((__m256i*)eights, sums);
        describe(to, chosen.scale, int32_t(eights[0] + eights[1]) - 16 * 128, int32_t(eights[2] + eights[3]) - 16 * 128);
    }
}

#else

void quantise_run(const float* x, int64_t blocks, Q8Block* out) {
    // Adding this rounds to a whole number, which the low bits then hold; any bits are safe to take.
    constexpr float kRounder = 12582912.0f;
    for (int64_t i = 0; i < blocks; ++i, x += kBlock) {
        Q8Block& to = out[i];
        uint32_t high = 0;
        for (int j = 0; j < kBlock; ++j) high = std::max(high, bits_of(x[j]) & 0x7fffffffu);
        const float absmax = float_from_bits(high);
        if (!(absmax <= kHuge)) {
            lose(to);
            continue;
        }
        const Chosen chosen = choose_scale(absmax, [&](float inverse) {
            float squares[16];
            for (int j = 0; j < 16; ++j) {
                const float a = x[j] * inverse, b = x[16 + j] * inverse;
                const float c = a - (a + kRounder - kRounder), d = b - (b + kRounder - kRounder);
                squares[j] = c * c + d * d;
            }
            for (int n = 8; n; n /= 2)
                for (int j = 0; j < n; ++j) squares[j] += squares[j + n];
            return squares[0];
        });
        int32_t sums[2] = {0, 0};
        for (int h = 0; h < 2; ++h) {
            int8_t rounded[16];
            for (int j = 0; j < 16; ++j) {
                rounded[j] = int8_t(bits_of(x[16 * h + j] * chosen.inverse + kRounder) - bits_of(kRounder));
            }
            for (int j = 0; j < 16; ++j) sums[h] += rounded[j];
            std::memcpy(to.values + 16 * h, rounded, 16);
        }
        describe(to, chosen.scale, sums[0], sums[1]);
    }
}

#endif

// Blocks [begin, end) of `a`, counted over all rows.
void quantise_blocks(const Activations& a, int64_t begin, int64_t end) {
    const int64_t per_row = a.k / kBlock;
    while (begin < end) {
        const int64_t row = begin / per_row, first = begin % per_row, count = std::min(per_row - first, end - begin);
        quantise_run(a.f32 + begin * kBlock, count, a.q8 + row * a.q8_stride + first);
        begin += count;
    }
}

// Rows never lie together where there are no tables.
void quantise_together(const Activations&, int64_t, int64_t) { assert(false); }

}  // namespace
STOLON_END

#endif
