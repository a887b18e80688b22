// Quantising with AVX-512, sixteen blocks at once: one number of each block is one register, and blocks do not wait for
// one another's divisions and reductions.
#pragma once

#include <type_traits>

#include "quantise_block.h"

STOLON_BEGIN
namespace {

constexpr int kBatch = 16;

// Four registers of 16 to four numbers: each is reduced with `op`.
template <class Op>
STOLON_ALWAYS inline __m128 reduce_four(const __m512 (&v)[4], Op&& op) {
    const __m512 ab = op(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const __m512 cd = op(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512 four = op(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    const __m512 two = op(four, _mm512_shuffle_f32x4(four, four, 0x4e));
    return _mm512_castps512_ps128(op(two, _mm512_shuffle_f32x4(two, two, 0xb1)));
}

// Blocks to be quantised together. Those beyond the last one are read and written, and mean nothing.
template <class Block>
struct Blocks {
    const float* x[kBatch];  // each [kBlock]
    Block* out[kBatch];
};

template <class Block>
class Batch {
    const float* const* const x_;
    Block* const* const out_;
    const int count_;

    // The largest magnitudes. They are found among the bit patterns: there a NaN is larger than everything.
    STOLON_ALWAYS __m512 largest() const {
        const auto max = [](__m512 a, __m512 b) STOLON_ALWAYS {
            return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
        };
        __m512 all = _mm512_setzero_ps();
        unrolled<kBatch / 4>([&]<int G>() STOLON_ALWAYS {
            if (4 * G >= count_) return;
            __m512 high[4];
            for (int i = 0; i < 4; ++i) {
                const float* x = x_[4 * G + i];
                high[i] = max(_mm512_abs_ps(_mm512_loadu_ps(x)), _mm512_abs_ps(_mm512_loadu_ps(x + 16)));
            }
            all = _mm512_insertf32x4(all, reduce_four(high, max), G);
        });
        return all;
    }

    // Squared errors of rounding the values times `factors`, for each candidate.
    STOLON_ALWAYS void errors(const __m512 (&factors)[kCandidates], __m512 (&out)[kCandidates]) const {
        alignas(64) float factor[kCandidates][kBatch];
        for (int c = 0; c < kCandidates; ++c) _mm512_store_ps(factor[c], factors[c]);
        const auto add = [](__m512 a, __m512 b) STOLON_ALWAYS { return _mm512_add_ps(a, b); };
        for (__m512& error : out) error = _mm512_setzero_ps();
        unrolled<kBatch / 4>([&]<int G>() STOLON_ALWAYS {
            if (4 * G >= count_) return;
            __m512 square[kCandidates][4];
            unrolled<4>([&]<int I>() STOLON_ALWAYS {
                constexpr int at = 4 * G + I;
                const __m512 first = _mm512_loadu_ps(x_[at]), second = _mm512_loadu_ps(x_[at] + 16);
                for (int c = 0; c < kCandidates; ++c) {
                    const __m512 f = _mm512_set1_ps(factor[c][at]);
                    // less the nearest whole number
                    const __m512 a = _mm512_reduce_ps(_mm512_mul_ps(first, f), _MM_FROUND_TO_NEAREST_INT);
                    const __m512 b = _mm512_reduce_ps(_mm512_mul_ps(second, f), _MM_FROUND_TO_NEAREST_INT);
                    square[c][I] = _mm512_fmadd_ps(a, a, _mm512_mul_ps(b, b));
                }
            });
            for (int c = 0; c < kCandidates; ++c) out[c] = _mm512_insertf32x4(out[c], reduce_four(square[c], add), G);
        });
    }

    // Four parts of four dwords, transposed.
    static __m512i transposed(__m512i a) {
        return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), a);
    }

    // Store the values times `factors`, rounded. halves[h]: the sums of the halves of blocks 8 h to 8 h + 7, in order.
    STOLON_ALWAYS void put_values(__m512 factors, __m512i (&halves)[2]) const {
        alignas(64) float factor[kBatch];
        _mm512_store_ps(factor, factors);
        const __m512i flip = _mm512_set1_epi8(char(0x80)), zero = _mm512_setzero_si512();
        unrolled<2>([&]<int H>() STOLON_ALWAYS {
            __m512i pair[4] = {zero, zero, zero, zero};  // of two blocks: the sums of four halves, one in each 128 bits
            unrolled<4>([&]<int P>() STOLON_ALWAYS {
                constexpr int first = 8 * H + 2 * P;
                if (first >= count_) return;
                __m512i part[4];
                for (int i = 0; i < 4; ++i) {
                    const __m512 f = _mm512_set1_ps(factor[first + i / 2]);
                    part[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x_[first + i / 2] + i % 2 * 16), f));
                }
                // Packing works within 128 bits.
                const __m512i bytes = transposed(
                    _mm512_packs_epi16(_mm512_packs_epi32(part[0], part[1]), _mm512_packs_epi32(part[2], part[3])));
                _mm256_storeu_si256((__m256i*)out_[first]->values, _mm512_castsi512_si256(bytes));
                _mm256_storeu_si256((__m256i*)out_[first + 1]->values, _mm512_extracti64x4_epi64(bytes, 1));
                const __m512i eights = _mm512_sad_epu8(_mm512_xor_si512(bytes, flip), zero);  // in 64 bits
                pair[P] = _mm512_add_epi64(eights, _mm512_shuffle_epi32(eights, _MM_PERM_BADC));
            });
            const __m512i low = _mm512_or_si512(pair[0], _mm512_slli_epi64(pair[1], 32));
            const __m512i high = _mm512_or_si512(pair[2], _mm512_slli_epi64(pair[3], 32));
            halves[H] = _mm512_sub_epi32(transposed(_mm512_unpacklo_epi64(low, high)), _mm512_set1_epi32(16 * 128));
        });
    }

