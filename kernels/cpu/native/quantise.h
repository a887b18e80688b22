// Quantising activations: blocks of 32 floats to int8 and a scale, and what products with them begin with (kernels.h).
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

// A block whose largest value is below this counts as zeros: 127 / absmax would overflow.
constexpr float kTiny = 1e-35f;

// Where the quantised form of some blocks of 32 goes.
struct Q8Out {
    int8_t* values;
    float* scales;
    float* weighted;
    int32_t* starts[kStartKinds];
    int32_t* half_starts;

    Q8Out(const Activations& a, int64_t row) {
        const int64_t skip = row * a.q8_stride;
        values = a.values + skip;
        scales = a.scales + skip / 4;
        weighted = a.weighted + skip / 4;
        for (int i = 0; i < kStartKinds; ++i) starts[i] = a.starts[i] + skip / 4;
        half_starts = a.half_starts + skip / 4;
    }

    Q8Out at(int64_t block) const {
        Q8Out out = *this;
        out.values += block * kBlock;
        out.scales += block;
        out.weighted += block;
        for (int32_t*& start : out.starts) start += block;
        out.half_starts += 2 * block;
        return out;
    }

    // What belongs to the values of one block: its scale and the sums of its halves.
    void put(float scale, int32_t first, int32_t second) const {
        *scales = scale;
        *weighted = scale * float(first + second);
        for (int i = 0; i < kStartKinds; ++i) *starts[i] = kStarts[i] * (first + second) + kStartOffsets[i];
        half_starts[0] = kHalfStart * first;
        half_starts[1] = kHalfStart * second;
    }
};

// The largest value of a block becomes one of these, whichever makes the error of the block the smallest.
// Against 127 alone, that takes 4 % off the divergence of the logits.
constexpr float kLimits[] = {127.0f, 124.5f};

// The largest magnitude is found among the bit patterns: there a NaN is larger than everything, so that
// it reaches the scale and is not lost.

#if defined(STOLON_AVX512)

// Squared errors of rounding N blocks times their inverse scale, summed: one element for each block.
template <int N>
inline __m128 rounding_errors(const __m512 (&v)[2 * N], __m512 inverses) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512 factors[4] = {_mm512_permute_ps(inverses, 0x00), _mm512_permute_ps(inverses, 0x55),
                               _mm512_permute_ps(inverses, 0xaa), _mm512_permute_ps(inverses, 0xff)};
    __m512 square[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int i = 0; i < N; ++i) {
        const __m512 a = _mm512_mul_ps(v[2 * i], factors[i]), b = _mm512_mul_ps(v[2 * i + 1], factors[i]);
        const __m512 c = _mm512_sub_ps(a, _mm512_roundscale_ps(a, kNearest));
        const __m512 d = _mm512_sub_ps(b, _mm512_roundscale_ps(b, kNearest));
        square[i] = _mm512_fmadd_ps(c, c, _mm512_mul_ps(d, d));
    }
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(square[0], square[1]), _mm512_unpackhi_ps(square[0], square[1]));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(square[2], square[3]), _mm512_unpackhi_ps(square[2], square[3]));
    const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512 four = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// N blocks, 1 to 4.
