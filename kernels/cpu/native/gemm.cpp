// Linear layers: rows of activations times tiles of packed weights.
//
// One tile function serves every number of rows: it computes R rows by C tiles of 16 columns, group of
// inputs by group of inputs. What an element goes through (which products, in which order they are summed)
// does not depend on R, C, or its place in them, so a row's result does not depend on the batch.
#include <algorithm>

#include "pack.h"
#include "simd.h"
#include "tile.h"

STOLON_BEGIN
namespace {

constexpr int kPrefetchLevel = 2;  // into the second-level cache

#if defined(STOLON_AVX512)
constexpr int kRows = 6, kColumns = 2;  // 12 integer and 12 float accumulators of 32 registers
#elif defined(STOLON_AVX2)
constexpr int kRows = 2, kColumns = 1;
#else
constexpr int kRows = 4, kColumns = 1;
#endif

// Rows [first, first + R) of the activations, and C tiles of one weight.
struct Operands {
    const Activations* x;
    const Weight* w;
    const uint8_t* tile;
    int64_t first;
    // What this lane reads next, to be asked for meanwhile, `fetch_step` bytes with each group of inputs:
    // left alone, the hardware stops at every page.
    const uint8_t* fetch;
    const uint8_t* fetch_end;
    int64_t fetch_step;
};

inline void fetch_some(const uint8_t*& p, const Operands& in) {
    for (const uint8_t* stop = std::min(p + in.fetch_step, in.fetch_end); p < stop; p += 64)
        __builtin_prefetch(p, 0, kPrefetchLevel);
}

// Call f with each number as a constant.
template <int... I, class F>
inline void each_of(F&& f) {
    (f.template operator()<I>(), ...);
}

// The codes of quartet Q of a group.
template <int Bits, int Q>
inline B64 load_codes(const uint8_t* group) {
    if constexpr (Bits == 8) return b_load(group + 64 * Q);
    const B64 both = b_load(group + 64 * (Q % 4));
    B64 codes = Q < 4 ? b_low(both) : b_high(both);
    if constexpr (Bits == 5) codes = b_or<4 - Q, 16>(codes, b_load(group + 256));
    if constexpr (Bits == 6) codes = b_or<4 - 2 * (Q % 4), 48>(codes, b_load(group + 256 + 64 * (Q / 4)));
    return codes;
}

// sum[r][c] += codes of quartet Q times the activations of row r.
template <int Bits, int Q, int R, int C>
inline void add_quartet(const uint8_t* group, int64_t tile_bytes, const int8_t* a, int64_t k, I16 (&sum)[R][C]) {
    B64 codes[C];
    for (int c = 0; c < C; ++c) codes[c] = load_codes<Bits, Q>(group + c * tile_bytes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const int32_t word = load_word(a + r * k + 4 * Q);
        for (int c = 0; c < C; ++c) sum[r][c] = dot4<Bits>(sum[r][c], codes[c], word);
    }
}

template <WeightType T, int R, int C>
inline void quantised_tile(const Operands& in, F16 (&out)[R][C]) {
    constexpr QuantLayout L = quant_layout(T);
    constexpr bool by_half = T == WeightType::Q6_K;
    constexpr bool offsets = T == WeightType::Q4_1 || T == WeightType::Q5_1 || T == WeightType::Q4_K ||
                             T == WeightType::Q5_K;
    constexpr int zero_bits = L.bits - 1;
    constexpr bool zero = L.zero && !(L.bits == 8 && kCentred8);
    static_assert(offsets || L.zero == 1 << zero_bits);
    const Activations& x = *in.x;
    const int64_t k = x.k, groups = k / 32;
    const int64_t tile_bytes = in.w->tile_bytes;
    const uint8_t* scales = in.tile + groups * L.group_codes;
    const int8_t* values = x.values + in.first * k;
    const int64_t at = in.first * groups;
    const uint8_t* fetch = in.fetch;
    F16 head[C] = {}, head_offset[C] = {};
    for (auto& row : out)
        for (F16& cell : row) cell = f_zero();

    for (int64_t g = 0; g < groups; ++g) {
        if constexpr (L.supers == 8) {
            if (g % 8 == 0) {
                if (g) scales += 8 * L.group_scales + L.head;
                for (int c = 0; c < C; ++c) {
                    head[c] = f_half(scales + c * tile_bytes);
                    if constexpr (offsets) head_offset[c] = f_half(scales + c * tile_bytes + 32);
                }
            }
        }
        const uint8_t* group = in.tile + g * L.group_codes;
        const uint8_t* group_scales =
            L.supers == 8 ? scales + L.head + g % 8 * L.group_scales : scales + g * L.group_scales;
        const int8_t* a = values + 32 * g;
        fetch_some(fetch, in);

        if constexpr (!by_half) {
            I16 sum[R][C];
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < C; ++c)
                    sum[r][c] = zero ? i_minus_shifted<zero_bits>(x.sums32[at + r * groups + g]) : i_set(0);
            // Few rows: a second set of sums halves the chains of dependent additions. Sums are exact.
            constexpr bool split = R * C <= 4;
            I16 other[split ? R : 1][C];
            if constexpr (split)
                for (auto& row : other)
                    for (I16& cell : row) cell = i_set(0);
            each_of<0, 1, 2, 3>([&]<int V>() {
                add_quartet<L.bits, V>(group, tile_bytes, a, k, sum);
                if constexpr (split)
                    add_quartet<L.bits, V + 4>(group, tile_bytes, a, k, other);
                else
                    add_quartet<L.bits, V + 4>(group, tile_bytes, a, k, sum);
            });
            if constexpr (split)
                for (int r = 0; r < R; ++r)
                    for (int c = 0; c < C; ++c) sum[r][c] = i_add(sum[r][c], other[r][c]);
            for (int c = 0; c < C; ++c) {
                const uint8_t* s = group_scales + c * tile_bytes;
                F16 scale, offset;
                if constexpr (L.supers == 8) {
                    scale = f_mul(head[c], f_u8(s));
                    if constexpr (offsets) offset = f_mul(head_offset[c], f_mul(f_u8(s + 16), f_set(-1.0f)));
                } else {
                    scale = f_half(s);
                    if constexpr (offsets) offset = f_half(s + 32);
                }
                for (int r = 0; r < R; ++r) {
                    const int64_t i = at + r * groups + g;
                    out[r][c] = f_fma(f_int(sum[r][c]), f_mul(scale, f_set(x.scales[i])), out[r][c]);
                    if constexpr (offsets) out[r][c] = f_fma(offset, f_set(x.weighted[i]), out[r][c]);
                }
            }
        } else {
            // Each half of the group has its own scale.
            each_of<0, 1>([&]<int Half>() {
                I16 sum[R][C];
                for (int r = 0; r < R; ++r)
                    for (int c = 0; c < C; ++c)
                        sum[r][c] = i_minus_shifted<zero_bits>(x.sums16[2 * (at + r * groups + g) + Half]);
                each_of<0, 1, 2, 3>(
                    [&]<int V>() { add_quartet<L.bits, 4 * Half + V>(group, tile_bytes, a, k, sum); });
                for (int c = 0; c < C; ++c) {
                    const F16 scale = f_mul(head[c], f_i8(group_scales + c * tile_bytes + 16 * Half));
                    for (int r = 0; r < R; ++r) {
                        const F16 factor = f_mul(scale, f_set(x.scales[at + r * groups + g]));
                        out[r][c] = f_fma(f_int(sum[r][c]), factor, out[r][c]);
                    }
                }
            });
        }
    }
}

