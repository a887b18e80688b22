// A program's ops, checked one by one as they are recorded.
#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace stolon {

namespace {

using std::to_string;

[[noreturn]] void fail(const std::string& op, const std::string& text) { throw std::invalid_argument(op + ": " + text); }

int64_t total_columns(const std::vector<Weight>& weights) {
    int64_t total = 0;
    for (const Weight& w : weights) total += w.columns;
    return total;
}

int64_t narrower(int64_t limit, int64_t other) { return limit < 0 ? other : std::min(limit, other); }

}  // namespace

void Program::recording(const char* op) const {
    if (finished_) throw std::logic_error(std::string(op) + ": the program is finished");
}

int Program::new_buffer(int64_t width, bool by_output) {
    buffers_.push_back({width, by_output});
    return int(buffers_.size()) - 1;
}

const Buffer& Program::checked(const char* op, const char* argument, int buffer) const {
    if (buffer < 0 || size_t(buffer) >= buffers_.size()) {
        fail(op, std::string(argument) + " is " + to_string(buffer) + ": there is no such buffer");
    }
    return buffers_[size_t(buffer)];
}

void Program::check_weights(const char* op, const char* argument, const std::vector<Weight>& weights,
                            int64_t inputs) const {
    if (weights.empty()) fail(op, std::string(argument) + " is empty");
    for (size_t i = 0; i < weights.size(); ++i) {
        if (weights[i].k != inputs) {
            fail(op, std::string(argument) + "[" + to_string(i) + "] has " + to_string(weights[i].k) +
                         " inputs, x has width " + to_string(inputs));
        }
    }
}

int Program::record(Op op, int64_t width, bool by_output) {
    op.out = new_buffer(width, by_output);
    ops_.push_back(std::move(op));
    return ops_.back().out;
}

int Program::input(int64_t width) {
    recording("input");
    if (width < 1) fail("input", "width is " + to_string(width) + ", less than 1");
    checked_product(width, 4);
    Op op{};
    op.kind = OpKind::Input;
    op.name = "input";
    op.array = int(inputs_.size());
    const int buffer = record(std::move(op), width, false);
    inputs_.push_back(buffer);
    return buffer;
}

int Program::embed(const Weight& table, float scale) {
    recording("embed");
    Op op{};
    op.kind = OpKind::Embed;
    op.name = "embed";
    op.weights = {table};
    op.scale = scale;
    limits_.vocabulary = narrower(limits_.vocabulary, table.columns);
    return record(std::move(op), table.k, false);
}

int Program::norm(int x, const float* weight, int64_t weight_size, float eps, int add) {
    recording("norm");
    const Buffer in = checked("norm", "x", x);
    if (weight_size != in.width) {
        fail("norm", "weight has " + to_string(weight_size) + " elements, x has width " + to_string(in.width));
    }
    if (!(eps >= 0.0f)) fail("norm", "eps is negative or not a number");
    if (add != -1) {
        const Buffer other = checked("norm", "add", add);
        if (other.width != in.width || other.by_output != in.by_output) fail("norm", "add has not the shape of x");
    }
    Op op{};
    op.kind = OpKind::Norm;
    op.name = "norm";
    op.x = x;
    op.y = add;
    op.factor = weight;
    op.eps = eps;
    return record(std::move(op), in.width, in.by_output);
}

int Program::linear(int x, std::vector<Weight> weights, const float* bias, int64_t bias_size, int residual) {
    recording("linear");
    const Buffer in = checked("linear", "x", x);
    check_weights("linear", "weights", weights, in.width);
    const int64_t columns = total_columns(weights);
    if (bias && bias_size != columns) {
        fail("linear", "bias has " + to_string(bias_size) + " elements, the weights have " + to_string(columns) + " columns");
    }
    if (residual != -1) {
        const Buffer other = checked("linear", "residual", residual);
        if (other.width != columns || other.by_output != in.by_output) {
            fail("linear", "residual has not the shape of the result");
        }
    }
    Op op{};
    op.kind = OpKind::Linear;
    op.name = "linear";
    op.x = x;
    op.y = residual;
    op.weights = std::move(weights);
    op.bias = bias;
    op.counter = int(counters_++);
    return record(std::move(op), columns, in.by_output);
}

int Program::gated(int x, std::vector<Weight> gate, std::vector<Weight> up, Gate activation) {
    recording("gated");
    const Buffer in = checked("gated", "x", x);
    check_weights("gated", "gate", gate, in.width);
    check_weights("gated", "up", up, in.width);
    if (gate.size() != up.size()) fail("gated", "gate and up have not the same number of matrices");
    for (size_t i = 0; i < gate.size(); ++i) {
        if (gate[i].columns != up[i].columns) {
            fail("gated", "up[" + to_string(i) + "] has " + to_string(up[i].columns) + " columns, gate has " +
                              to_string(gate[i].columns));
        }
    }
    const int64_t columns = total_columns(gate);
    Op op{};
    op.kind = OpKind::Linear;
    op.name = "gated";
    op.x = x;
    op.weights = std::move(gate);
    op.up = std::move(up);
    op.gate = activation;
    op.counter = int(counters_++);
    return record(std::move(op), columns, in.by_output);
}

int Program::add(int x, int y) {
    recording("add");
    const Buffer in = checked("add", "x", x);
    const Buffer other = checked("add", "y", y);
    if (other.width != in.width || other.by_output != in.by_output) fail("add", "y has not the shape of x");
    Op op{};
    op.kind = OpKind::Add;
    op.name = "add";
    op.x = x;
    op.y = y;
    return record(std::move(op), in.width, in.by_output);
}

