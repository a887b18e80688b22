// Scores and weighted values of a block through the matrix unit. attention_partials.h says what has to hold.
//
// The unit sums 32 inputs at once: the even and the odd ones each in order, then both, then that and what was there. So a
// score is a sum over 32 features after 32 features, and a value one over 32 positions after 32 positions, for one row as for
// many; no vector instruction does the same, and so few rows go this way too.
#pragma once

#include "attention_avx512.h"
#include "matrix_unit.h"

STOLON_BEGIN

namespace {

// Products of up to 32 rows of `a` with tiles of 16 columns of b.
class UnitProducts {
    UnitTiles unit_;

    template <int Halves, int Columns>
    static void compute(int inputs, const bf16* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* out,
                        int64_t out_stride) {
        UnitTiles::clear<Halves, Columns>();
        for (int at = 0; at < inputs; at += kUnitInputs) {
            unrolled<Halves>([&]<int H>() STOLON_ALWAYS {
                UnitTiles::load_half<H>(a + H * kUnitRows * a_stride + at, a_stride * int64_t(sizeof(bf16)));
            });
            unrolled<Columns>([&]<int C>() STOLON_ALWAYS {
                UnitTiles::load_columns<C>(b + at / 2 * b_stride + C * W, b_stride * int64_t(sizeof(uint32_t)));
                unrolled<Halves>([&]<int H>() STOLON_ALWAYS { UnitTiles::multiply<H, C>(); });
            });
        }
        UnitTiles::store<Halves, Columns>({out, out + W}, out_stride);
    }

    template <int Halves>
    static void all(int tiles, int inputs, const bf16* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* out,
                    int64_t out_stride) {
        for (; tiles >= 2; tiles -= 2, b += 2 * W, out += 2 * W)
            compute<Halves, 2>(inputs, a, a_stride, b, b_stride, out, out_stride);
        if (tiles) compute<Halves, 1>(inputs, a, a_stride, b, b_stride, out, out_stride);
    }

public:
    // out[rows][16 * tiles] = a[rows][inputs] times b[inputs / 2][columns][2]; inputs come in multiples of 32. Strides in
    // elements, of b in pairs.
    void operator()(int rows, int tiles, int inputs, const bf16* a, int64_t a_stride, const uint32_t* b, int64_t b_stride,
                    float* out, int64_t out_stride) {
        unit_.of(rows);
        if (rows > kUnitRows)
            all<2>(tiles, inputs, a, a_stride, b, b_stride, out, out_stride);
        else
            all<1>(tiles, inputs, a, a_stride, b, b_stride, out, out_stride);
    }
};
static_assert(kMaxRows == 2 * kUnitRows);

// Sums of rows [R][V * 16], which lie kChunk apart, to where they belong. Returns whether every one is finite.
bool put_values(const float* sums, int rows, int vectors, float* const* out) {
    __m512 odd = _mm512_setzero_ps();  // x - x is not 0 for an infinity or NaN
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) {
            const __m512 x = _mm512_load_ps(sums + r * kChunk + v * W);
            odd = _mm512_or_ps(odd, _mm512_sub_ps(x, x));
            _mm512_storeu_ps(out[r] + v * W, _mm512_add_ps(x, _mm512_setzero_ps()));
        }
    }
    return _mm512_test_epi32_mask(_mm512_castps_si512(odd), _mm512_castps_si512(odd)) == 0;
}

}  // namespace

STOLON_END
