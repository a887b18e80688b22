// The items of an attention plan: runs and groups cut into pieces of about the same cost, enough for every lane.
#include <algorithm>

#include "attention_plan.h"
#include "memory.h"

namespace stolon {
namespace {

// Costs are counted in block-rows: one query row of one head over one block of kKvBlock keys.
constexpr double kLoadCost = 3.0;      // loading and transposing a block of keys and values
constexpr int64_t kHeadBytes = 768;    // keys of one token that an item of few rows takes, about
constexpr double kItemsPerLane = 4.0;  // items are cut so that a lane gets at least about this many

double block_cost(int64_t stacked_rows) { return kLoadCost + double(stacked_rows); }

}  // namespace

void AttentionPlan::cut_items(double long_cost, int lanes) {
    double total = long_cost;
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