    // Store what describes the blocks.
    STOLON_ALWAYS void put_descriptions(__m512 scales, const __m512i (&halves)[2]) const {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        const __m512i sums = _mm512_add_epi32(_mm512_permutex2var_epi32(halves[0], even, halves[1]),
                                              _mm512_permutex2var_epi32(halves[0], odd, halves[1]));
        const __m512i bits = _mm512_castps_si512(scales);
        const __m512i power = _mm512_maskz_sub_epi32(_mm512_test_epi32_mask(bits, bits),
                                                     _mm512_and_si512(bits, _mm512_set1_epi32(kExponent)),
                                                     _mm512_set1_epi32(kPowerOffset));
        __m512i level = _mm512_and_si512(_mm512_srli_epi32(bits, 23 - kScaleBits), _mm512_set1_epi32(kScaleLevels - 1));
        level = _mm512_slli_epi32(_mm512_or_si512(level, _mm512_set1_epi32(kScaleLevels)), 14 - kScaleBits);
        level = _mm512_or_si512(level, _mm512_slli_epi32(level, 16));
        const __m512i start = _mm512_mullo_epi32(sums, _mm512_set1_epi32(kPairStart));

        // Rows of numbers become columns, within 128 bits: the first of those that result are of blocks 0, 4, 8, 12.
        const auto put = [&](int at, __m512i ab01, __m512i ab23, __m512i cd01, __m512i cd23) STOLON_ALWAYS {
            const __m512i column[4] = {_mm512_unpacklo_epi64(ab01, cd01), _mm512_unpackhi_epi64(ab01, cd01),
                                       _mm512_unpacklo_epi64(ab23, cd23), _mm512_unpackhi_epi64(ab23, cd23)};
            unrolled<kBatch>([&]<int I>() STOLON_ALWAYS {
                auto* to = reinterpret_cast<__m128i*>(reinterpret_cast<std::byte*>(out_[I]) + at);
                if (I < count_) _mm_store_si128(to, _mm512_extracti32x4_epi32(column[I % 4], I / 4));
            });
        };
        if constexpr (std::is_same_v<Block, PairBlock>) {
            put(offsetof(PairBlock, power), _mm512_unpacklo_epi32(power, level), _mm512_unpackhi_epi32(power, level),
                _mm512_unpacklo_epi32(start, start), _mm512_unpackhi_epi32(start, start));
        } else {
            const __m512i weighted = _mm512_castps_si512(_mm512_mul_ps(scales, _mm512_cvtepi32_ps(sums)));
            const __m512i minus = _mm512_sub_epi32(_mm512_setzero_si512(), sums);
            const __m512i times = _mm512_set1_epi32(kHalfStart);
            const __m512i half[2] = {_mm512_mullo_epi32(halves[0], times), _mm512_mullo_epi32(halves[1], times)};
            put(offsetof(Q8Block, scale), _mm512_unpacklo_epi32(bits, weighted), _mm512_unpackhi_epi32(bits, weighted),
                _mm512_unpacklo_epi32(power, level), _mm512_unpackhi_epi32(power, level));
            put(offsetof(Q8Block, pair_start), _mm512_unpacklo_epi32(start, minus), _mm512_unpackhi_epi32(start, minus),
                _mm512_shuffle_i64x2(half[0], half[1], 0x88), _mm512_shuffle_i64x2(half[0], half[1], 0xdd));
        }
    }

public:
    Batch(const Blocks<Block>& blocks, int count) : x_(blocks.x), out_(blocks.out), count_(count) {}