template <int N>
inline void quantise(const float* x, const Q8Out& out) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i zero = _mm512_setzero_si512();
    __m512 v[2 * N];
    for (int i = 0; i < 2 * N; ++i) v[i] = _mm512_loadu_ps(x + 16 * i);
    __m512i high[4] = {zero, zero, zero, zero};
    for (int i = 0; i < N; ++i) {
        high[i] = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(v[2 * i]), magnitude),
                                   _mm512_and_si512(_mm512_castps_si512(v[2 * i + 1]), magnitude));
    }
    // Transpose and reduce: the maxima of the four blocks end in the four elements.
    const __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(high[0], high[1]),
                                        _mm512_unpackhi_epi32(high[0], high[1]));
    const __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(high[2], high[3]),
                                        _mm512_unpackhi_epi32(high[2], high[3]));
    const __m512i four = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
    const __m128 absmax = _mm_castsi128_ps(
        _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));

    const __mmask8 some = _mm_cmp_ps_mask(absmax, _mm_set1_ps(kTiny), _CMP_NLT_UQ);
    __m128 limit = _mm_set1_ps(kLimits[0]), least = _mm_set1_ps(std::numeric_limits<float>::infinity());
    for (const float candidate : kLimits) {
        const __m128 step = _mm_maskz_div_ps(some, absmax, _mm_set1_ps(candidate));
        const __m128 error = _mm_mul_ps(
            _mm_mul_ps(step, step),
            rounding_errors<N>(v, _mm512_broadcast_f32x4(_mm_maskz_div_ps(some, _mm_set1_ps(candidate), absmax))));
        const __mmask8 better = _mm_cmp_ps_mask(error, least, _CMP_LT_OQ);
        limit = _mm_mask_mov_ps(limit, better, _mm_set1_ps(candidate));
        least = _mm_mask_mov_ps(least, better, error);
    }
    const __m128 scale = _mm_maskz_div_ps(some, absmax, limit);
    const __m128 inverse = _mm_maskz_div_ps(some, limit, absmax);
    const __m512 inverses = _mm512_broadcast_f32x4(inverse);

    // Packing works within 128 bits: dword m of part j comes out as dword 4j + m, hence the permutation.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i flip = _mm512_set1_epi8(char(0x80));
    __m256i sums[2] = {_mm256_set1_epi32(8 * 128), _mm256_set1_epi32(8 * 128)};
    for (int pair = 0; 2 * pair < N; ++pair) {
        const bool both = 2 * pair + 1 < N;
        const __m512 first = pair ? _mm512_permute_ps(inverses, 0xaa) : _mm512_permute_ps(inverses, 0x00);
        const __m512 second = pair ? _mm512_permute_ps(inverses, 0xff) : _mm512_permute_ps(inverses, 0x55);
        const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(v[4 * pair], first));
        const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(v[4 * pair + 1], first));
        const __m512i c = both ? _mm512_cvtps_epi32(_mm512_mul_ps(v[(4 * pair + 2) % (2 * N)], second)) : zero;
        const __m512i d = both ? _mm512_cvtps_epi32(_mm512_mul_ps(v[(4 * pair + 3) % (2 * N)], second)) : zero;
        const __m512i q = _mm512_permutexvar_epi32(
            order, _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d)));
        if (both) {
            _mm512_storeu_si512(out.values + 64 * pair, q);
        } else {
            _mm256_storeu_si256((__m256i*)(out.values + 64 * pair), _mm512_castsi512_si256(q));
        }
        // Eight unsigned sums of eight bytes.
        sums[pair] = _mm512_cvtepi64_epi32(_mm512_sad_epu8(_mm512_xor_si512(q, flip), zero));
    }
    const __m256i sums16 = _mm256_sub_epi32(
        _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[0], sums[1]), 0xd8), _mm256_set1_epi32(16 * 128));
    const __m256i twice = _mm256_hadd_epi32(sums16, sums16);
    const __m128i sums32 = _mm_unpacklo_epi64(_mm256_castsi256_si128(twice), _mm256_extracti128_si256(twice, 1));
    const __mmask8 blocks = __mmask8((1 << N) - 1), halves = __mmask8((1 << 2 * N) - 1);
    _mm_mask_storeu_ps(out.scales, blocks, scale);
    _mm_mask_storeu_ps(out.weighted, blocks, _mm_mul_ps(scale, _mm_cvtepi32_ps(sums32)));
    for (int i = 0; i < kStartKinds; ++i)
        _mm_mask_storeu_epi32(out.starts[i], blocks,
                              _mm_add_epi32(_mm_mullo_epi32(sums32, _mm_set1_epi32(kStarts[i])), _mm_set1_epi32(kStartOffsets[i])));
    _mm256_mask_storeu_epi32(out.half_starts, halves, _mm256_mullo_epi32(sums16, _mm256_set1_epi32(kHalfStart)));
}

