#include "attention_plan.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "memory.h"

namespace stolon {
namespace {

constexpr int64_t kShortRows = 64;     // stacked rows (rows * heads of a kv head) of a short run, at most
bool is_short(int64_t rows, int64_t group) { return rows == 1 || rows * group <= kShortRows; }

}  // namespace

size_t attention_scratch_bytes(const HeadShape& shape) {
    const int64_t group = shape.num_heads / shape.num_kv_heads;
    const int64_t width = round_up(shape.head_dim, 32);
    const int64_t keys_and_values = 2 * kKvBlock * width * int64_t(sizeof(float));
    const int64_t tile = kMostTileRows * (2 * kKvBlock + 2 * width + 64) * int64_t(sizeof(float));
    const int64_t row_bytes = 64 + (width + 16) * int64_t(sizeof(float));
    return size_t(keys_and_values + tile + (most_stacked_rows(group) + 32) * row_bytes + 4096);
}

void AttentionPlan::Free::operator()(float* p) const { ::operator delete(p, std::align_val_t(64)); }

void AttentionPlan::build(const StepRuns& step, const HeadShape& heads, int64_t sliding_window, int lanes) {
    shape = heads;
    window = sliding_window;
    group = heads.num_heads / heads.num_kv_heads;
    partial_stride = round_up(heads.head_dim, 16) + 16;
    runs.clear();
    items.clear();
    members.clear();
    groups_.clear();
    chains_.clear();
    long_runs_.clear();
    short_runs_.clear();

    int64_t row = 0;
    double long_cost = 0;
    for (int64_t i = 0; i < step.runs; ++i) {
        const int64_t rows = step.q_lens[i], length = step.kv_lens[i];
        if (rows > 0) {
            const int64_t position = length - rows;
            const int64_t low = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
            const int64_t first = low / kKvBlock, end = ceil_div(length, kKvBlock);
            const bool is_long = !is_short(rows, group);
            (is_long ? long_runs_ : short_runs_).push_back(int64_t(runs.size()));
            runs.push_back({row, rows, position, length,
                            step.slot_table + step.table_rows[i] * step.table_stride, first, end, -1, 0});
            // Half of the new positions are out of sight of the average row.
            const double seen = double(end - first) - (is_long ? double(rows) / (2 * kKvBlock) : 0.0);
            if (is_long) long_cost += seen * double(rows * group);
        }
        row += rows;
    }

    find_groups();
    cut_items(long_cost, lanes);

    int64_t floats = 0;
    for (Run& run : runs) {
        if (run.parts == 0) continue;
        run.partials = floats;
        floats += shape.num_kv_heads * (run.end_block - run.first_block) * run.rows * group * partial_stride;
    }
    if (floats > partial_capacity) {
        const int64_t capacity = floats + floats / 4;
        partial_memory.reset();
        partial_capacity = 0;
        partial_memory.reset(
            static_cast<float*>(::operator new(size_t(capacity) * sizeof(float), std::align_val_t(64))));
        partial_capacity = capacity;
    }
    const int64_t counters = int64_t(runs.size()) * shape.num_kv_heads;
    if (counters > ended_capacity) {
        ended.reset();
        ended_capacity = 0;
        ended = std::make_unique<std::atomic<int64_t>[]>(size_t(counters + counters / 4));
        ended_capacity = counters + counters / 4;
    }
}

// Full blocks of short runs, in order. Runs that share a block share those before it (they are a common
// prefix), so a run that was alone in one is not compared in the next.
void AttentionPlan::find_groups() {
    const int64_t count = int64_t(short_runs_.size());
    if (count == 0) return;
    int64_t block = INT64_MAX, started = 0, last = 0;
    next_chain_.resize(runs.size());
    live_.clear();
    for (int64_t r : short_runs_) {
        next_chain_[r] = runs[r].first_block;
        block = std::min(block, runs[r].first_block);
        started = std::max(started, runs[r].first_block);
        last = std::max(last, runs[r].length / kKvBlock);
        live_.push_back(r);
    }
    if (count == 1) live_.clear();

    owner_.resize(runs.size());
    bucket_.resize(runs.size());
    for (; block < last && live_.size() > 1; ++block) {
        // heads_: the first run of each set of equal ones; owner_: the place in heads_ of each live run;
        // bucket_: how many are in a set.
        heads_.clear();
        size_t kept = 0;
        for (int64_t r : live_) {
            const Run& run = runs[r];
            if (run.length / kKvBlock <= block) continue;
            live_[kept++] = r;
            owner_[r] = -1;
            if (run.first_block > block) continue;
            const int64_t* slots = run.slots + block * kKvBlock;
            int64_t place = 0;
            for (; place < int64_t(heads_.size()); ++place) {
                const int64_t* other = runs[heads_[place]].slots + block * kKvBlock;
                if (other[0] == slots[0] &&
                    (other == slots || !std::memcmp(other, slots, size_t(kKvBlock) * sizeof(int64_t))))
                    break;
            }
            if (place == int64_t(heads_.size())) {
                heads_.push_back(r);
                bucket_[place] = 0;
            }
            owner_[r] = place;
            ++bucket_[place];
        }
        live_.resize(kept);

        for (int64_t place = 0; place < int64_t(heads_.size()); ++place) {
            if (bucket_[place] < 2) continue;
            groups_.push_back({int64_t(members.size()), bucket_[place], block});
            for (int64_t r : live_) {
                if (owner_[r] != place) continue;
                members.push_back(r);
                if (next_chain_[r] < block) chains_.push_back({r, next_chain_[r], block});
                next_chain_[r] = block + 1;
            }
        }
        if (block < started) continue;
        kept = 0;
        for (int64_t r : live_)
            if (bucket_[owner_[r]] > 1) live_[kept++] = r;
        live_.resize(kept);
    }
    for (int64_t r : short_runs_)
        if (next_chain_[r] < runs[r].end_block) chains_.push_back({r, next_chain_[r], runs[r].end_block});
}

void AttentionPlan::list_reads(int64_t most, std::vector<int32_t>& slots) const {
    slots.clear();
    int64_t group_block = -1, group_slot = -1;  // a group may be divided over items
    for (size_t i = long_items_; i < items.size(); ++i) {
        const Item& item = items[i];
        if (item.first_head > 0) continue;
        const Run& run = runs[size_t(members[size_t(item.first_run)])];
        const int64_t low = window > 0 ? std::max<int64_t>(0, run.position - window + 1) : 0;
        const int64_t begin = std::max(low, item.first_block * kKvBlock);
        const int64_t end = std::min(item.end_block * kKvBlock, run.length);
        if (item.run_count > 1) {
            if (group_block == item.first_block && group_slot == run.slots[begin]) continue;
            group_block = item.first_block;
            group_slot = run.slots[begin];
        }
        if (int64_t(slots.size()) + end - begin > most) return;
        slots.insert(slots.end(), run.slots + begin, run.slots + end);
    }
}

}  // namespace stolon
