#include "program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "program_frame.h"

namespace stolon {

namespace {

using Clock = std::chrono::steady_clock;

std::string size_text(const Op& op, int64_t inputs) {
    int64_t columns = 0;
    for (const Weight& w : op.weights) columns += w.columns;
    return op.name + " " + std::to_string(inputs) + ">" + std::to_string(columns);
}

}  // namespace

// A run of stages, block by block of rows, as lanes claim them. Returns the seconds that this lane spent in
// each stage, if they are wanted.
std::vector<double> Program::run_blocks(const Lane& lane, const Frame& frame, std::span<const Stage> run,
                                        Counter& counter) const {
    std::vector<double> seconds(frame.profile ? run.size() : 0);
    const int64_t rows = frame.step->rows, lanes = lane.count;
    const int64_t blocks = (rows + kBlockRows * lanes - 1) / (kBlockRows * lanes) * lanes;
    for (int64_t block; (block = Lane::claim(counter)) < blocks;) {
        for (size_t i = 0; i < run.size(); ++i) {
            const Clock::time_point before = seconds.empty() ? Clock::time_point() : Clock::now();
            do_stage(lane, frame, run[i], rows * block / blocks, rows * (block + 1) / blocks);
            if (!seconds.empty()) seconds[i] += std::chrono::duration<double>(Clock::now() - before).count();
        }
    }
    return seconds;
}

void Program::execute(const Lane& lane, const Frame& frame) const {
    const std::vector<Stage>& stages = frame.schedule->stages;
    int64_t runs = 0;
    for (size_t i = 0; i < stages.size();) {
        if (stages[i].barrier) lane.barrier();
        const Clock::time_point before = frame.profile ? Clock::now() : Clock::time_point();
        size_t end = i + 1;
        std::vector<double> seconds;
        if (stages[i].split == Split::Blocks) {
            while (end < stages.size() && stages[end].split == Split::Blocks) ++end;
            seconds = run_blocks(lane, frame, {&stages[i], end - i}, counter_[size_t(counters_ + runs++)].value);
        } else {
            do_stage(lane, frame, stages[i], 0, stages[i].by_output ? frame.step->outputs : frame.step->rows);
        }
        if (frame.profile) {
            lane.barrier();
            // A stage that all lanes did together lasts until the last is done; for others, this lane's part.
            if (seconds.empty()) seconds = {std::chrono::duration<double>(Clock::now() - before).count()};
            for (size_t j = i; lane.index == 0 && j < end; ++j) {
                std::string name = kStageNames[int(stages[j].kind)];
                if (stages[j].kind == StageKind::Linear) name = size_text(ops_[size_t(stages[j].op)], stages[j].width);
                frame.profile->emplace_back(std::move(name), seconds[j - i]);
            }
        }
        i = end;
    }
}

const Schedule& Program::schedule(int64_t rows, int64_t outputs) {
    const int lanes = team_.size();
    const bool many = rows >= kBlockRows * lanes && rows >= many_rows(ops_, kernels_.together_rows <= kBlockRows, lanes);
    const std::pair key{many ? kManyRows : std::min(rows, kFewRows + 1), std::min(outputs, kFewRows + 1)};
    const auto found = schedules_.find(key);
    if (found != schedules_.end()) return found->second;
    return schedules_.emplace(key, make_schedule(kernels_, ops_, buffers_, handed_out_, key.first, key.second, lanes))
        .first->second;
}

// Memory grows to what a step needs. What a large step took is given back after many small ones.
void Program::reserve(int64_t shared, int64_t own) {
    constexpr int64_t kKeep = int64_t(1) << 20, kPatience = 16, kGrain = int64_t(64) << 10;
    const int64_t held = shared_.bytes() + own_.bytes();
    small_steps_ = held > kKeep && shared + own < held / 4 ? small_steps_ + 1 : 0;
    if (small_steps_ == kPatience) {
        shared_ = Memory();
        own_ = Memory();
        small_steps_ = 0;
    }
    for (auto [memory, bytes] : {std::pair{&shared_, shared}, std::pair{&own_, own}}) {
        if (memory->bytes() >= bytes) continue;
        *memory = Memory();  // the old one's pages before the new one's
        *memory = Memory(round_up(bytes, kGrain));
    }
}

void Program::run(const StepView& step, std::span<const float* const> inputs, std::span<float* const> outputs,
                  Profile* profile) {
    if (!finished_) throw std::logic_error("run: the program is not finished");
    const auto turn = team_.hold();
    step_.take(step, limits_);
    const StepView& view = step_.view();
    if (view.rows == 0) return;
    if (!rotaries_.empty()) {
        const int64_t last = *std::max_element(view.positions, view.positions + view.rows);
        for (Rotary* rotary : rotaries_) rotary->reach(last + 1);
    }
    const Schedule& made = schedule(view.rows, view.outputs);

    const int64_t own_rows = made.blocks ? kBlockRows : view.rows;
    const int64_t rows[4] = {view.rows, view.outputs, own_rows, view.outputs};
    int64_t bytes[4];
    for (int space = 0; space < 4; ++space) bytes[space] = checked_product(made.row_bytes[space], rows[space]);
    // Lanes don't share a page of their own memory.
    const int64_t own_bytes = round_up(bytes[2] + bytes[3], 4096);
    reserve(bytes[0] + bytes[1], checked_product(own_bytes, team_.size()));

    for (int64_t i = 0; i < counters_ + int64_t(ops_.size()); ++i) counter_[size_t(i)].value.store(0, std::memory_order_relaxed);
    const StepRuns runs{view.runs, view.q_lens, view.kv_lens, view.table_rows, view.slot_table, view.table_width};
    for (const auto& planned : plans_) planned->plan.build(runs, planned->shape, planned->window, team_.size());

    std::vector<const AttentionPlan*> plans;
    for (const auto& planned : plans_) plans.push_back(&planned->plan);
    read_ahead_->begin(plans);

    const Frame frame{&made,  &view,   {shared_.get(), shared_.get() + bytes[0]}, own_.get(), own_bytes, bytes[2], own_rows,
                      inputs, outputs, profile};
    try {
        team_.run([this, &frame](const Lane& lane) { execute(lane, frame); });
    } catch (...) {
        // A kernel that was left in the middle leaves a plan's counters where they were.
        for (const auto& planned : plans_) planned->plan = AttentionPlan();
        throw;
    }
}

}  // namespace stolon