    void quantise() const {
        const __m512 absmax = largest();
        const __mmask16 some = _mm512_cmp_ps_mask(absmax, _mm512_set1_ps(kTiny), _CMP_GE_OQ) &
                               _mm512_cmp_ps_mask(absmax, _mm512_set1_ps(kHuge), _CMP_LE_OQ);
        const __m512i step = _mm512_set1_epi32(kScaleStep), part = _mm512_set1_epi32(kScaleStep - 1);
        const __m512i least_scale = _mm512_castps_si512(_mm512_maskz_div_ps(some, absmax, _mm512_set1_ps(kLimit)));
        __m512i code = _mm512_maskz_andnot_epi32(some, part, _mm512_add_epi32(least_scale, part));
        __m512 candidate[kCandidates], inverse[kCandidates], error[kCandidates];
        for (int i = 0; i < kCandidates; ++i, code = _mm512_maskz_add_epi32(some, code, step)) {
            candidate[i] = _mm512_castsi512_ps(code);
            inverse[i] = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), candidate[i]);
        }
        errors(inverse, error);
        __m512 scale = candidate[0], factor = inverse[0], least = _mm512_mul_ps(_mm512_mul_ps(scale, scale), error[0]);
        for (int i = 1; i < kCandidates; ++i) {
            const __m512 other = _mm512_mul_ps(_mm512_mul_ps(candidate[i], candidate[i]), error[i]);
            const __mmask16 better = _mm512_cmp_ps_mask(other, least, _CMP_LT_OQ);
            scale = _mm512_mask_mov_ps(scale, better, candidate[i]);
            factor = _mm512_mask_mov_ps(factor, better, inverse[i]);
            least = _mm512_mask_mov_ps(least, better, other);
        }
        __m512i halves[2];
        put_values(factor, halves);
        put_descriptions(scale, halves);
        const __mmask16 lost = _mm512_cmp_ps_mask(absmax, _mm512_set1_ps(kHuge), _CMP_NLE_UQ);
        if (lost) [[unlikely]]
            for (int i = 0; i < count_; ++i)
                if (lost >> i & 1) lose(*out_[i]);
    }
};

// Takes blocks one by one, and quantises them sixteen at once.
template <class Block>
class Batches {
    Blocks<Block> blocks_;
    int count_ = 0;

public:
    STOLON_ALWAYS void add(const float* x, Block* out) {
        blocks_.x[count_] = x;
        blocks_.out[count_] = out;
        if (++count_ < kBatch) return;
        Batch<Block>(blocks_, kBatch).quantise();
        count_ = 0;
    }
    void finish() {
        if (!count_) return;
        alignas(64) const float zeros[kBlock] = {};
        Block spare;
        for (int i = count_; i < kBatch; ++i) blocks_.x[i] = zeros, blocks_.out[i] = &spare;
        Batch<Block>(blocks_, count_).quantise();
        count_ = 0;
    }
};

// Blocks [begin, end) of `a`, counted over all rows.
void quantise_blocks(const Activations& a, int64_t begin, int64_t end) {
    const int64_t per_row = a.k / kBlock;
    int64_t row = begin / per_row, column = begin % per_row;
    Batches<Q8Block> batches;
    for (; begin < end; ++begin) {
        batches.add(a.f32 + begin * kBlock, a.q8 + row * a.q8_stride + column);
        if (++column == per_row) column = 0, ++row;
    }
    batches.finish();
}

// Rows [begin, end), which lie together, in the order in which their blocks do.
void quantise_together(const Activations& a, int64_t begin, int64_t end) {
    const Pieces pieces(a.together);
    Batches<PairBlock> batches;
    for (int64_t row = begin, next; row < end; row = next) {
        next = std::min(end, pieces.begin(pieces.of(a.first + row) + 1) - a.first);
        const Activations::Row blocks = a.pairs_of(row);
        for (int64_t g = 0; g < a.k / kBlock; ++g)
            for (int64_t r = row; r < next; ++r)
                batches.add(a.f32 + r * a.f32_stride + g * kBlock, blocks.begin + g * blocks.step + (r - row));
    }
    batches.finish();
}

}  // namespace
STOLON_END
