// Attention over the paged cache, as attention_plan.h divides it.
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
// (vdpbf16ps): features 2i and 2i+1, positions 2i and 2i+1. The weights are made in bf16 for it (all of them over 2^64,
// attention_avx512.h says why) and l is the sum of those: they add up to one exactly, and what rounding does to a
// weighted mean shrinks with the spread of the values. The other builds keep weights in float32.
//
// A position that a row doesn't see has weight 0, and a value that is read is finite (where a sum is not, rows
// are taken one by one, see `partials`), so it adds +0 or -0, which changes no sum but the sign of a zero; that
// sign is taken away at the end of the block. Hence what is masked adds exactly nothing.
#include "attention_join.h"

#if defined(STOLON_AVX512)
#include "attention_direct.h"
#else
#include "attention_float.h"
#endif

STOLON_BEGIN

namespace {

using ScoreTile = void (*)(const Query* const*, const Key*, int, float*, Peak*, bool, Ahead&);
using ValueTile = bool (*)(const Factor*, const Value*, int, int, int, float* const*, bool, Ahead&);

template <int R, int... V>
constexpr void fill_row(ScoreTile* scores, ValueTile* values) {
    ((scores[V - 1] = score_tile<R, V>, values[V - 1] = value_tile<R, V>), ...);
}

struct Tiles {
    ScoreTile scores[kMaxRows][kMaxVectors];
    ValueTile values[kMaxRows][kMaxVectors];
    template <int R = 1>
    constexpr void fill() {
#if defined(STOLON_AVX512)
        fill_row<R, 1, 2, 3, 4>(scores[R - 1], values[R - 1]);
#else
        fill_row<R, 1, 2>(scores[R - 1], values[R - 1]);
#endif
        if constexpr (R < kMaxRows) fill<R + 1>();
    }
    constexpr Tiles() : scores{}, values{} { fill(); }
};
constexpr Tiles kTiles;

// What one lane works with for one call.
class Worker {
   public:
    Worker(const Lane& lane, const AttentionArgs& args)
        : args_(args), plan_(*args.plan), head_dim_(args.shape.head_dim), width_(int(round_up(head_dim_, 16))) {
        std::byte* at = lane.scratch;
        const auto take = [&at]<typename T>(T*& to, int64_t count) {
            to = reinterpret_cast<T*>(at);
            at += round_up(count * int64_t(sizeof(T)), 64);
        };
        take(keys_, kKvBlock * (kConvertQueries ? head_dim_ : head_dim_ / 2));
        take(values_, kKvBlock * width_);
        take(scores_, kTileRows * kKvBlock);
        take(weights_, kTileRows * kKvBlock);
        take(parts_, kTileRows * (kState + width_));
        if constexpr (kConvertQueries) take(queries_, kTileRows * head_dim_);
        const int64_t most = std::max<int64_t>(kItemRows, plan_.group);
        take(states_, most * (kState + width_));
        take(rows_, most);
    }

    // Many rows: the item takes long, and its loads little of it.
    bool is_long(const AttentionPlan::Item& item) const {
        return !item.partial && (item.end_row - item.first_row) * plan_.group > 2 * kTileRows;
    }

    // `next`: the item that this lane will do after it, or null.
    void run(const AttentionPlan::Item& item, const AttentionPlan::Item* next) {
        now_ = stretch_of(item);
        ahead_.enter(now_, next ? stretch_of(*next) : Stretch());
        if (item.partial) {
            divided(item);
        } else {
            whole(item);
        }
    }

   private:
    Source source_of(const AttentionPlan::Run& run, int64_t head, int64_t block) const {
        const int64_t feature = head * head_dim_;
        return {args_.k + feature, args_.v + feature, int64_t(args_.shape.num_kv_heads) * head_dim_,
                run.slots + block * kKvBlock, 0, kPositions, head_dim_, feature};
    }

    // Stacked rows of each head of an item.
    int64_t stacked_rows(const AttentionPlan::Item& item) const {
        if (!item.partial) return (item.end_row - item.first_row) * plan_.group;
        int64_t rows = 0;
        for (int64_t i = 0; i < item.run_count; ++i) rows += plan_.runs[plan_.members[item.first_run + i]].rows;
        return rows * plan_.group;
    }

