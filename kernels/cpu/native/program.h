// The list of kernel calls of one model step: recorded once, then run with the arrays of each step.
//
// Nothing here knows Python. Arguments that are wrong throw std::invalid_argument whose text names the op
// and the argument.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention_plan.h"
#include "kernels.h"
#include "memory.h"
#include "read_ahead.h"
#include "rotary.h"
#include "schedule.h"
#include "step.h"
#include "team.h"

namespace stolon {

class Program {
   public:
    Program(Team& team, const Kernels& kernels) : team_(team), kernels_(kernels) {}

    // Recording. A buffer is a virtual float32 [rows, width], named by its number.
    int input(int64_t width);
    int embed(const Weight& table, float scale);
    int norm(int x, const float* weight, int64_t weight_size, float eps, int add);
    int linear(int x, std::vector<Weight> weights, const float* bias, int64_t bias_size, int residual);
    int gated(int x, std::vector<Weight> gate, std::vector<Weight> up, Gate activation);
    int add(int x, int y);
    // The tables outlive the program. attend.plan, cos and sin are filled in here.
    int attend(int qkv, AttendOp attend, Rotary& rotary);
    int take_outputs(int x);
    int logits(int x, std::vector<Weight> head, float softcap);
    void output(int x);
    void finish();

    const std::vector<int>& handed_out() const { return handed_out_; }
    const std::vector<int>& inputs() const { return inputs_; }
    const Buffer& buffer(int number) const { return buffers_[size_t(number)]; }
    bool finished() const { return finished_; }

    using Profile = std::vector<std::pair<std::string, double>>;

    // One step. `inputs` and `outputs` are contiguous [rows, width], in the order of recording; with a
    // profile, lanes wait for each other after each stage and its seconds are noted. Two callers take turns.
    void run(const StepView& step, std::span<const float* const> inputs, std::span<float* const> outputs,
             Profile* profile = nullptr);

   private:
    struct alignas(64) PaddedCounter {
        Counter value{0};
    };
    struct Frame;  // what the lanes of one step share

    int new_buffer(int64_t width, bool by_output);
    const Buffer& checked(const char* op, const char* argument, int buffer) const;
    void check_weights(const char* op, const char* argument, const std::vector<Weight>& weights, int64_t inputs) const;
    int record(Op op, int64_t width, bool by_output);
    void recording(const char* op) const;
    void fold_takes();
    const Schedule& schedule(int64_t rows, int64_t outputs);
    void reserve(int64_t shared, int64_t own);
    void execute(const Lane& lane, const Frame& frame) const;
    std::vector<double> run_blocks(const Lane& lane, const Frame& frame, std::span<const Stage> run, Counter& counter) const;
    void do_stage(const Lane& lane, const Frame& frame, const Stage& stage, int64_t begin, int64_t end) const;

    Team& team_;
    const Kernels& kernels_;
    bool finished_ = false;
    std::vector<Op> ops_;
    std::vector<Buffer> buffers_;
    std::vector<int> inputs_, handed_out_;
    std::vector<Rotary*> rotaries_;
    StepLimits limits_;
    int64_t counters_ = 0;  // of ops; those of runs of blocks follow, at most one an op

    std::map<std::pair<int64_t, int64_t>, Schedule> schedules_;
    std::unique_ptr<PaddedCounter[]> counter_;
    struct Planned {
        HeadShape shape;
        int64_t window;
        AttentionPlan plan;
    };
    std::vector<std::unique_ptr<Planned>> plans_;
    std::unique_ptr<ReadAhead> read_ahead_;
    CheckedStep step_;
    Memory shared_, own_;
    int64_t small_steps_ = 0;  // in a row that used little of the memory
};

}  // namespace stolon
