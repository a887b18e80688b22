// Partial results of attention: some rows over one block of positions.
//
// The partial of a row over a block of kKvBlock positions is a maximum m, weights p = e^(score - m), their
// sum l and the values weighted by them, o. It is computed from stacked rows (rows times the query heads of
// one kv head), a tile of a few at a time, keys and values of the block having been brought into order:
//
//   scores   a vector is a run of positions; summed over the features, in their order
//   o        a vector is a run of features; summed over the positions, in their order
//
// so every element is one chain of operations that no tile size changes, nor whether the order is made in memory
// (for many rows) or in registers on the way (for few: "direct" below). With AVX-512 both sums go by pairs
// (vdpbf16ps): features 2i and 2i+1, positions 2i and 2i+1. The weights are made in bf16 for it (all of them over
// 2^64, attention_weights_avx512.h says why) and l is the sum of those: they add up to one exactly, and what rounding
// does to a weighted mean shrinks with the spread of the values. The other builds keep weights in float32.
//
// A position that a row doesn't see has weight 0, and a value that is read is finite (where a sum is not, rows
// are taken one by one, see `compute`), so it adds +0 or -0, which changes no sum but the sign of a zero; that
// sign is taken away at the end of the block. Hence what is masked adds exactly nothing.
#pragma once

#include <utility>

#include "attention_join.h"

#if defined(STOLON_AMX)
#include "attention_amx.h"
#include "attention_weights_avx512.h"
#elif defined(STOLON_AVX512)
#define STOLON_DIRECT 1
#include "attention_weights_avx512.h"
#include "attention_direct.h"
#else
#include "attention_float.h"
#endif

STOLON_BEGIN

namespace {

#if !defined(STOLON_AMX)

using ScoreTile = void (*)(const Query* const*, const Key*, int, float*, Peak*, bool, Ahead&);
using ValueTile = bool (*)(const Factor*, const Value*, int, int, int, float* const*, bool, Ahead&);

template <int R, int... V>
constexpr void fill_row(ScoreTile* scores, ValueTile* values, std::integer_sequence<int, V...>) {
    ((scores[V] = score_tile<R, V + 1>, values[V] = value_tile<R, V + 1>), ...);
}

struct Tiles {
    ScoreTile scores[kMaxRows][kMaxVectors];
    ValueTile values[kMaxRows][kMaxVectors];
    template <int R = 1>
    constexpr void fill() {
        fill_row<R>(scores[R - 1], values[R - 1], std::make_integer_sequence<int, kMaxVectors>());
        if constexpr (R < kMaxRows) fill<R + 1>();
    }
    constexpr Tiles() : scores{}, values{} { fill(); }
};
constexpr Tiles kTiles;

#endif

// What a lane computes partials with.
class Partials {
   public:
    Partials(const AttentionArgs& args, Scratch& scratch, Ahead& ahead)
        : args_(args), sight_{args.plan->window}, head_dim_(args.shape.head_dim), width_(int(round_up(head_dim_, 16))),
          padded_(int(round_up(head_dim_, kFeatureStep))),
          ahead_(ahead) {
        const int64_t key_rows = padded_ / (kConvertQueries ? 1 : 2);
        scratch.take(keys_, kKvBlock * key_rows);
        scratch.take(values_, kKvBlock * width_);
        scratch.take(scores_, kStacked * kKvBlock);
        scratch.take(weights_, kStacked * kKvBlock);
        scratch.take(parts_, kStacked * (kState + width_));
        scratch.take(queries_, kStacked * padded_);
#if defined(STOLON_AMX)
        scratch.take(sums_, kMaxRows * kChunk);
        std::fill(queries_, queries_ + kStacked * padded_, bf16(0));
        for (int chunk = 0; chunk < kPositions / kChunk; ++chunk)
            std::fill(keys_ + (chunk * key_rows + head_dim_ / 2) * kChunk, keys_ + (chunk + 1) * key_rows * kChunk, Key(0));
#endif
    }

