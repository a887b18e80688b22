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

constexpr int kUnitInputs = 32;  // bf16 that a row of a tile holds

// Products of up to 16 rows of `a` with tiles of 16 columns of b.
class UnitProducts {
    static constexpr int kColumnTiles = 4;                            // sums are tiles 0 to 3
    static constexpr int kA = 4, kB = 5, kRestOfA = 6, kRestOfB = 7;  // the rest: of inputs that are not 32
    TileShapes shapes_;

    template <int A, int B, int N>
    STOLON_ALWAYS static void step(const bf16* a, int64_t a_stride, const uint32_t* b, int64_t b_stride) {
        tile_load<A>(a, a_stride * int64_t(sizeof(bf16)));
        unrolled<N>([&]<int C>() STOLON_ALWAYS {
            tile_load<B>(b + C * W, b_stride * int64_t(sizeof(uint32_t)));
            tile_dot_bf16<C, A, B>();
        });
    }

    template <int N>
    static void compute(int inputs, const bf16* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* out,
                        int64_t out_stride) {
        unrolled<N>([&]<int C>() STOLON_ALWAYS { tile_zero<C>(); });
        int at = 0;
        for (; at + kUnitInputs <= inputs; at += kUnitInputs)
            step<kA, kB, N>(a + at, a_stride, b + at / 2 * b_stride, b_stride);
        if (at < inputs) step<kRestOfA, kRestOfB, N>(a + at, a_stride, b + at / 2 * b_stride, b_stride);
        unrolled<N>([&]<int C>() STOLON_ALWAYS { tile_store<C>(out + C * W, out_stride * int64_t(sizeof(float))); });
    }

public:
    // Of `rows` rows, with any multiple of 32 inputs, or with `inputs`.
    UnitProducts(int rows, int inputs) {
        for (int c = 0; c < kColumnTiles; ++c) shapes_.set(c, rows, 64);
        shapes_.set(kA, rows, 64);
        shapes_.set(kB, kUnitInputs / 2, 64);
        const int rest = inputs % kUnitInputs;
        shapes_.set(kRestOfA, rest ? rows : 0, 2 * rest);
        shapes_.set(kRestOfB, rest / 2, rest ? 64 : 0);
    }

    void begin() const { use_tiles(shapes_); }
    void end() const { release_tiles(); }

    // out[rows][16 * tiles] = a[rows][inputs] times b[inputs / 2][columns][2]. Strides in elements, of b in pairs.
    void operator()(int tiles, int inputs, const bf16* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* out,
                    int64_t out_stride) const {
        switch (tiles) {
            case 1: return compute<1>(inputs, a, a_stride, b, b_stride, out, out_stride);
            case 2: return compute<2>(inputs, a, a_stride, b, b_stride, out, out_stride);
            case 3: return compute<3>(inputs, a, a_stride, b, b_stride, out, out_stride);
            default: return compute<kColumnTiles>(inputs, a, a_stride, b, b_stride, out, out_stride);
        }
    }
};
static_assert(kMaxVectors == 4 && kMaxRows == 16);

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
