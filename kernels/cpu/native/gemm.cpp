// Linear layers: rows of activations times tiles of packed weights.
#include <algorithm>

#include "gemm_quantised.h"
#include "simd.h"

STOLON_BEGIN
namespace {

template <WeightType T, int R, int C>
inline void plain_tile(const Operands& in, F16 (&out)[R][C]) {
    const Activations& x = *in.x;
    const int64_t tile_bytes = in.w->tile_bytes;
    for (auto& row : out)
        for (F16& cell : row) cell = f_zero();
    if constexpr (T == WeightType::BF16) {
        const bf16* a = x.half + in.row * x.half_stride;
        Fetch fetch = *in.fetch;
        for (int64_t i = 0; i < in.w->k_padded; i += 2) {
            B64 w[C];
            for (int c = 0; c < C; ++c) w[c] = b_load(in.codes() + c * tile_bytes + 32 * i);
            if (i % 32 == 0) fetch.some();
            for (int r = 0; r < R; ++r) {
                const int32_t pair = load_word(a + r * x.half_stride + i);
                for (int c = 0; c < C; ++c) out[r][c] = dot_bf16(out[r][c], w[c], pair);
            }
        }
        *in.fetch = fetch;
    } else {
        const float* a = x.f32 + in.row * x.f32_stride;
        for (int64_t i = 0; i < x.k; ++i) {
            F16 w[C];
            for (int c = 0; c < C; ++c) {
                const uint8_t* p = in.codes() + c * tile_bytes;
                w[c] = T == WeightType::F16 ? f_half(p + 32 * i) : f_load((const float*)(p + 64 * i));
            }
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < C; ++c) out[r][c] = f_fma(w[c], f_set(a[r * x.f32_stride + i]), out[r][c]);
        }
    }
}

constexpr bool is_plain(WeightType type) {
    return type == WeightType::F32 || type == WeightType::F16 || type == WeightType::BF16;
}

vf activate(vf x, Gate gate) {
    if (gate == Gate::Silu) return x * vreciprocal(vset(1.0f) + vexp(vset(0.0f) - x));
    // gelu, tanh form: x / 2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    const vf inner = vset(0.7978845608f) * vfma(x * x * x, vset(0.044715f), x);
    return vset(0.5f) * x * (vset(1.0f) + vtanh(inner));
}

// What becomes of products on their way out. Pointers are to the elements of row `row` and of the first column of tile
// `tile`; null where there is nothing to do.
struct Ending {
    int64_t row, tile;
    Gate activation;
    const float* gate;  // what the products are gated with
    int64_t gate_stride;
    const float* bias;
    float softcap;
    const float* residual;
    int64_t residual_stride;

    bool nothing() const { return !gate && !bias && softcap == 0.0f && !residual; }
    bool only_adds() const { return !gate && !bias && softcap == 0.0f && residual; }

    vf operator()(vf v, int64_t r, int64_t column) const {
        if (gate) v = activate(vload(gate + r * gate_stride + column), activation) * v;
        if (bias) v = v + vload(bias + column);
        if (softcap != 0.0f) v = vset(softcap) * vtanh(v / vset(softcap));
        if (residual) v = v + vload(residual + r * residual_stride + column);
        return v;
    }
};

// out[R][C * 16], rows lie `stride` floats apart.
template <WeightType T, int R, int C>
void tile_of(const Operands& in, const Ending* ending, float* out, int64_t stride) {
    F16 cells[R][C];
    if constexpr (is_plain(T))
        plain_tile<T, R, C>(in, cells);
    else
        QuantisedTile<T, R, C>(in).run(in, cells);
    if (!ending) {
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS { f_store(out + I / C * stride + I % C * kTile, cells[I / C][I % C]); });
        return;
    }
    const int64_t row = in.row - ending->row, column = (in.tile - ending->tile) * kTile;
    if (ending->only_adds()) {
        const float* residual = ending->residual + row * ending->residual_stride + column;
        unrolled<R * C>([&]<int I>() STOLON_ALWAYS {
            constexpr int r = I / C, c = I % C;
            const F16 rest = f_load(residual + r * ending->residual_stride + c * kTile);
            f_store(out + r * stride + c * kTile, f_add(cells[r][c], rest));
        });
        return;
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c)
            for (int i = 0; i < kTile; i += W) {
                const vf v = (*ending)(f_part(cells[r][c], i / W), row + r, column + c * kTile + i);
                vstore(out + r * stride + c * kTile + i, v);
            }
}