    // Whether so many rows are computed without loading the block first.
    bool is_direct(int64_t count) const {
#if defined(STOLON_DIRECT)
        return count <= kDirectRows && head_dim_ % kDirect.features[count - 1] == 0;
#else
        return false;
#endif
    }

    // Partials of `rows`, which all see something of the block; the positions of the rows lie in [lowest, highest].
    // `joined`: into the rows' states, which begin with the first block that a row sees; else each state is a partial
    // of its own.
    void compute(const AttentionPlan::Run& run, int64_t head, int64_t block, const Row* rows, int64_t count,
                 int64_t lowest, int64_t highest, bool joined) {
        Source source = source_of(run, head, block);
        source.low = sight_.span_of(lowest, block).low;
        source.high = sight_.span_of(highest, block).high;
        const Span least{sight_.span_of(highest, block).low, sight_.span_of(lowest, block).high};
        const bool whole = least.low == 0 && least.high == kPositions;
        const bool once = count <= kStacked;  // then it is loaded bit by bit, and stays in the first-level cache
        const auto load = [&] {
            if (once) return;
            load_keys(source, keys_, ahead_);
            load_values(source, values_, ahead_);
        };
        load();
        for (int64_t i = 0; i < count; i += kStacked) {
            const int64_t end = std::min(count, i + kStacked);
            if (tile_rows(block, rows + i, int(end - i), joined, whole, false, once ? &source : nullptr)) continue;
            // Some value is not finite, and 0 * infinity is not 0: a row may not meet what it doesn't see.
            for (int64_t j = i; j < end; ++j) {
                const Span span = sight_.span_of(rows[j].position, block);
                Source own = source;
                own.low = span.low;
                own.high = span.high;
                tile_rows(block, rows + j, 1, joined, whole, true, &own);
            }
            load();
        }
    }

   private:
    Source source_of(const AttentionPlan::Run& run, int64_t head, int64_t block) const {
        const int64_t feature = head * head_dim_;
        return {args_.k + feature, args_.v + feature, int64_t(args_.shape.num_kv_heads) * head_dim_,
                run.slots + block * kKvBlock, 0, kPositions, head_dim_, feature};
    }