template <WeightType T, int R, int C>
inline void plain_tile(const Operands& in, F16 (&out)[R][C]) {
    const Activations& x = *in.x;
    const int64_t tile_bytes = in.w->tile_bytes;
    for (auto& row : out)
        for (F16& cell : row) cell = f_zero();
    if constexpr (T == WeightType::BF16) {
        const bf16* a = x.half + in.first * x.half_stride;
        const uint8_t* fetch = in.fetch;
        for (int64_t i = 0; i < in.w->k_padded; i += 2) {
            B64 w[C];
            for (int c = 0; c < C; ++c) w[c] = b_load(in.tile + c * tile_bytes + 32 * i);
            if (i % 32 == 0) fetch_some(fetch, in);
            for (int r = 0; r < R; ++r) {
                const int32_t pair = load_word(a + r * x.half_stride + i);
                for (int c = 0; c < C; ++c) out[r][c] = dot_bf16(out[r][c], w[c], pair);
            }
        }
    } else {
        const float* a = x.f32 + in.first * x.f32_stride;
        for (int64_t i = 0; i < x.k; ++i) {
            F16 w[C];
            for (int c = 0; c < C; ++c) {
                const uint8_t* p = in.tile + c * tile_bytes;
                w[c] = T == WeightType::F16 ? f_half(p + 32 * i) : f_load((const float*)(p + 64 * i));
            }
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < C; ++c) out[r][c] = f_fma(w[c], f_set(a[r * x.f32_stride + i]), out[r][c]);
        }
    }
}

// out[R][C * 16]
template <WeightType T, int R, int C>
void tile_of(const Operands& in, float* out) {
    F16 cells[R][C];
    if constexpr (T == WeightType::F32 || T == WeightType::F16 || T == WeightType::BF16)
        plain_tile<T, R, C>(in, cells);
    else
        quantised_tile<T, R, C>(in, cells);
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) f_store(out + (r * C + c) * kTile, cells[r][c]);
}

