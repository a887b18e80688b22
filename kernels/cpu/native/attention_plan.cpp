#include "attention_plan.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace stolon {
namespace {

// Costs are counted in block-rows: one query row of one head over one block of kKvBlock keys.
constexpr double kLoadCost = 3.0;      // loading and transposing a block of keys and values
constexpr int64_t kShortRows = 64;     // stacked rows (rows * heads of a kv head) of a short run, at most
constexpr int64_t kHeadBytes = 768;    // keys of one token that an item of few rows takes, about
constexpr double kItemsPerLane = 4.0;  // items are cut so that a lane gets at least about this many

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

int64_t most_stacked_rows(int64_t group) { return std::max(kItemRows, group); }

bool is_short(int64_t rows, int64_t group) { return rows == 1 || rows * group <= kShortRows; }

}  // namespace

size_t attention_scratch_bytes(const HeadShape& shape) {
    const int64_t group = shape.num_heads / shape.num_kv_heads;
    const int64_t width = round_up(shape.head_dim, 32);
    const int64_t keys_and_values = 2 * kKvBlock * width * int64_t(sizeof(float));
    const int64_t tile = kTileRows * (2 * kKvBlock + 2 * width + 64) * int64_t(sizeof(float));
    const int64_t row_bytes = 64 + (width + 16) * int64_t(sizeof(float));
    return size_t(keys_and_values + tile + (most_stacked_rows(group) + 32) * row_bytes + 4096);
}

void AttentionPlan::Free::operator()(float* p) const { ::operator delete(p, std::align_val_t(64)); }

double AttentionPlan::block_cost(int64_t stacked_rows) const { return kLoadCost + double(stacked_rows); }

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
    double total = 0;
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
            if (is_long) total += seen * double(rows * group);
        }
        row += rows;
    }

    find_groups();
    for (const Group& g : groups_) {
        int64_t stacked = 0;
        for (int64_t i = 0; i < g.run_count; ++i) stacked += runs[members[g.first_run + i]].rows * group;
        total += block_cost(stacked);
    }
    for (const Chain& c : chains_)
        total += double(c.end_block - c.first_block) * block_cost(runs[c.run].rows * group);

    // Costs of one kv head: an item of few rows does several.
    const double target = total * double(shape.num_kv_heads) / (double(std::max(lanes, 1)) * kItemsPerLane);
    const int64_t sets = choose_head_sets(lanes);
    const double target_of_set = target * double(sets) / double(shape.num_kv_heads);
    add_long_items(target);
    const size_t first_group = long_items_ = items.size();
    add_group_items(target_of_set, sets, lanes);
    const size_t first_chain = items.size();
    add_chain_items(target_of_set, sets);
    make_batches(first_group, first_chain);

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

int64_t AttentionPlan::choose_head_sets(int lanes) const {
    const int64_t row_bytes = int64_t(shape.num_kv_heads) * shape.head_dim * int64_t(sizeof(bf16));
    const int64_t sets = std::clamp<int64_t>(row_bytes / kHeadBytes, 1, shape.num_kv_heads);
    int64_t pieces = int64_t(groups_.size());
    for (const Chain& c : chains_) pieces += c.end_block - c.first_block;
    return lanes > 1 && double(pieces * sets) < kItemsPerLane * lanes ? shape.num_kv_heads : sets;
}

void AttentionPlan::add_for_heads(Item item, int64_t head_sets) {
    for (int64_t set = 0; set < head_sets; ++set) {
        item.first_head = shape.num_kv_heads * set / head_sets;
        item.end_head = shape.num_kv_heads * (set + 1) / head_sets;
        items.push_back(item);
    }
}

