#include "program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

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

std::string size_text(const Op& op, int64_t inputs) {
    return op.name + " " + to_string(inputs) + ">" + to_string(total_columns(op.weights));
}

}  // namespace

// ---------------------------------------------------------------------------------------------------
// Recording

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
    const Weight* upcoming = nullptr;
    for (int round = 0; round < 2; ++round) {
        for (auto op = ops_.rbegin(); op != ops_.rend(); ++op) {
            if (op->kind != OpKind::Linear) continue;
            op->upcoming = upcoming;
            upcoming = op->weights.data();
        }
    }
    counter_ = std::make_unique<PaddedCounter[]>(size_t(counters_) + ops_.size() + 1);
    finished_ = true;
}

// ---------------------------------------------------------------------------------------------------
// Running

struct Program::Frame {
    const Schedule* schedule;
    const StepView* step;
    std::byte* base[2];    // of the shared spaces
    std::byte* own;        // of lane 0
    int64_t own_bytes;     // of a lane
    int64_t own_out_at;    // of the rows by output in them
    int64_t own_rows;      // that the others hold
    std::span<const float* const> inputs;
    std::span<float* const> outputs;
    Profile* profile;
};

namespace {

using Clock = std::chrono::steady_clock;

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

// Pointers of one lane to the regions of a step.
struct Places {
    const Schedule& schedule;
    std::byte* base[4];
    int64_t rows[4];  // that the four spaces have room for
    int64_t first;    // row of the step that own regions begin with
    std::span<const float* const> inputs;
    std::span<float* const> outputs;

    std::byte* bytes(int region) const {
        const Region& r = schedule.regions[size_t(region)];
        return base[int(r.space)] + r.at * rows[int(r.space)];
    }
    int64_t room(int region) const { return rows[int(schedule.regions[size_t(region)].space)]; }
    // Place of a row of the step in a region.
    int64_t place(int region, int64_t row) const {
        return schedule.regions[size_t(region)].space == Space::OwnRows ? row - first : row;
    }
    float* row(int region, int64_t row, int64_t width) const {
        return region < 0 ? nullptr : floats(region) + place(region, row) * width;
    }
    float* floats(int region) const {
        if (region < 0) return nullptr;
        const Region& r = schedule.regions[size_t(region)];
        if (r.space == Space::Input) return const_cast<float*>(inputs[size_t(r.at)]);
        if (r.space == Space::Output) return outputs[size_t(r.at)];
        return reinterpret_cast<float*>(bytes(region));
    }
};

Activations activations(const Places& places, const Stage& stage, Range range) {
    Activations a{};
    const int64_t k = stage.width;
    a.rows = range.size();
    a.k = k;
    a.f32 = places.row(stage.x, range.begin, k);
    a.f32_stride = k;
    if (stage.half >= 0) {
        const int64_t from = places.place(stage.half, range.begin);
        a.half_stride = round_up(k, 32);
        a.half = reinterpret_cast<bf16*>(places.bytes(stage.half)) + from * a.half_stride;
    }
    if (stage.q8 >= 0) {
        const Q8Layout layout(k);
        layout.place(a, places.bytes(stage.q8) + places.place(stage.q8, range.begin) * layout.bytes);
    }
    return a;
}

// The output rows of the short lists: tile by tile what is wanted, through the kernel that computes whole
// rows, so that the bits are the same. `args` are those of the whole rows.
void short_rows(const Kernels& kernels, const Lane& alone, const Places& places, const Stage& stage, LinearArgs args,
                const std::vector<RowTile>& tiles, Counter& counter) {
    const Weight& whole = args.weights[0];
    const auto part = [&](int64_t index) { return whole.from_tile(tiles[size_t(index)].tile, kTile); };
    const int64_t count = int64_t(tiles.size());
    int64_t index = Lane::claim(counter);
    while (index < count) {
        const int64_t next = Lane::claim(counter);
        const Weight weight = part(index), following = part(std::min(next, count - 1));
        const RowTile& at = tiles[size_t(index)];
        const Activations x = activations(places, stage, {at.row, at.row + at.rows});
        Counter only{0};
        args.x = &x;
        args.weights = &weight;
        args.upcoming = &following;
        args.out = places.row(stage.out, at.row, args.out_stride) + at.tile * kTile;
        args.counter = &only;
        kernels.linear(alone, args);
        index = next;
    }
}

}  // namespace

static_assert(int(Space::Rows) % 2 == 0 && int(Space::OutRows) % 2 == 1 && int(Space::OwnRows) % 2 == 0 &&
              int(Space::OwnOutRows) % 2 == 1);