void quantise_run(const float* x, int64_t blocks, const Q8Out& out) {
    int64_t i = 0;
    for (; i + 4 <= blocks; i += 4) quantise<4>(x + i * kBlock, out.at(i));
    switch (blocks - i) {
        case 3: quantise<3>(x + i * kBlock, out.at(i)); break;
        case 2: quantise<2>(x + i * kBlock, out.at(i)); break;
        case 1: quantise<1>(x + i * kBlock, out.at(i)); break;
        default: break;
    }
}

#elif defined(STOLON_AVX2)

void quantise_run(const float* x, int64_t blocks, const Q8Out& out) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    // Packing works within 128 bits: dword m of part j comes out as dword 4j + m, hence the permutation.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t i = 0; i < blocks; ++i, x += kBlock) {
        const Q8Out to = out.at(i);
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
        const bool some = !(absmax < kTiny);
        float scale = 0.0f, factor = 0.0f, least = std::numeric_limits<float>::infinity();
        for (const float candidate : kLimits) {
            const float step = some ? absmax / candidate : 0.0f, inverse = some ? candidate / absmax : 0.0f;
            vf squares = vset(0.0f);
            for (int j = 0; j < 4; ++j) {
                const vf scaled = vf{v[j]} * vset(inverse), error = scaled - vround(scaled);
                squares = vfma(error, error, squares);
            }
            const float error = step * step * vsum(squares);
            if (error < least || candidate == kLimits[0]) {
                scale = step;
                factor = inverse;
                least = error;
            }
        }
        const __m256 inverse = _mm256_set1_ps(factor);
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
        to.put(scale, int32_t(eights[0] + eights[1]) - 16 * 128, int32_t(eights[2] + eights[3]) - 16 * 128);
    }
}

#else

void quantise_run(const float* x, int64_t blocks, const Q8Out& out) {
    // Adding this rounds to a whole number, which the low bits then hold; any bits are safe to take.
    constexpr float kRounder = 12582912.0f;
    for (int64_t i = 0; i < blocks; ++i, x += kBlock) {
        const Q8Out to = out.at(i);
        uint32_t high = 0;
        for (int j = 0; j < kBlock; ++j) high = std::max(high, bits_of(x[j]) & 0x7fffffffu);
        const float absmax = float_from_bits(high);
        const bool some = !(absmax < kTiny);
        float scale = 0.0f, inverse = 0.0f;
        float least = std::numeric_limits<float>::infinity();
        for (const float candidate : kLimits) {
            const float factor = some ? candidate / absmax : 0.0f;
            float squares[16];
            for (int j = 0; j < 16; ++j) {
                const float a = x[j] * factor, b = x[16 + j] * factor;
                const float c = a - (a + kRounder - kRounder), d = b - (b + kRounder - kRounder);
                squares[j] = c * c + d * d;
            }
            for (int n = 8; n; n /= 2)
                for (int j = 0; j < n; ++j) squares[j] += squares[j + n];
            const float step = some ? absmax / candidate : 0.0f;
            const float error = step * step * squares[0];
            if (error < least || candidate == kLimits[0]) {
                scale = step;
                inverse = factor;
                least = error;
            }
        }
        int32_t sums[2] = {0, 0};
        for (int h = 0; h < 2; ++h) {
            int8_t rounded[16];
            for (int j = 0; j < 16; ++j) {
                rounded[j] = int8_t(bits_of(x[16 * h + j] * inverse + kRounder) - bits_of(kRounder));
            }
            for (int j = 0; j < 16; ++j) sums[h] += rounded[j];
            std::memcpy(to.values + 16 * h, rounded, 16);
        }
        to.put(scale, sums[0], sums[1]);
    }
}

#endif

}  // namespace

STOLON_END