using TileFunction = void (*)(const Operands&, const Ending*, float*, int64_t);

// How many of `columns` tiles are computed at once for so many rows.
constexpr int tiles_at_once(WeightType type, int rows, int columns) {
    return is_plain(type) || rows * columns <= kCells ? columns : 1;
}

template <WeightType T, int C, int R>
TileFunction tile_with_rows(int rows) {
    if constexpr (R == 0)
        return nullptr;
    else if constexpr (tiles_at_once(T, R, C) < C)
        return tile_with_rows<T, C, R - 1>(rows);
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

struct Bytes {
    const uint8_t* begin;
    const uint8_t* end;
};

// The memory that an item takes of a weight.
Bytes bytes_of(const Weight& w, const Item& item) {
    const uint8_t* begin = reinterpret_cast<const uint8_t*>(w.data) + item.tile * w.tile_bytes;
    return {begin, begin + item.tiles * w.tile_bytes};
}

// How many groups of inputs the tiles of an item go by, over all rows.
int64_t visits_of(const Activations& x, const Weight& w, int tiles) {
    const int64_t pieces = (x.rows + kRows - 1) / kRows, groups = std::max<int64_t>(1, x.k / kBlock);
    return pieces * groups * (tiles / tiles_at_once(w.type, int(std::min<int64_t>(x.rows, kRows)), tiles));
}

// Parts of a row of the cache to be fetched with each group, so that this lane is through with all that are due.
int64_t pace_of(const Lane& lane, const LinearArgs& args) {
    if (!args.cache_rows) return 0;
    int64_t visits = 0;
    for (int64_t i = 0; i < args.weight_count; ++i)
        visits += items_of(args.weights[i]) * visits_of(*args.x, args.weights[i], kColumns);
    if (args.gate != Gate::None) visits *= 2;
    return args.cache_rows_due * kRowParts * lane.count / visits + 1;
}

// All rows by the tiles of one item of one weight, some rows at a time, while the memory of another is asked for.
class Product {
    const Activations* x_;
    const Weight* w_;
    const Item item_;
    Fetch fetch_;

public:
    Product(const Activations* x, const Weight& w, const Item& item, Bytes next, CacheRows* rows, int64_t pace)
        : x_(x), w_(&w), item_(item) {
        const int64_t visits = visits_of(*x, w, item.tiles), lines = (next.end - next.begin + 63) / 64;
        fetch_ = {next.begin, next.end, (lines + visits - 1) / visits * 64, rows, pace};
    }

    // Rows [row, row + rows) to out, in pieces of at most kRows, as even as they come: 8 rows are 4 and 4, not 6 and 2.
    // Meanwhile the rows at `ahead`, if it is not null, are asked for: results will go there, and rows lie far apart.
    void compute(int64_t row, int64_t rows, const Ending* ending, float* out, int64_t stride, const float* ahead) {
        const int64_t pieces = (rows + kRows - 1) / kRows, fewer = rows / pieces, larger = rows % pieces;
        const int most = int(fewer + (larger > 0)), width = tiles_at_once(w_->type, most, item_.tiles);
        const TileFunction first = tile_function(w_->type, most, width), second = tile_function(w_->type, int(fewer), width);
        for (int tile = 0; tile < item_.tiles; tile += width) {
            Operands in{x_, w_, row, item_.tile + tile, &fetch_};
            float* to = out + tile * kTile;
            for (int64_t piece = 0; piece < pieces; ++piece) {
                const int64_t count = fewer + (piece < larger);
                if (ahead)
                    for (int64_t r = in.row - row; r < in.row - row + count; ++r)
                        for (int64_t c = tile; c < tile + width; ++c) __builtin_prefetch(ahead + r * stride + c * kTile, 1);
                (piece < larger ? first : second)(in, ending, to, stride);
                in.row += count;
                to += count * stride;
            }
        }
    }
};

constexpr int64_t kChunk = 8 * kRows;  // rows that wait for their gates

// The last, padded tile: the same arithmetic, and its own columns only.
void finish_padded(const Ending& ending, const float* cells, int64_t rows, int width, int64_t valid, float* out,
                   int64_t stride) {
    alignas(64) float extra[kColumns * kTile] = {}, shift[kColumns * kTile] = {}, padded[kColumns * kTile];
    if (ending.bias) std::copy(ending.bias, ending.bias + valid, shift);
    for (int64_t r = 0; r < rows; ++r) {
        Ending own = ending;
        if (own.gate) own.gate += r * own.gate_stride;
        if (own.bias) own.bias = shift;
        if (own.residual) {
            std::copy(own.residual + r * own.residual_stride, own.residual + r * own.residual_stride + valid, extra);
            own.residual = extra;
        }
        for (int i = 0; i < width; i += W) vstore(padded + i, own(vload(cells + r * width + i), 0, i));
        std::copy(padded, padded + valid, out + r * stride);
    }
}

}  // namespace