void Program::do_stage(const Lane& lane, const Frame& frame, const Stage& stage, int64_t begin, int64_t end) const {
    const StepView& step = *frame.step;
    std::byte* own = frame.own + frame.own_bytes * lane.index;
    const Places places{*frame.schedule,
                        {frame.base[0], frame.base[1], own, own + frame.own_out_at},
                        {step.rows, step.outputs, frame.own_rows, step.outputs},
                        frame.schedule->blocks ? begin : 0,
                        frame.inputs,
                        frame.outputs};
    // For kernels whose rows are divided here, one lane is all there is.
    const Lane alone{0, 1, lane.team, lane.scratch, lane.scratch_bytes};
    Range range{begin, end};
    if (stage.split == Split::Rows) range = {end * lane.index / lane.count, end * (lane.index + 1) / lane.count};
    if (range.size() == 0) return;

    static const Op none{};
    const Op& op = stage.op >= 0 ? ops_[size_t(stage.op)] : none;
    switch (stage.kind) {
        case StageKind::Embed: {
            const Weight& table = op.weights[0];
            kernels_.embed(alone, {&table, step.input_ids + range.begin, range.size(), op.scale,
                                   places.row(stage.out, range.begin, table.k)});
            break;
        }
        case StageKind::Norm: {
            const int64_t width = stage.width;
            kernels_.norm(alone, {op.gather ? places.floats(stage.x) : places.row(stage.x, range.begin, width), width,
                                  op.gather ? step.output_rows + range.begin : nullptr, range.size(), width, op.factor,
                                  op.eps, places.row(stage.y, range.begin, width),
                                  places.row(stage.out, range.begin, width), width});
            break;
        }
        case StageKind::Take: {
            const float* x = places.floats(stage.x);
            float* out = places.floats(stage.out);
            for (int64_t row = range.begin; row < range.end; ++row) {
                std::memcpy(out + row * stage.width, x + step.output_rows[row] * stage.width, size_t(stage.width) * 4);
            }
            break;
        }
        case StageKind::Copy: {
            const int64_t from = range.begin * stage.width;
            std::memcpy(places.floats(stage.out) + from, places.floats(stage.x) + from,
                        size_t(range.size() * stage.width) * 4);
            break;
        }
        case StageKind::Add: {
            kernels_.add(alone, {places.row(stage.x, range.begin, stage.width), places.row(stage.y, range.begin, stage.width),
                                 places.row(stage.out, range.begin, stage.width), range.size() * stage.width});
            break;
        }
        case StageKind::Prepare: {
            Activations a = activations(places, stage, range);
            kernels_.prepare(alone, {&a, stage.type});
            break;
        }
        case StageKind::Linear: {
            Activations whole = activations(places, stage, range);
            LinearArgs args{};
            args.x = &whole;
            args.weights = op.weights.data();
            args.weight_count = int64_t(op.weights.size());
            args.up = op.up.data();
            args.gate = op.gate;
            args.bias = op.bias;
            args.out_stride = buffers_[size_t(op.out)].width;
            args.residual = places.row(stage.y, range.begin, args.out_stride);
            args.out = places.row(stage.out, range.begin, args.out_stride);
            args.softcap = op.softcap;
            args.upcoming = op.upcoming;
            if (stage.split == Split::Blocks) {
                Counter counter{0};
                args.counter = &counter;
                kernels_.linear(alone, args);
                break;
            }
            args.counter = &counter_[size_t(op.counter)].value;
            if (op.short_counter >= 0 && step.lists) {
                short_rows(kernels_, alone, places, stage, args, step_.tiles(), counter_[size_t(op.short_counter)].value);
                whole.rows -= step.lists;
                if (!whole.rows) break;
            }
            kernels_.linear(lane, args);
            break;
        }
        case StageKind::Rotate: {
            const AttendOp& at = op.attend;
            bf16* queries = reinterpret_cast<bf16*>(places.bytes(stage.queries));
            queries += places.place(stage.queries, begin) * at.shape.num_heads * at.shape.head_dim;
            kernels_.rotate(stage.split == Split::Blocks ? alone : lane,
                            {at.shape, range.size(), places.row(stage.x, begin, stage.width), at.head_norm, at.eps, at.cos,
                             at.sin, step.positions + begin, step.write_slots + begin, at.scale, queries, at.k, at.v});
            break;
        }
        case StageKind::Attention: {
            const AttendOp& at = op.attend;
            kernels_.attention(lane, {at.shape, &plans_[size_t(at.plan)]->plan,
                                      reinterpret_cast<const bf16*>(places.bytes(stage.queries)), at.k, at.v,
                                      at.softcap, places.floats(stage.out), &counter_[size_t(op.counter)].value});
            break;
        }
    }
}

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
    const bool many = rows >= kBlockRows * team_.size();
    const std::pair key{many ? kManyRows : std::min(rows, kFewRows + 1), std::min(outputs, kFewRows + 1)};
    const auto found = schedules_.find(key);
    if (found != schedules_.end()) return found->second;
    return schedules_.emplace(key, make_schedule(ops_, buffers_, handed_out_, key.first, key.second, team_.size()))
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