using TileFunction = void (*)(const Operands&, float*);

template <WeightType T, int C, int R>
TileFunction tile_with_rows(int rows) {
    if constexpr (R == 0)
        return nullptr;
    else
        return rows == R ? tile_of<T, R, C> : tile_with_rows<T, C, R - 1>(rows);
}

template <WeightType T>
TileFunction tile_with(int rows, int columns) {
    if constexpr (kColumns > 1)
        if (columns == 2) return tile_with_rows<T, 2, kRows>(rows);
    return tile_with_rows<T, 1, kRows>(rows);
}

TileFunction tile_function(WeightType type, int rows, int columns) {
    switch (type) {
        case WeightType::F32: return tile_with<WeightType::F32>(rows, columns);
        case WeightType::F16: return tile_with<WeightType::F16>(rows, columns);
        case WeightType::BF16: return tile_with<WeightType::BF16>(rows, columns);
        case WeightType::Q4_0: return tile_with<WeightType::Q4_0>(rows, columns);
        case WeightType::Q4_1: return tile_with<WeightType::Q4_1>(rows, columns);
        case WeightType::Q5_0: return tile_with<WeightType::Q5_0>(rows, columns);
        case WeightType::Q5_1: return tile_with<WeightType::Q5_1>(rows, columns);
        case WeightType::Q8_0: return tile_with<WeightType::Q8_0>(rows, columns);
        case WeightType::Q4_K: return tile_with<WeightType::Q4_K>(rows, columns);
        case WeightType::Q5_K: return tile_with<WeightType::Q5_K>(rows, columns);
        case WeightType::Q6_K: return tile_with<WeightType::Q6_K>(rows, columns);
    }
    return nullptr;
}

vf activate(vf x, Gate gate) {
    if (gate == Gate::Silu) return x * vreciprocal(vset(1.0f) + vexp(vset(0.0f) - x));
    // gelu, tanh form: x / 2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    const vf inner = vset(0.7978845608f) * vfma(x * x * x, vset(0.044715f), x);
    return vset(0.5f) * x * (vset(1.0f) + vtanh(inner));
}

// What happens to a finished tile on its way out: `rows` rows of `width` (16 or 32) columns, `cells` rows
// lie `width` apart.
void finish(const LinearArgs& args, int64_t row, int rows, int64_t column, int width, int64_t valid,
            float* cells, const float* up) {
    for (int r = 0; r < rows; ++r) {
        float* y = cells + r * width;
        float* out = args.out + (row + r) * args.out_stride + column;
        const float* residual =
            args.residual ? args.residual + (row + r) * args.out_stride + column : nullptr;
        if (valid < width) {  // the last, padded tile: its own columns only, the same arithmetic
            alignas(64) float padded[2 * kTile] = {}, extra[2 * kTile] = {}, shift[2 * kTile] = {};
            if (residual) std::copy(residual, residual + valid, extra);
            if (args.bias) std::copy(args.bias + column, args.bias + column + valid, shift);
            for (int i = 0; i < width; i += W) {
                vf v = vload(y + i);
                if (args.gate != Gate::None) v = activate(v, args.gate) * vload(up + r * width + i);
                if (args.bias) v = v + vload(shift + i);
                if (args.softcap != 0.0f) v = vset(args.softcap) * vtanh(v / vset(args.softcap));
                if (residual) v = v + vload(extra + i);
                vstore(padded + i, v);
            }
            std::copy(padded, padded + valid, out);
            continue;
        }
        for (int i = 0; i < width; i += W) {
            vf v = vload(y + i);
            if (args.gate != Gate::None) v = activate(v, args.gate) * vload(up + r * width + i);
            if (args.bias) v = v + vload(args.bias + column + i);
            if (args.softcap != 0.0f) v = vset(args.softcap) * vtanh(v / vset(args.softcap));
            if (residual) v = v + vload(residual + i);
            vstore(out + i, v);
        }
    }
}

struct Item {
    int64_t weight, tile, column;  // the first tile of the item, its first column in the output
    int tiles;
};

int64_t items_of(const Weight& w) { return ((w.columns + kTile - 1) / kTile + kColumns - 1) / kColumns; }

Item find_item(const LinearArgs& args, int64_t index) {
    int64_t column = 0;
    for (int64_t i = 0; i < args.weight_count; ++i) {
        const int64_t items = items_of(args.weights[i]);
        if (index < items) {
            const int64_t tile = index * kColumns;
            const int64_t tiles = (args.weights[i].columns + kTile - 1) / kTile;
            return {i, tile, column + tile * kTile, int(std::min<int64_t>(kColumns, tiles - tile))};
        }
        index -= items;
        column += args.weights[i].columns;
    }
    return {0, 0, 0, 0};
}

