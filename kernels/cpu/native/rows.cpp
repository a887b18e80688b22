// Kernels over rows of activations: everything in a step that is neither a product with a weight nor
// attention.
//
// Work is divided into contiguous ranges, one for each lane.
#include <algorithm>
#include <cmath>
#include <limits>

#include "isa.h"
#include "kernels.h"
#include "pack.h"
#include "simd.h"

STOLON_BEGIN

namespace {

struct Range {
    int64_t begin, end;
};

// This lane's part of n items.
inline Range part(const Lane& lane, int64_t n) {
    const int64_t each = n / lane.count, more = n % lane.count;
    const int64_t begin = lane.index * each + std::min<int64_t>(lane.index, more);
    return {begin, begin + each + (lane.index < more ? 1 : 0)};
}

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
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
        const float absmax = of_bits(uint32_t(_mm_cvtsi128_si32(half)));
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
        const float absmax = of_bits(high);
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

void prepare_q8(const Lane& lane, const Activations& a) {
    const int64_t per_row = a.k / kBlock;
    const Range mine = part(lane, a.rows * per_row);
    for (int64_t at = mine.begin; at < mine.end;) {
        const int64_t row = at / per_row, first = at % per_row;
        const int64_t count = std::min(per_row - first, mine.end - at);
        quantise_run(a.f32 + row * a.f32_stride + first * kBlock, count, Q8Out(a, row).at(first));
        at += count;
    }
}

void to_bf16(const float* x, int64_t count, float factor, bf16* out) {
    const vf by = vset(factor);
    int64_t i = 0;
    for (; i + W <= count; i += W) vstore_bf16(out + i, vload(x + i) * by);
    for (; i < count; ++i) out[i] = bf16_of(x[i] * factor);
}

void prepare_bf16(const Lane& lane, const Activations& a) {
    const Range mine = part(lane, a.rows);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        bf16* out = a.half + row * a.half_stride;
        to_bf16(a.f32 + row * a.f32_stride, a.k, 1.0f, out);
        std::fill(out + a.k, out + a.half_stride, bf16(0));
    }
}

// 1 / sqrt(mean(x^2) + eps). Four partial sums of W elements each, then the rest one by one.
inline float inverse_rms(const float* x, int64_t width, float eps) {
    vf s0 = vset(0.0f), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W) {
        const vf a = vload(x + i), b = vload(x + i + W), c = vload(x + i + 2 * W), d = vload(x + i + 3 * W);
        s0 = vfma(a, a, s0);
        s1 = vfma(b, b, s1);
        s2 = vfma(c, c, s2);
        s3 = vfma(d, d, s3);
    }
    for (; i + W <= width; i += W) {
        const vf a = vload(x + i);
        s0 = vfma(a, a, s0);
    }
    float sum = vsum((s0 + s1) + (s2 + s3));
    for (; i < width; ++i) sum += x[i] * x[i];
    return 1.0f / std::sqrt(sum / float(width) + eps);
}

// One head of one row, rotated (and normalised when `weight` is given), in bf16.
void rotate_head(const float* x, int64_t dim, const float* weight, float eps, const float* cos, const float* sin,
                 float factor, bf16* out) {
    const int64_t half = dim / 2;
    const float inverse = weight ? inverse_rms(x, dim, eps) : 1.0f;
    const vf inv = vset(inverse), by = vset(factor);
    int64_t i = 0;
    for (; i + W <= half; i += W) {
        vf a = vload(x + i), b = vload(x + half + i);
        if (weight) {
            a = a * inv * vload(weight + i);
            b = b * inv * vload(weight + half + i);
        }
        const vf c = vload(cos + i), s = vload(sin + i);
        vstore_bf16(out + i, (a * c - b * s) * by);
        vstore_bf16(out + half + i, (b * c + a * s) * by);
    }
    for (; i < half; ++i) {
        float a = x[i], b = x[half + i];
        if (weight) {
            a = a * inverse * weight[i];
            b = b * inverse * weight[half + i];
        }
        out[i] = bf16_of((a * cos[i] - b * sin[i]) * factor);
        out[half + i] = bf16_of((b * cos[i] + a * sin[i]) * factor);
    }
}

}  // namespace

void prepare(const Lane& lane, const PrepareArgs& args) {
    switch (args.type) {
        case ActivationType::F32: break;
        case ActivationType::BF16: prepare_bf16(lane, *args.a); break;
        case ActivationType::Q8: prepare_q8(lane, *args.a); break;
    }
}

void embed(const Lane& lane, const EmbedArgs& args) {
    const int64_t width = args.table->k;
    const Range mine = part(lane, args.rows);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        float* out = args.out + row * width;
        unpack_column(*args.table, args.ids[row], out);
        if (args.scale == 1.0f) continue;
        for (int64_t i = 0; i < width; ++i) out[i] *= args.scale;
    }
}

void norm(const Lane& lane, const NormArgs& args) {
    const int64_t width = args.width;
    const Range mine = part(lane, args.rows);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        const float* x = args.x + (args.gather ? args.gather[row] : row) * args.x_stride;
        const float* add = args.add ? args.add + row * args.out_stride : nullptr;
        float* out = args.out + row * args.out_stride;
        const float inverse = inverse_rms(x, width, args.eps);
        const vf inv = vset(inverse);
        int64_t i = 0;
        if (add) {
            for (; i + W <= width; i += W) {
                vstore(out + i, vload(x + i) * inv * vload(args.weight + i) + vload(add + i));
            }
            for (; i < width; ++i) out[i] = x[i] * inverse * args.weight[i] + add[i];
        } else {
            for (; i + W <= width; i += W) vstore(out + i, vload(x + i) * inv * vload(args.weight + i));
            for (; i < width; ++i) out[i] = x[i] * inverse * args.weight[i];
        }
    }
}

void add(const Lane& lane, const AddArgs& args) {
    // Whole cache lines, so that two lanes don't write the same one.
    const Range lines = part(lane, (args.count + 15) / 16);
    int64_t i = lines.begin * 16;
    const int64_t end = std::min(lines.end * 16, args.count);
    for (; i + W <= end; i += W) vstore(args.out + i, vload(args.x + i) + vload(args.y + i));
    for (; i < end; ++i) args.out[i] = args.x[i] + args.y[i];
}

void rotate(const Lane& lane, const RotateArgs& args) {
    const int64_t dim = args.shape.head_dim;
    const int64_t heads = args.shape.num_heads, kv_heads = args.shape.num_kv_heads;
    const int64_t all = heads + 2 * kv_heads;
    const Range mine = part(lane, args.rows * all);
    for (int64_t at = mine.begin; at < mine.end; ++at) {
        const int64_t row = at / all, head = at % all;
        const float* x = args.qkv + at * dim;
        if (head >= heads + kv_heads) {
            to_bf16(x, dim, 1.0f, args.v + (args.slots[row] * kv_heads + head - heads - kv_heads) * dim);
            continue;
        }
        const bool query = head < heads;
        bf16* out = query ? args.q + (row * heads + head) * dim
                          : args.k + (args.slots[row] * kv_heads + head - heads) * dim;
        rotate_head(x, dim, args.head_norm ? args.head_norm + head * dim : nullptr, args.eps,
                    args.cos + args.positions[row] * (dim / 2), args.sin + args.positions[row] * (dim / 2),
                    query ? args.query_scale : 1.0f, out);
    }
}

STOLON_END