    // The positions that an item reads.
    Stretch stretch_of(const AttentionPlan::Item& item) const {
        const AttentionPlan::Run& run = plan_.runs[plan_.members[item.first_run]];
        const Source source = source_of(run, item.first_head, 0);
        const int64_t end = std::min(item.end_block * kKvBlock, run.length);
        const int64_t begin = std::clamp(low_of(run.position + item.first_row), item.first_block * kKvBlock, end);
        return {source.k, source.v, source.stride, (item.end_head - item.first_head) * head_dim_, run.slots, begin, end};
    }

    // A block of an item is computed next, for so many stacked rows of each head. The more these are, the more there is
    // to compute for a row of the cache, and the more can be fetched meanwhile.
    void look_ahead(const AttentionPlan::Item& item, int64_t block, int64_t stacked) {
        const AttentionPlan::Run& run = plan_.runs[plan_.members[item.first_run]];
        const int64_t heads = item.end_head - item.first_head;
        const int64_t begin = std::max(block * kKvBlock, now_.begin);
        const int64_t rows = std::min((block + 1) * kKvBlock, run.length) - begin;
        const int64_t tiles = (stacked + kMaxRows - 1) / kMaxRows;
        const int64_t most = kAheadBytes / (now_.width * 2 * int64_t(sizeof(bf16)));
        const int64_t lead = stacked >= kTileRows ? most : std::min(kKvBlock, most);
        const int64_t ticks = is_direct(stacked) ? 4 * head_dim_ * rows / kPositions : tiles * (kPositions * 3 / 4);
        ahead_.pace(begin, rows, lead, heads * ticks);
    }

    bool is_direct(int64_t count) const {
#if defined(STOLON_AVX512)
        return count <= kDirectRows && head_dim_ % kDirect.features[count - 1] == 0;
#else
        return false;
#endif
    }

    // [first, end) of the positions of a block that a row at `position` sees; empty if none.
    int64_t low_of(int64_t position) const {
        return plan_.window > 0 ? std::max<int64_t>(0, position - plan_.window + 1) : 0;
    }
    bool sees(int64_t position, int64_t block) const {
        return block * kKvBlock <= position && low_of(position) < (block + 1) * kKvBlock;
    }

    // Stacked rows of row r of a run, from rows_[count].
    int64_t stack(const AttentionPlan::Run& run, int64_t r, int64_t head, int64_t count) {
        const int64_t row = run.row + r, heads = args_.shape.num_heads;
        for (int64_t g = 0; g < plan_.group; ++g) {
            const int64_t at = (row * heads + head * plan_.group + g) * head_dim_;
            rows_[count++] = {args_.q + at, run.position + r, nullptr, args_.out + at};
        }
        return count;
    }

    // All blocks that some rows of one run see. The heads take turns at a block.
    void whole(const AttentionPlan::Item& item) {
        const AttentionPlan::Run& run = plan_.runs[plan_.members[item.first_run]];
        const int64_t heads = item.end_head - item.first_head;
        int64_t count = 0;
        for (int64_t h = item.first_head; h < item.end_head; ++h)
            for (int64_t r = item.first_row; r < item.end_row; ++r) count = stack(run, r, h, count);
        for (int64_t i = 0; i < count; ++i) rows_[i].state = states_ + i * (kState + width_);
        const int64_t each = count / heads;
        for (int64_t block = item.first_block; block < item.end_block; ++block) {
            int64_t begin = 0, end = each;
            while (begin < end && !sees(rows_[begin].position, block)) ++begin;
            while (end > begin && !sees(rows_[end - 1].position, block)) --end;
            look_ahead(item, block, each);
            if (begin == end) continue;
            for (int64_t h = 0; h < heads; ++h)
                partials(run, item.first_head + h, block, rows_ + h * each + begin, end - begin,
                         rows_[begin].position, rows_[end - 1].position, true);
        }
    }