void linear(const Lane& lane, const LinearArgs& args) {
    int64_t items = 0;
    for (int64_t i = 0; i < args.weight_count; ++i) items += items_of(args.weights[i]);
    alignas(64) float cells[kChunk * kColumns * kTile], gates[kChunk * kColumns * kTile];
    const int64_t rows = args.x->rows, chunks = (rows + kChunk - 1) / kChunk;
    const int64_t pace = pace_of(lane, args);
    int64_t index = Lane::claim(*args.counter);
    while (index < items) {
        const int64_t next = Lane::claim(*args.counter);
        const Item item = find_item(args, index);
        if (!item.tiles) return;
        // After the last item of this call: the first ones of the next.
        Bytes soon{}, soon_up{};
        int64_t next_column = -1;
        if (next < items) {
            const Item following = find_item(args, next);
            soon = bytes_of(args.weights[following.weight], following);
            next_column = following.column;
            if (args.gate != Gate::None) soon_up = bytes_of(args.up[following.weight], following);
        } else if (args.upcoming) {
            const int64_t tiles = (args.upcoming->columns + kTile - 1) / kTile;
            const int64_t tile = std::min<int64_t>(lane.index * kColumns, tiles - 1);
            soon = bytes_of(*args.upcoming, {0, tile, 0, int(std::min<int64_t>(kColumns, tiles - tile))});
        }
        const Weight& w = args.weights[item.weight];
        const int width = item.tiles * kTile;
        const int64_t valid = std::min<int64_t>(width, w.columns - item.tile * kTile);
        const bool gated = args.gate != Gate::None;
        Product product(args.x, gated ? args.up[item.weight] : w, item, gated ? soon_up : soon, args.cache_rows, pace);
        Product gate_product(args.x, w, item, soon, args.cache_rows, pace);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t row = rows * chunk / chunks, count = rows * (chunk + 1) / chunks - row;
            const int64_t first = row * args.out_stride + item.column;
            const Ending ending{row, item.tile, args.gate, gated ? gates : nullptr, width,
                                args.bias ? args.bias + item.column : nullptr, args.softcap,
                                args.residual ? args.residual + first : nullptr, args.out_stride};
            const float* ahead = next_column < 0 ? nullptr : args.out + row * args.out_stride + next_column;
            if (gated) gate_product.compute(row, count, nullptr, gates, width, nullptr);
            if (valid == width) {
                product.compute(row, count, ending.nothing() ? nullptr : &ending, args.out + first, args.out_stride, ahead);
            } else {
                product.compute(row, count, nullptr, cells, width, nullptr);
                finish_padded(ending, cells, count, width, valid, args.out + first, args.out_stride);
            }
        }
        index = next;
    }
}

STOLON_END