    // `whole`: all rows see all of the block. `source`: what is yet to be loaded, or null. `alone`: that holds nothing
    // that the rows don't see. Otherwise returns false, with no state joined, if a sum is not finite.
    bool tile_rows(int64_t block, const Row* rows, int count, bool joined, bool whole, bool alone,
                   const Source* source) {
        const int64_t start = block * kKvBlock;
        const bool direct = source != nullptr && is_direct(count);
        const int tiles = direct ? 1 : (count + kMaxRows - 1) / kMaxRows;
        int first[kStacked + 1];  // rows of the tiles
        Span seen[kStacked], spans[kStacked];  // of the rows, of the tiles
        int begin[kStacked], end[kStacked];  // positions of the tiles
        const Query* q[kStacked];
        float* parts[kStacked];
        [[maybe_unused]] float* values[kStacked];
        bool fresh[kStacked];
        for (int i = 0; i < count; ++i) {
            seen[i] = whole ? Span{0, kPositions} : sight_.span_of(rows[i].position, block);
            fresh[i] = !joined || block == 0 || sight_.low_of(rows[i].position) >= start;
            parts[i] = fresh[i] ? rows[i].state : parts_ + i * (kState + width_);
            if (joined && rows[i].position < start + kKvBlock)  // its last block
                for (int f = 0; f < head_dim_; f += 16) __builtin_prefetch(rows[i].out + f, 1);
            if constexpr (kConvertQueries) {
                float* to = reinterpret_cast<float*>(queries_) + i * head_dim_;
                for (int f = 0; f < head_dim_; ++f) to[f] = float_of(rows[i].q[f]);
                q[i] = reinterpret_cast<const Query*>(to);
            } else {
#if defined(STOLON_AMX)
                std::memcpy(queries_ + i * padded_, rows[i].q, size_t(head_dim_) * sizeof(bf16));
#endif
                q[i] = reinterpret_cast<const Query*>(rows[i].q);
            }
        }
        for (int t = 0; t <= tiles; ++t) first[t] = count * t / tiles;
        int block_begin = kPositions, block_end = 0;
        for (int t = 0; t < tiles; ++t) {
            spans[t] = seen[first[t]];
            for (int i = first[t]; !whole && i < first[t + 1]; ++i)
                spans[t] = {std::min(spans[t].low, seen[i].low), std::max(spans[t].high, seen[i].high)};
            begin[t] = spans[t].low / W * W;
            end[t] = int(round_up(spans[t].high, W));
            block_begin = std::min(block_begin, begin[t]);
            block_end = std::max(block_end, end[t]);
        }

        const int64_t keys_of_chunk = int64_t(kChunk) * padded_ / (kConvertQueries ? 1 : 2);
        for (int chunk = block_begin / kChunk; !direct && chunk * kChunk < block_end; ++chunk) {
            if (source != nullptr) load_keys(source->part(chunk * kChunk, kChunk), keys_, ahead_);
            const Key* keys = source != nullptr ? keys_ : keys_ + chunk * keys_of_chunk;
            for (int t = 0; t < tiles; ++t) {
                const int from = std::max(begin[t], chunk * kChunk);
                const int to = std::min(end[t], (chunk + 1) * kChunk);
                if (from >= to) continue;
#if defined(STOLON_AMX)
                ahead_.tick(head_dim_ / 2);
                products_(first[t + 1] - first[t], (to - from) / W, padded_, queries_ + first[t] * padded_, padded_,
                          keys + from % kChunk, kChunk, scores_ + first[t] * kPositions + from, kPositions);
#else
                kTiles.scores[first[t + 1] - first[t] - 1][(to - from) / W - 1](
                    q + first[t], keys + from % kChunk, head_dim_,
                    scores_ + first[t] * kPositions + from, whole ? peaks_ + first[t] : nullptr, chunk == 0, ahead_);
#endif
            }
        }
#if defined(STOLON_DIRECT)
        if (direct) {
            find_rows(*source);
            const int positions = kDirect.positions[count - 1];
            for (int at = block_begin; at < block_end; at += positions) {
                const bool last = at + positions >= block_end;
                kDirect.scores[count - 1][block_end - at > W](
                    q, key_rows_ + at, last ? value_rows_ + block_begin : key_rows_ + at + positions, source->feature,
                    head_dim_, scores_ + at, ahead_);
            }
        }
#endif
        const Peak* peaks = whole && !direct && kFindsPeaks ? peaks_ : nullptr;
        if (whole) {
            weigh(scores_, weights_, seen, peaks, count, 0, kPositions, args_.softcap, parts);
        } else {
            for (int t = 0; t < tiles; ++t)
                weigh(scores_ + first[t] * kPositions, weights_ + first[t] * kPositions, seen + first[t], nullptr,
                      first[t + 1] - first[t], begin[t], end[t], args_.softcap, parts + first[t]);
        }
        const int width = int(round_up(head_dim_, W));
        bool finite = true;
#if defined(STOLON_DIRECT)
        if (direct) {
            const int features = kDirect.features[count - 1];
            for (int at = 0; at < head_dim_; at += features) {
                for (int i = 0; i < count; ++i) values[i] = parts[i] + kState + at;
                finite &= kDirect.values[count - 1](weights_, value_rows_, source->feature + at, spans[0].low / 2,
                                                    (spans[0].high + 1) / 2, values, ahead_);
            }
        }
#endif
#if defined(STOLON_AMX)
        if (source != nullptr) load_values(*source, values_, ahead_);
        for (int t = 0; t < tiles; ++t) {
            const int from = begin[t] / kValueStep * kValueStep, to = int(round_up(end[t], kValueStep));
            finite &= weigh_values(first[t], first[t + 1], from, to, width, parts);
        }
#else
        const int step = source != nullptr ? kValuesAtOnce : kPositions;
        for (int at = block_begin / step * step; !direct && at < block_end; at += step) {
            if (source != nullptr) load_values(source->part(at, step), values_, ahead_);
            for (int chunk = 0; chunk < width; chunk += kChunk) {
                const int chunk_width = std::min(kChunk, width - chunk);
                for (int i = 0; i < count; ++i) values[i] = parts[i] + kState + chunk;
                for (int t = 0; t < tiles; ++t) {
                    const int from = std::max(spans[t].low - at, 0), to = std::min(spans[t].high - at, step);
                    if (from >= to) continue;
                    finite &= kTiles.values[first[t + 1] - first[t] - 1][chunk_width / W - 1](
                        weights_ + first[t] * kPositions + at, values_ + int64_t(chunk) * kPositions, chunk_width,
                        from, to, values + first[t], spans[t].low < at, ahead_);
                }
            }
        }
#endif
        if (!finite && !alone) return false;

        float* states[kStacked];
        const float* others[kStacked];
        int joining = 0;
        for (int i = 0; i < count; ++i) {
            if (fresh[i]) continue;
            states[joining] = rows[i].state;
            others[joining++] = parts[i];
        }
        if (joining > 0) join(states, others, joining, head_dim_);
        for (int i = 0; joined && i < count; ++i)
            if (rows[i].position < start + kKvBlock) write_out(rows[i].state, rows[i].out, head_dim_);
        return true;
    }

#if defined(STOLON_AMX)
    // Values weighted over positions [from, to), whole steps, to the parts of rows [first, end). Returns whether all are finite.
    bool weigh_values(int first, int end, int from, int to, int width, float* const* parts) {
        bool finite = true;
        for (int chunk = 0; chunk < width; chunk += kChunk) {
            const int chunk_width = std::min(kChunk, width - chunk);
            const Value* values = values_ + int64_t(chunk) * kPositions + int64_t(from) * chunk_width;
            ahead_.tick(kPositions / 2);
            products_(end - first, chunk_width / W, to - from, weights_ + first * kPositions + from, kPositions,
                      reinterpret_cast<const uint32_t*>(values), chunk_width, sums_, kChunk);
            float* out[kMaxRows];
            for (int i = first; i < end; ++i) out[i - first] = parts[i] + kState + chunk;
            finite &= put_values(sums_, end - first, chunk_width / W, out);
        }
        return finite;
    }