    // Some blocks of one run, or one block of several; the last to end joins the run's partials.
    void divided(const AttentionPlan::Item& item) {
        const int64_t* members = plan_.members.data() + item.first_run;
        const int64_t stacked = stacked_rows(item);
        for (int64_t block = item.first_block; block < item.end_block; ++block) {
            look_ahead(item, block, stacked);
            for (int64_t head = item.first_head; head < item.end_head; ++head) {
                int64_t count = 0, lowest = INT64_MAX, highest = 0;
                for (int64_t i = 0; i < item.run_count; ++i) {
                    const AttentionPlan::Run& run = plan_.runs[members[i]];
                    float* state = plan_.partial(run, head, block, 0);
                    for (int64_t r = 0; r < run.rows; ++r, state += plan_.group * plan_.partial_floats()) {
                        const int64_t position = run.position + r;
                        if (!sees(position, block)) continue;
                        lowest = std::min(lowest, position);
                        highest = std::max(highest, position);
                        const int64_t begin = count;
                        count = stack(run, r, head, count);
                        for (int64_t g = 0; g < plan_.group; ++g)
                            rows_[begin + g].state = state + g * plan_.partial_floats();
                    }
                }
                if (count > 0)
                    partials(plan_.runs[members[0]], head, block, rows_, count, lowest, highest, false);
            }
        }
        for (int64_t i = 0; i < item.run_count; ++i) {
            const AttentionPlan::Run& run = plan_.runs[members[i]];
            for (int64_t head = item.first_head; head < item.end_head; ++head) {
                std::atomic<int64_t>& ended = plan_.ended[members[i] * args_.shape.num_kv_heads + head];
                if (ended.fetch_add(1, std::memory_order_acq_rel) + 1 < run.parts) continue;
                ended.store(0, std::memory_order_relaxed);
                join_blocks(run, head);
            }
        }
    }

    void join_blocks(const AttentionPlan::Run& run, int64_t head) {
        for (int64_t r = 0; r < run.rows; ++r) {
            const int64_t position = run.position + r, first = low_of(position) / kKvBlock;
            const int64_t at = (run.row + r) * args_.shape.num_heads + head * plan_.group;
            for (int64_t g = 0; g < plan_.group; ++g) {
                float* state = plan_.partial(run, head, first, r * plan_.group + g);
                const int64_t stride = run.rows * plan_.group * plan_.partial_floats();  // from block to block
                join_all(state, stride, position / kKvBlock - first, head_dim_);
                write_out(state, args_.out + (at + g) * head_dim_, head_dim_);
            }
        }
    }

    // Partials of `rows`, which all see something of the block; the positions of the rows lie in [lowest, highest].
    // `joined`: into the rows' states, which begin with the first block that a row sees; else each state is a partial
    // of its own.
    void partials(const AttentionPlan::Run& run, int64_t head, int64_t block, const Row* rows, int64_t count,
                  int64_t lowest, int64_t highest, bool joined) {
        Source source = source_of(run, head, block);
        source.low = span_of(lowest, block).low;
        source.high = span_of(highest, block).high;
        const Span least{span_of(highest, block).low, span_of(lowest, block).high};
        const bool whole = least.low == 0 && least.high == kPositions;
        const bool once = count <= kTileRows;  // then it is loaded bit by bit, and stays in the first-level cache
        const auto load = [&] {
            if (once) return;
            load_keys(source, keys_, ahead_);
            load_values(source, values_, ahead_);
        };
        load();
        for (int64_t i = 0; i < count; i += kTileRows) {
            const int64_t end = std::min(count, i + kTileRows);
            if (tile_rows(block, rows + i, int(end - i), joined, whole, false, once ? &source : nullptr)) continue;
            // Some value is not finite, and 0 * infinity is not 0: a row may not meet what it doesn't see.
            for (int64_t j = i; j < end; ++j) {
                const Span span = span_of(rows[j].position, block);
                Source own = source;
                own.low = span.low;
                own.high = span.high;
                tile_rows(block, rows + j, 1, joined, whole, true, &own);
            }
            load();
        }
    }

    // What a row at `position` sees of a block.
    Span span_of(int64_t position, int64_t block) const {
        const int64_t start = block * kKvBlock;
        return {int(std::clamp<int64_t>(low_of(position) - start, 0, kPositions)),
                int(std::min<int64_t>(kPositions, position + 1 - start))};
    }