int Program::attend(int qkv, AttendOp attend, Rotary& rotary) {
    recording("attend");
    const Buffer in = checked("attend", "qkv", qkv);
    const HeadShape& shape = attend.shape;
    const int64_t heads = shape.num_heads, kv_heads = shape.num_kv_heads, dim = shape.head_dim;
    if (kv_heads < 1) fail("attend", "kv_heads is " + to_string(kv_heads) + ", less than 1");
    if (heads < 1 || heads % kv_heads) {
        fail("attend", "heads is " + to_string(heads) + ", not a positive multiple of kv_heads = " + to_string(kv_heads));
    }
    if (dim < 2 || dim % 2) fail("attend", "head_dim is " + to_string(dim) + ", not a positive even number");
    if (in.by_output) fail("attend", "qkv has a row for each output row, not for each row of the step");
    if (in.width != checked_product(heads + 2 * kv_heads, dim)) {
        fail("attend", "qkv has width " + to_string(in.width) + ", not (heads + 2 kv_heads) head_dim = " +
                           to_string((heads + 2 * kv_heads) * dim));
    }
    if (attend.window < 0) fail("attend", "window is negative");
    if (!(attend.softcap >= 0.0f)) fail("attend", "softcap is negative or not a number");
    if (attend.head_norm && !(attend.eps >= 0.0f)) fail("attend", "eps is negative or not a number");
    if (attend.slots < 1) fail("attend", "cache_k has no slots");
    if (rotary.frequencies() != dim / 2) {
        fail("attend", "rotary has " + to_string(rotary.frequencies()) + " frequencies, not head_dim / 2 = " + to_string(dim / 2));
    }
    attend.cos = rotary.cos();
    attend.sin = rotary.sin();
    if (std::find(rotaries_.begin(), rotaries_.end(), &rotary) == rotaries_.end()) rotaries_.push_back(&rotary);
    limits_.positions = narrower(limits_.positions, rotary.positions());
    limits_.slots = narrower(limits_.slots, attend.slots);
    const auto same = [&](const std::unique_ptr<Planned>& p) {
        return p->window == attend.window && p->shape.num_heads == shape.num_heads &&
               p->shape.num_kv_heads == shape.num_kv_heads && p->shape.head_dim == shape.head_dim;
    };
    const auto found = std::find_if(plans_.begin(), plans_.end(), same);
    attend.plan = int(found - plans_.begin());
    if (found == plans_.end()) {
        plans_.push_back(std::make_unique<Planned>());
        plans_.back()->shape = shape;
        plans_.back()->window = attend.window;
    }
    team_.reserve_scratch(attention_scratch_bytes(shape));
    Op op{};
    op.kind = OpKind::Attend;
    op.name = "attention";
    op.x = qkv;
    op.attend = attend;
    op.counter = int(counters_++);
    return record(std::move(op), heads * dim, false);
}

int Program::take_outputs(int x) {
    recording("take_outputs");
    const Buffer in = checked("take_outputs", "x", x);
    if (in.by_output) fail("take_outputs", "x has a row for each output row already");
    Op op{};
    op.kind = OpKind::Take;
    op.name = "take_outputs";
    op.x = x;
    op.gather = true;
    return record(std::move(op), in.width, true);
}

int Program::logits(int x, std::vector<Weight> head, float softcap) {
    recording("logits");
    const Buffer in = checked("logits", "x", x);
    check_weights("logits", "head", head, in.width);
    if (!(softcap >= 0.0f)) fail("logits", "softcap is negative or not a number");
    const int64_t columns = total_columns(head);
    Op op{};
    op.kind = OpKind::Linear;
    op.name = "logits";
    op.x = x;
    op.weights = std::move(head);
    op.softcap = softcap;
    op.counter = int(counters_++);
    if (in.by_output && op.weights.size() == 1) {
        op.short_counter = int(counters_++);
        limits_.columns = narrower(limits_.columns, columns);
    }
    return record(std::move(op), columns, in.by_output);
}

void Program::output(int x) {
    recording("output");
    checked("output", "x", x);
    handed_out_.push_back(x);
}

// A norm can read its rows through the list of output rows: where norms are all that uses taken rows,
// nothing is copied.
void Program::fold_takes() {
    std::vector<Op> kept;
    for (size_t i = 0; i < ops_.size(); ++i) {
        const int taken = ops_[i].out;
        bool foldable = ops_[i].kind == OpKind::Take;
        foldable = foldable && std::count(handed_out_.begin(), handed_out_.end(), taken) == 0;
        for (const Op& op : ops_) {
            if (op.y == taken || (op.x == taken && op.kind != OpKind::Norm)) foldable = false;
        }
        if (!foldable) {
            kept.push_back(ops_[i]);
            continue;
        }
        for (Op& op : ops_) {
            if (op.x != taken) continue;
            op.x = ops_[i].x;
            op.gather = true;
        }
    }
    ops_ = std::move(kept);
}

void Program::finish() {
    recording("finish");
    fold_takes();
    // What each product reads last is followed in memory by what the next one reads first; the next step
    // begins where this one did.
    std::span<const Weight> upcoming;
    for (int round = 0; round < 2; ++round) {
        for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
            if (op->kind != OpKind::Linear) continue;
            op->upcoming = upcoming;
            upcoming = op->weights;
        }
    }
    size_t scratch = kTableScratch;
    for (const Op& op : ops_)
        for (const Weight& w : op.weights) scratch = std::max(scratch, linear_scratch_bytes(w.k));
    team_.reserve_scratch(scratch);
    read_ahead_ = std::make_unique<ReadAhead>(ops_, team_.size());
    counter_ = std::make_unique<PaddedCounter[]>(size_t(counters_) + ops_.size() + 1);
    finished_ = true;
}

}  // namespace stolon
