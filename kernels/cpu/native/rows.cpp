// Kernels over rows of activations: everything in a step that is neither a product with a weight nor
// attention.
//
// Work is divided into contiguous ranges, one for each lane.
#include <algorithm>
#include <cmath>

#include "pack.h"
#include "quantise.h"
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

void prepare_q8(const Lane& lane, const Activations& a) {
    if (a.together) {
        const Range rows = part(lane, a.rows);
        quantise_together(a, rows.begin, rows.end);
        return;
    }
    const Range mine = part(lane, a.rows * (a.k / kBlock));
    quantise_blocks(a, mine.begin, mine.end);
}

void to_bf16(const float* x, int64_t count, bf16* out) {
    int64_t i = 0;
    for (; i + W <= count; i += W) vstore_bf16(out + i, vload(x + i));
    for (; i < count; ++i) out[i] = bf16_of(x[i]);
}

void prepare_bf16(const Lane& lane, const Activations& a) {
    const Range mine = part(lane, a.rows);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        bf16* out = a.half + row * a.half_stride;
        to_bf16(a.f32 + row * a.f32_stride, a.k, out);
        std::fill(out + a.k, out + a.half_stride, bf16(0));
    }
}

void prepare_tiles(const Lane& lane, const Activations& a) {
    const Range mine = part(lane, a.rows);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
        auto [to, step] = a.tiled_at(row);
        const float* x = a.f32 + row * a.f32_stride;
        for (int64_t k = 0; k < a.k; k += kBlock, to += step) to_bf16(x + k, kBlock, to);
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
        case ActivationType::Tiles: prepare_tiles(lane, *args.a); break;
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
        if (args.tiles) {  // a width of whole groups
            auto [to, step] = args.tiles->tiled_at(row);
            for (; i < width; i += W) {
                vf v = vload(x + i) * inv * vload(args.weight + i);
                if (add) v = v + vload(add + i);
                vstore_bf16(to + i / kBlock * step + i % kBlock, v);
            }
            continue;
        }
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
            to_bf16(x, dim, args.v + (args.slots[row] * kv_heads + head - heads - kv_heads) * dim);
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