    // `whole`: all rows see all of the block. `source`: what is yet to be loaded, or null. `alone`: that holds nothing
    // that the rows don't see. Otherwise returns false, with no state joined, if a sum is not finite.
    bool tile_rows(int64_t block, const Row* rows, int count, bool joined, bool whole, bool alone,
                   const Source* source) {
        const int64_t start = block * kKvBlock;
        const bool direct = source != nullptr && is_direct(count);
        const int tiles = direct ? 1 : (count + kMaxRows - 1) / kMaxRows;
        int first[kTileRows + 1];  // rows of the tiles
        Span seen[kTileRows], spans[kTileRows];  // of the rows, of the tiles
        int begin[kTileRows], end[kTileRows];  // positions of the tiles
        const Query* q[kTileRows];
        float* parts[kTileRows];
        float* values[kTileRows];
        bool fresh[kTileRows];
        for (int i = 0; i < count; ++i) {
            seen[i] = whole ? Span{0, kPositions} : span_of(rows[i].position, block);
            fresh[i] = !joined || block == 0 || low_of(rows[i].position) >= start;
            parts[i] = fresh[i] ? rows[i].state : parts_ + i * (kState + width_);
            if (joined && rows[i].position < start + kKvBlock)  // its last block
                for (int f = 0; f < head_dim_; f += 16) __builtin_prefetch(rows[i].out + f, 1);
            if constexpr (kConvertQueries) {
                float* to = reinterpret_cast<float*>(queries_) + i * head_dim_;
                for (int f = 0; f < head_dim_; ++f) to[f] = float_of(rows[i].q[f]);
                q[i] = reinterpret_cast<const Query*>(to);
            } else {
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

        const int64_t keys_of_chunk = int64_t(kChunk) * (kConvertQueries ? head_dim_ : head_dim_ / 2);
        for (int chunk = block_begin / kChunk; !direct && chunk * kChunk < block_end; ++chunk) {
            if (source != nullptr) load_keys(source->part(chunk * kChunk, kChunk), keys_, ahead_);
            const Key* keys = source != nullptr ? keys_ : keys_ + chunk * keys_of_chunk;
            for (int t = 0; t < tiles; ++t) {
                const int from = std::max(begin[t], chunk * kChunk);
                const int to = std::min(end[t], (chunk + 1) * kChunk);
                if (from >= to) continue;
                kTiles.scores[first[t + 1] - first[t] - 1][(to - from) / W - 1](
                    q + first[t], keys + from % kChunk, head_dim_,
                    scores_ + first[t] * kPositions + from, whole ? peaks_ + first[t] : nullptr, chunk == 0, ahead_);
            }
        }
#if defined(STOLON_AVX512)
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
        const Peak* peaks = whole && !direct ? peaks_ : nullptr;
        if (whole) {
            weigh(scores_, weights_, seen, peaks, count, 0, kPositions, args_.softcap, parts);
        } else {
            for (int t = 0; t < tiles; ++t)
                weigh(scores_ + first[t] * kPositions, weights_ + first[t] * kPositions, seen + first[t], nullptr,
                      first[t + 1] - first[t], begin[t], end[t], args_.softcap, parts + first[t]);
        }
        const int width = int(round_up(head_dim_, W));
        bool finite = true;
#if defined(STOLON_AVX512)
        if (direct) {
            const int features = kDirect.features[count - 1];
            for (int at = 0; at < head_dim_; at += features) {
                for (int i = 0; i < count; ++i) values[i] = parts[i] + kState + at;
                finite &= kDirect.values[count - 1](weights_, value_rows_, source->feature + at, spans[0].low / 2,
                                                    (spans[0].high + 1) / 2, values, ahead_);
            }
        }
#endif
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
        if (!finite && !alone) return false;

        float* states[kTileRows];
        const float* others[kTileRows];
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

#if defined(STOLON_AVX512)
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
    const AttentionPlan& plan_;
    const int head_dim_;
    const int width_;  // features of a state: head_dim rounded up
    Stretch now_;  // of the item in hand
    Ahead ahead_;
    Key* keys_;
    Value* values_;
    float* scores_;
    Factor* weights_;
    float* parts_;
    Query* queries_ = nullptr;
    float* states_;
    Row* rows_;
    Peak peaks_[kTileRows];
};

}  // namespace

void attention(const Lane& lane, const AttentionArgs& args) {
    const AttentionPlan& plan = *args.plan;
    const int64_t count = int64_t(plan.batches.size()) - 1;
    Worker worker(lane, args);
    // Where batches are many, a lane claims one ahead, so that it knows what to fetch.
    const bool ahead = count >= 4 * lane.count;
    int64_t batch = Lane::claim(*args.counter);
    while (batch < count) {
        const int64_t end = plan.batches[size_t(batch) + 1];
        int64_t i = plan.batches[size_t(batch)];
        for (; i + 1 < end; ++i) worker.run(plan.items[size_t(i)], &plan.items[size_t(i) + 1]);
        const AttentionPlan::Item& last = plan.items[size_t(i)];
        if (ahead && !worker.is_long(last)) {
            batch = Lane::claim(*args.counter);
            worker.run(last, batch < count ? &plan.items[size_t(plan.batches[size_t(batch)])] : nullptr);
        } else {
            worker.run(last, nullptr);
            batch = Lane::claim(*args.counter);
        }
    }
}

STOLON_END
