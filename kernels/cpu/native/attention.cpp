// Attention over the paged cache, as attention_plan.h divides it: the items of a plan, and a lane's way through them.
#include "attention_partials.h"

STOLON_BEGIN

namespace {

// What one lane works with for one call.
class Worker {
   public:
    Worker(const AttentionArgs& args, Scratch& scratch)
        : args_(args), plan_(*args.plan), sight_{plan_.window}, head_dim_(args.shape.head_dim),
          partials_(args, scratch, ahead_) {
        const int64_t most = most_stacked_rows(plan_.group);
        scratch.take(states_, most * plan_.partial_floats());
        scratch.take(rows_, most);
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
        const int64_t feature = item.first_head * head_dim_, stride = int64_t(args_.shape.num_kv_heads) * head_dim_;
        const int64_t end = std::min(item.end_block * kKvBlock, run.length);
        const int64_t low = sight_.low_of(run.position + item.first_row);
        const int64_t begin = std::clamp(low, item.first_block * kKvBlock, end);
        return {args_.k + feature, args_.v + feature, stride, (item.end_head - item.first_head) * head_dim_,
                run.slots, begin, end};
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
        const bool direct = partials_.is_direct(stacked);
        const int64_t ticks = direct ? 4 * head_dim_ * rows / kPositions : tiles * (kPositions * 3 / 4);
        ahead_.pace(begin, rows, lead, heads * ticks);
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
        for (int64_t i = 0; i < count; ++i) rows_[i].state = states_ + i * plan_.partial_floats();
        const int64_t each = count / heads;
        for (int64_t block = item.first_block; block < item.end_block; ++block) {
            int64_t begin = 0, end = each;
            while (begin < end && !sight_.sees(rows_[begin].position, block)) ++begin;
            while (end > begin && !sight_.sees(rows_[end - 1].position, block)) --end;
            look_ahead(item, block, each);
            if (begin == end) continue;
            for (int64_t h = 0; h < heads; ++h)
                partials_.compute(run, item.first_head + h, block, rows_ + h * each + begin, end - begin,
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
                        if (!sight_.sees(position, block)) continue;
                        lowest = std::min(lowest, position);
                        highest = std::max(highest, position);
                        const int64_t begin = count;
                        count = stack(run, r, head, count);
                        for (int64_t g = 0; g < plan_.group; ++g)
                            rows_[begin + g].state = state + g * plan_.partial_floats();
                    }
                }
                if (count > 0)
                    partials_.compute(plan_.runs[members[0]], head, block, rows_, count, lowest, highest, false);
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
            const int64_t position = run.position + r, first = sight_.low_of(position) / kKvBlock;
            const int64_t at = (run.row + r) * args_.shape.num_heads + head * plan_.group;
            for (int64_t g = 0; g < plan_.group; ++g) {
                float* state = plan_.partial(run, head, first, r * plan_.group + g);
                const int64_t stride = run.rows * plan_.group * plan_.partial_floats();  // from block to block
                join_all(state, stride, position / kKvBlock - first, head_dim_);
                write_out(state, args_.out + (at + g) * head_dim_, head_dim_);
            }
        }
    }

    const AttentionArgs& args_;
    const AttentionPlan& plan_;
    const Sight sight_;
    const int head_dim_;
    Stretch now_;  // of the item in hand
    Ahead ahead_;
    Partials partials_;
    float* states_;
    Row* rows_;
};

}  // namespace

void attention(const Lane& lane, const AttentionArgs& args) {
    const AttentionPlan& plan = *args.plan;
    const int64_t count = int64_t(plan.batches.size()) - 1;
    Scratch scratch{lane.scratch};
    Worker worker(args, scratch);
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