const uint8_t* tile_at(const Weight& w, int64_t tile) {
    return reinterpret_cast<const uint8_t*>(w.data) + tile * w.tile_bytes;
}

struct Bytes {
    const uint8_t* begin;
    const uint8_t* end;
};

// The memory that an item takes of a weight.
Bytes bytes_of(const Weight& w, const Item& item) {
    const uint8_t* begin = tile_at(w, item.tile);
    return {begin, begin + item.tiles * w.tile_bytes};
}

// `rows` rows from `row` on by the tiles of `item` of `w`. Meanwhile a part of `next` is asked for: the
// pieces of an item together ask for all of it.
void run_tile(const Activations* x, const Weight& w, const Item& item, Bytes next, int64_t row, int rows,
              int64_t pieces, float* cells) {
    const int64_t groups = std::max<int64_t>(1, x->k / kBlock);
    const int64_t lines = (next.end - next.begin + 63) / 64;
    const int64_t step = (lines + pieces * groups - 1) / (pieces * groups) * 64;
    const int64_t done = row * pieces / x->rows * groups * step;
    const uint8_t* fetch = next.begin + std::min(done, next.end - next.begin);
    tile_function(w.type, rows, item.tiles)({x, &w, tile_at(w, item.tile), row, fetch, next.end, step}, cells);
}

// Cut `rows` into pieces of at most kRows, as even as they come: 8 rows are 4 and 4, not 6 and 2.
int64_t piece_of(int64_t left) {
    const int64_t pieces = (left + kRows - 1) / kRows;
    return (left + pieces - 1) / pieces;
}

}  // namespace

void linear(const Lane& lane, const LinearArgs& args) {
    int64_t items = 0;
    for (int64_t i = 0; i < args.weight_count; ++i) items += items_of(args.weights[i]);
    alignas(64) float cells[kRows * kColumns * kTile], up_cells[kRows * kColumns * kTile];
    const int64_t rows = args.x->rows, pieces = (rows + kRows - 1) / kRows;
    int64_t index = Lane::claim(*args.counter);
    while (index < items) {
        const int64_t next = Lane::claim(*args.counter);
        const Item item = find_item(args, index);
        if (!item.tiles) return;
        // After the last item of this call: the first ones of the next.
        Bytes soon{}, soon_up{};
        if (next < items) {
            const Item following = find_item(args, next);
            soon = bytes_of(args.weights[following.weight], following);
            if (args.gate != Gate::None) soon_up = bytes_of(args.up[following.weight], following);
        } else if (args.upcoming) {
            const int64_t tiles = (args.upcoming->columns + kTile - 1) / kTile;
            const int64_t tile = std::min<int64_t>(lane.index * kColumns, tiles - 1);
            soon = bytes_of(*args.upcoming, {0, tile, 0, int(std::min<int64_t>(kColumns, tiles - tile))});
        }
        const Weight& w = args.weights[item.weight];
        const int width = item.tiles * kTile;
        const int64_t valid = std::min<int64_t>(width, w.columns - item.tile * kTile);
        for (int64_t row = 0; row < rows;) {
            const int piece = int(piece_of(rows - row));
            for (int r = 0; r < piece; ++r)  // where the results go: rows lie far apart
                for (int64_t i = 0; i < width; i += 16)
                    __builtin_prefetch(args.out + (row + r) * args.out_stride + item.column + i, 1);
            run_tile(args.x, w, item, soon, row, piece, pieces, cells);
            if (args.gate != Gate::None)
                run_tile(args.x, args.up[item.weight], item, soon_up, row, piece, pieces, up_cells);
            finish(args, row, piece, item.column, width, valid, cells, up_cells);
            row += piece;
        }
        index = next;
    }
}

void chosen(const Lane&, const ChosenArgs& args) {
    alignas(64) float cells[kTile];
    for (int64_t i; (i = Lane::claim(*args.counter)) < args.count;) {
        const Weight& w = *args.weight;
        const int64_t tile = args.column[i] / kTile;
        tile_function(w.type, 1, 1)({args.x, &w, tile_at(w, tile), args.row_of[i], nullptr, nullptr, 0}, cells);
        if (args.softcap != 0.0f)
            for (int c = 0; c < kTile; c += W)
                vstore(cells + c, vset(args.softcap) * vtanh(vload(cells + c) / vset(args.softcap)));
        args.out[i] = cells[args.column[i] % kTile];
    }
}

STOLON_END