// Last rows first: they see most, and small items at the end even out the lanes.
void AttentionPlan::add_long_items(double target) {
    const int64_t most = std::max<int64_t>(1, most_stacked_rows(group) / group);
    const int64_t least = std::min(most, ceil_div(kTileRows, group));
    for (int64_t r : long_runs_) {
        const Run& run = runs[r];
        members.push_back(r);
        for (int64_t end = run.rows; end > 0;) {
            const int64_t length = run.position + end;
            const int64_t low = window > 0 ? std::max<int64_t>(0, length - window) : 0;
            const double per_row = double(length - low) / double(kKvBlock) * double(group);
            const int64_t rows = std::clamp(int64_t(target / std::max(per_row, 1.0)), least, most);
            const int64_t begin = std::max<int64_t>(0, end - rows);
            const int64_t first = window > 0 ? std::max<int64_t>(0, run.position + begin - window + 1) / kKvBlock : 0;
            add_for_heads({int64_t(members.size()) - 1, 1, begin, end, first, ceil_div(length, kKvBlock), 0, 0, false},
                          shape.num_kv_heads);
            end = begin;
        }
    }
}

// The items from `first_group` on are of groups, those from `first_chain` on of chains. Groups take chains with them,
// spread evenly, as far as there are any.
void AttentionPlan::make_batches(size_t first_group, size_t first_chain) {
    apart_.assign(items.begin() + int64_t(first_group), items.end());
    items.resize(first_group);
    batches.resize(first_group);
    for (size_t i = 0; i < first_group; ++i) batches[i] = int64_t(i);
    const size_t groups = first_chain - first_group, chains = apart_.size() - groups;
    size_t chain = 0;
    const auto add = [&](const Item& item, bool begins) {
        if (begins) batches.push_back(int64_t(items.size()));
        items.push_back(item);
    };
    for (size_t i = 0; i < groups; ++i) {
        add(apart_[i], true);
        if (chain * groups < (i + 1) * std::min(groups, chains)) add(apart_[groups + chain++], false);
    }
    for (; chain < chains; ++chain) add(apart_[groups + chain], true);
    batches.push_back(int64_t(items.size()));
}

// The last ones are small, to even out the lanes.
void AttentionPlan::add_group_items(double target, int64_t head_sets, int lanes) {
    const int64_t whole = lanes > 1 ? int64_t(groups_.size()) - 2 * lanes : int64_t(groups_.size());
    const int64_t limit =
        std::clamp(int64_t(std::min(target, 1e9)), kTileRows, kItemRows);
    for (const Group& g : groups_) {
        const int64_t sets = &g - groups_.data() < whole ? head_sets : shape.num_kv_heads;
        for (int64_t i = 0; i < g.run_count;) {
            const int64_t begin = i;
            int64_t stacked = 0;
            do {
                Run& run = runs[members[g.first_run + i]];
                stacked += run.rows * group;
                ++run.parts;
                ++i;
            } while (i < g.run_count && stacked + runs[members[g.first_run + i]].rows * group <= limit);
            add_for_heads({g.first_run + begin, i - begin, 0, 0, g.block, g.block + 1, 0, 0, true}, sets);
        }
    }
}

void AttentionPlan::add_chain_items(double target, int64_t head_sets) {
    const int64_t heads = ceil_div(shape.num_kv_heads, head_sets);
    for (const Chain& c : chains_) {
        Run& run = runs[c.run];
        const int64_t member = int64_t(members.size());
        members.push_back(c.run);
        const int64_t blocks = c.end_block - c.first_block;
        const double cost = block_cost(run.rows * group);
        const bool whole = c.first_block == run.first_block && c.end_block == run.end_block;
        const bool fits = heads == 1 || run.rows * group * heads <= kItemRows;  // states are kept for all heads
        if (whole && fits && (blocks == 1 || double(blocks) * cost <= target)) {
            add_for_heads({member, 1, 0, run.rows, c.first_block, c.end_block, 0, 0, false}, head_sets);
            continue;
        }
        const int64_t pieces = std::clamp(int64_t(double(blocks) * cost / target + 0.999), int64_t(1), blocks);
        for (int64_t piece = 0; piece < pieces; ++piece) {
            const int64_t first = c.first_block + blocks * piece / pieces;
            const int64_t end = c.first_block + blocks * (piece + 1) / pieces;
            add_for_heads({member, 1, 0, run.rows, first, end, 0, 0, true}, head_sets);
            ++run.parts;
        }
    }
}

}  // namespace stolon