    UnitProducts products_;
    float* sums_;
#endif

#if defined(STOLON_DIRECT)
    // Where each position's keys and values are (of kv head 0), for all heads of a block at once. For a position that
    // isn't loaded: those of another one, whose weight is 0.
    void find_rows(const Source& s) {
        if (found_slots_ == s.slots && found_low_ == s.low && found_high_ == s.high) return;
        found_slots_ = s.slots;
        found_low_ = s.low;
        found_high_ = s.high;
        const bf16 *k = s.k - s.feature, *v = s.v - s.feature;
        for (int i = 0; i < kPositions + 2 * W; ++i) {
            const int64_t at = s.slots[std::clamp(i, s.low, s.high - 1)] * s.stride;
            key_rows_[i] = k + at;
            value_rows_[i] = v + at;
        }
    }

    const bf16* key_rows_[kPositions + 2 * W];
    const bf16* value_rows_[kPositions + 2 * W];
    const int64_t* found_slots_ = nullptr;
    int found_low_ = 0, found_high_ = 0;
#endif
    const AttentionArgs& args_;
    const Sight sight_;
    const int head_dim_;
    const int width_;  // features of a state: head_dim rounded up
    const int padded_;  // features that scores sum
    Ahead& ahead_;
    Key* keys_;
    Value* values_;
    float* scores_;
    Factor* weights_;
    float* parts_;
    Query* queries_;  // of the rows that are computed together, where these are copied
    Peak peaks_[kStacked];
};

}  // namespace

STOLON_END
