// How one step's attention is divided: what is loaded once for whom, and the list of work items.
//
// The context of every run is cut into blocks of kKvBlock positions, counted from position 0. A row's
// result is the fold, in the order of the blocks, of its partials over the blocks that it sees. The plan
// decides only who computes which partials and where they wait, so it changes no bit of a result.
//
//   long runs (prefill)    an item is a stretch of rows; it goes through their blocks and writes `out`
//   short runs (decode)    blocks whose slots are the same for several runs (a common prompt, branches) are
//                          loaded once for the rows of all of them. Where a run is divided over items, its
//                          partials wait in the plan's memory, and the lane that ends the last of them
//                          folds them: no barrier.
//
// Items are claimed in batches. One for many rows, which keeps a lane computing, is followed in its batch by one
// for few rows, which is mostly loading: what this will load is fetched while that is computed.
//
// An item covers some kv heads: one if it has many rows; else all that lie within some hundred bytes of each
// other in the cache, because memory delivers a token's whole row of them at hardly more cost than one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"

namespace stolon {

inline constexpr int64_t kKvBlock = 128;
inline constexpr int kMaxHeadDim = 256;
inline constexpr int64_t kTileRows = 24;   // stacked rows (rows * heads) worth computing together
inline constexpr int64_t kMostTileRows = 32;  // that any kernel computes together
inline constexpr int64_t kItemRows = 192;  // stacked rows of an item, at most (or the heads of one row)

constexpr int64_t most_stacked_rows(int64_t group) { return std::max(kItemRows, group); }

// Runs of a step in row order: run i has q_lens[i] rows, the last of kv_lens[i] positions; the slot of its
// position p is slot_table[table_rows[i] * table_stride + p].
struct StepRuns {
    int64_t runs;
    const int64_t* q_lens;
    const int64_t* kv_lens;
    const int64_t* table_rows;
    const int64_t* slot_table;
    int64_t table_stride;
};

// Lane::scratch that the attention kernel needs.
size_t attention_scratch_bytes(const HeadShape& shape);

struct AttentionPlan {
    struct Run {
        int64_t row;              // its first row in the step
        int64_t rows;
        int64_t position;         // of the first row
        int64_t length;           // of the context
        const int64_t* slots;     // by position
        int64_t first_block;      // that any of its rows sees
        int64_t end_block;
        int64_t partials;         // offset in floats; -1: not divided
        int64_t parts;            // items that each of its kv heads is divided over
    };

    struct Item {
        int64_t first_run;        // index into `members`
        int64_t run_count;
        int64_t first_row;        // rows of a single run that is not divided
        int64_t end_row;
        int64_t first_block;
        int64_t end_block;
        int64_t first_head;       // kv heads
        int64_t end_head;
        bool partial;             // leaves a partial for each row and block; else writes the result
    };

    // Replaces what was planned before and keeps the memory. One caller, while no kernel uses the plan.
    // `step.slot_table` is read again by the kernel; the other arrays may go away.
    void build(const StepRuns& step, const HeadShape& shape, int64_t window /* 0: none */, int lanes);

    // Slots of the cache that items of few rows read, in about their order, until there are `most`.
    void list_reads(int64_t most, std::vector<int32_t>& slots) const;

    // Floats of one partial: maximum, sum, padding, values.
    int64_t partial_floats() const { return partial_stride; }
    // Partial of a row (row * group + head within the group) of a divided run over a block.
    float* partial(const Run& run, int64_t kv_head, int64_t block, int64_t row) const {
        const int64_t blocks = run.end_block - run.first_block;
        const int64_t index = (kv_head * blocks + block - run.first_block) * run.rows * group + row;
        return partial_memory.get() + run.partials + index * partial_stride;
    }

    HeadShape shape{};
    int64_t window = 0;
    int64_t group = 1;            // query heads of a kv head
    int64_t partial_stride = 0;
    std::vector<Run> runs;
    std::vector<Item> items;
    std::vector<int64_t> batches;  // the first item of each, then the end of the last
    std::vector<int64_t> members;
    // Ended items of run r and kv head h: [r * kv_heads + h]. Zero before and after every kernel call.
    std::unique_ptr<std::atomic<int64_t>[]> ended;

   private:
    struct Free {
        void operator()(float* p) const;
    };
    struct Group {  // runs with the same slots in one block
        int64_t first_run, run_count, block;
    };
    struct Chain {  // blocks of one run that it shares with none
        int64_t run, first_block, end_block;
    };

    void find_groups();
    // attention_items.cpp. `long_cost`: of the long runs' rows.
    void cut_items(double long_cost, int lanes);
    void add_long_items(double target);
    void add_group_items(double target, int64_t head_sets, int lanes);
    void add_chain_items(double target, int64_t head_sets);
    void add_for_heads(Item item, int64_t head_sets);
    void make_batches(size_t first_group, size_t first_chain);
    int64_t choose_head_sets(int lanes) const;

    std::unique_ptr<float[], Free> partial_memory;
    size_t long_items_ = 0;  // the first ones
    int64_t partial_capacity = 0;
    int64_t ended_capacity = 0;
    std::vector<Item> apart_;
    std::vector<Group> groups_;
    std::vector<Chain> chains_;
    std::vector<int64_t> long_runs_, short_runs_, live_, next_chain_, heads_, owner_, bucket_;
};

}  // namespace stolon
