// The module `stolon.kernels.cpu._native`; described by _native.pyi.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <optional>

#include "binding.h"
#include "pack.h"
#include "program.h"

using namespace nanobind::literals;

namespace stolon {

namespace {

constexpr size_t kScratch = size_t(1) << 20;  // a lane's; pages that nobody touches cost nothing

constexpr const char* kKinds[] = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char* name : {"avx512", "avx2", "portable"}) {
        if (choose_kernels(name)) names.emplace_back(name);
    }
    return names;
}

void make_team(TeamObject* self, int threads, const std::string& isa) {
    const Kernels* kernels = choose_kernels(isa.c_str());
    if (!kernels) {
        std::string known;
        for (const std::string& name : instruction_sets()) known += (known.empty() ? "" : ", ") + name;
        wrong("Team", "isa is '" + isa + "'; this processor has " + known);
    }
    new (self) TeamObject{Team(threads, kScratch), kernels, Arena()};
}

std::unique_ptr<Matrix> pack(TeamObject& team, const std::string& kind, nb::handle data, int64_t columns, int64_t inputs) {
    int type = -1;
    for (int i = 0; i < int(std::size(kKinds)); ++i) {
        if (kind == kKinds[i]) type = i;
    }
    if (type < 0) wrong("pack", "kind is '" + kind + "', which is not known");
    const Array stored = take_array("pack", "data", data, Element::U8, 1);
    // No type has more than two numbers a byte: behind this nothing overflows.
    if (columns < 1 || inputs < 1 || checked_product(columns, inputs) > 2 * stored.size) {
        wrong("pack", "columns is " + std::to_string(columns) + " and inputs " + std::to_string(inputs) + ", data has " +
                          std::to_string(stored.size) + " bytes");
    }
    const WeightType weight_type = WeightType(type);
    const int64_t want = stored_bytes(weight_type, columns, inputs);
    if (want < 0) wrong("pack", "inputs is " + std::to_string(inputs) + ", not a multiple of the block of " + kind);
    if (want != stored.size) {
        wrong("pack", "data has " + std::to_string(stored.size) + " bytes, [" + std::to_string(columns) + ", " +
                          std::to_string(inputs) + "] in " + kind + " takes " + std::to_string(want));
    }
    nb::gil_scoped_release release;
    const PackedShape shape = packed_shape(weight_type, columns, inputs);
    auto matrix = std::make_unique<Matrix>();
    {
        const auto turn = team.team.hold();
        matrix->memory = team.weights.take(shape.bytes());
    }
    matrix->bytes = shape.bytes();
    matrix->weight = packed_weight(weight_type, columns, inputs, matrix->memory.get());
    Counter counter{0};
    team.team.run([&](const Lane&) {
        pack_tiles(weight_type, stored.as<const std::byte>(), columns, inputs, matrix->memory.get(), counter);
    });
    return matrix;
}

nb::object column(const Matrix& matrix, int64_t n) {
    if (n < 0 || n >= matrix.weight.columns) {
        wrong("column", "n is " + std::to_string(n) + ", outside [0, " + std::to_string(matrix.weight.columns) + ")");
    }
    float* out;
    nb::object array = new_floats({size_t(matrix.weight.k)}, &out);
    unpack_column(matrix.weight, n, out);
    return array;
}

// Gigabytes a second that all lanes together read, one after the other, from memory of their own: the best
// of `repeats`.
double bandwidth(TeamObject& team, int64_t bytes, int repeats) {
    if (bytes < 4096) wrong("bandwidth", "bytes is less than 4096");
    if (repeats < 1) wrong("bandwidth", "repeats is less than 1");
    nb::gil_scoped_release release;
    const int64_t each = round_up(bytes / team.team.size(), 256);
    const Memory memory(checked_product(each, team.team.size()));
    team.team.run([&](const Lane& lane) { std::memset(memory.get() + each * lane.index, lane.index, size_t(each)); });
    std::atomic<uint64_t> total{0};
    double best = 0.0;
    for (int i = 0; i < repeats; ++i) {
        const auto start = std::chrono::steady_clock::now();
        team.team.run([&](const Lane& lane) {
            const auto* words = reinterpret_cast<const uint64_t*>(memory.get() + each * lane.index);
            uint64_t sums[32] = {};
            for (int64_t at = 0; at < each / 8; at += 32) {
                for (int j = 0; j < 32; ++j) sums[j] += words[at + j];
            }
            uint64_t sum = 0;
            for (const uint64_t s : sums) sum += s;
            total.fetch_add(sum, std::memory_order_relaxed);
        });
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::max(best, double(memory.bytes()) / seconds.count() * 1e-9);
    }
    return best;
}

// ---------------------------------------------------------------------------------------------------

// The arrays of a step, as long as its owner ever needs them, and how much of them is in use.
class Step {
   public:
    Step(nb::handle input_ids, nb::handle positions, nb::handle write_slots, nb::handle q_lens, nb::handle kv_lens,
         nb::handle slot_table, nb::handle table_rows, nb::handle output_rows, nb::sequence short_lists) {
        rows_ = take(input_ids, "input_ids", view_.input_ids);
        same(take(positions, "positions", view_.positions), rows_, "positions", "input_ids");
        same(take(write_slots, "write_slots", view_.write_slots), rows_, "write_slots", "input_ids");
        runs_ = take(q_lens, "q_lens", view_.q_lens);
        same(take(kv_lens, "kv_lens", view_.kv_lens), runs_, "kv_lens", "q_lens");
        same(take(table_rows, "table_rows", view_.table_rows), runs_, "table_rows", "q_lens");
        outputs_ = take(output_rows, "output_rows", view_.output_rows);
        const Array table = take_array("Step", "slot_table", slot_table, Element::I64, 2);
        view_.slot_table = table.as<int64_t>();
        view_.table_height = table.shape[0];
        view_.table_width = table.shape[1];
        held_.push_back(table);
        for (nb::handle list : short_lists) {
            const Array ids = take_array("Step", "short_lists", list, Element::I64, 1);
            lists_.push_back({ids.as<int64_t>(), ids.size});
            held_.push_back(ids);
        }
        view_.lists = int64_t(lists_.size());
        view_.short_lists = lists_.data();
        resize(rows_, runs_, outputs_);
    }

    void resize(int64_t rows, int64_t runs, int64_t outputs) {
        within("rows", rows, rows_);
        within("runs", runs, runs_);
        within("outputs", outputs, outputs_);
        view_.rows = rows;
        view_.runs = runs;
        view_.outputs = outputs;
    }

    const StepView& view() const { return view_; }

   private:
    int64_t take(nb::handle value, const char* name, const int64_t*& data) {
        held_.push_back(take_array("Step", name, value, Element::I64, 1));
        data = held_.back().as<int64_t>();
        return held_.back().size;
    }
    static void same(int64_t size, int64_t want, const char* name, const char* other) {
        if (size == want) return;
        wrong("Step", std::string(name) + " has " + std::to_string(size) + " elements, " + other + " has " + std::to_string(want));
    }
    static void within(const char* name, int64_t n, int64_t most) {
        if (n >= 0 && n <= most) return;
        wrong("Step.resize", std::string(name) + " is " + std::to_string(n) + ", outside [0, " + std::to_string(most) + "]");
    }

    std::vector<Array> held_;
    std::vector<IdList> lists_;
    StepView view_;
    int64_t rows_ = 0, runs_ = 0, outputs_ = 0;
};

// A program with what it refers to.
class ProgramObject {
   public:
    explicit ProgramObject(nb::object team)
        : team_(std::move(team)), program_(nb::cast<TeamObject&>(team_).team, *nb::cast<TeamObject&>(team_).kernels) {}

    int input(int64_t width) { return program_.input(width); }

    int embed(nb::handle table, float scale) { return program_.embed(matrix("embed", "table", table), scale); }

    int norm(int x, nb::handle weight, float eps, int add) {
        const Array factor = floats("norm", "weight", weight, 1);
        return program_.norm(x, factor.as<float>(), factor.size, eps, add);
    }

    int linear(int x, nb::handle weights, nb::handle bias, int residual) {
        std::vector<Weight> list = matrices("linear", "weights", weights);
        if (bias.is_none()) return program_.linear(x, std::move(list), nullptr, 0, residual);
        const Array shift = floats("linear", "bias", bias, 1);
        return program_.linear(x, std::move(list), shift.as<float>(), shift.size, residual);
    }

    int gated(int x, nb::handle gate, nb::handle up, const std::string& activation) {
        Gate kind = Gate::None;
        if (activation == "silu") kind = Gate::Silu;
        if (activation == "gelu_tanh") kind = Gate::GeluTanh;
        if (kind == Gate::None) wrong("gated", "activation is '" + activation + "', neither silu nor gelu_tanh");
        std::vector<Weight> list = matrices("gated", "gate", gate);
        return program_.gated(x, std::move(list), matrices("gated", "up", up), kind);
    }

    int add(int x, int y) { return program_.add(x, y); }

    int attend(int qkv, int heads, int kv_heads, int head_dim, float scale, int64_t window, float softcap,
               nb::handle head_norm, float eps, nb::handle rotary, nb::handle cache_k, nb::handle cache_v) {
        AttendOp op{};
        op.shape = {heads, kv_heads, head_dim};
        op.scale = scale;
        op.window = window;
        op.softcap = softcap;
        op.eps = eps;
        const auto shaped = [](const char* name, const Array& array, std::vector<int64_t> want) {
            std::string text;
            for (size_t i = 0; i < want.size(); ++i) {
                if (want[i] < 0) want[i] = array.shape[i];
                text += (i ? ", " : "") + std::to_string(want[i]);
            }
            if (array.shape != want) wrong("attend", std::string(name) + " has not the shape [" + text + "]");
        };
        if (!head_norm.is_none()) {
            const Array factor = floats("attend", "head_norm", head_norm, 2);
            shaped("head_norm", factor, {int64_t(heads) + kv_heads, head_dim});
            op.head_norm = factor.as<float>();
        }
        if (!nb::isinstance<Rotary>(rotary)) throw nb::type_error("attend: rotary is not a Rotary");
        objects_.push_back(nb::borrow(rotary));
        const Array k = keep(take_array("attend", "cache_k", cache_k, Element::BF16, 3, true));
        const Array v = keep(take_array("attend", "cache_v", cache_v, Element::BF16, 3, true));
        shaped("cache_k", k, {-1, kv_heads, head_dim});
        shaped("cache_v", v, {k.shape[0], kv_heads, head_dim});
        op.k = k.as<bf16>();
        op.v = v.as<bf16>();
        op.slots = k.shape[0];
        return program_.attend(qkv, op, *nb::inst_ptr<Rotary>(rotary));
    }

    int take_outputs(int x) { return program_.take_outputs(x); }

    int logits(int x, nb::handle head, float softcap) {
        return program_.logits(x, matrices("logits", "head", head), softcap);
    }

    void output(int x) { program_.output(x); }

    void finish() { program_.finish(); }

    void run(const Step& step, nb::sequence inputs, nb::sequence outputs) { execute("run", step, inputs, outputs, nullptr); }

    Program::Profile profile(const Step& step, nb::sequence inputs, nb::sequence outputs) {
        Program::Profile profile;
        execute("profile", step, inputs, outputs, &profile);
        return profile;
    }

   private:
    void execute(const char* op, const Step& step, nb::sequence inputs, nb::sequence outputs, Program::Profile* profile) {
        const StepView& view = step.view();
        std::vector<Array> held;
        const std::vector<float*> in = rows_of(op, "inputs", inputs, program_.inputs(), view, false, held);
        const std::vector<float*> out = rows_of(op, "outputs", outputs, program_.handed_out(), view, true, held);
        nb::gil_scoped_release release;
        program_.run(view, std::span<const float* const>(in.data(), in.size()), std::span<float* const>(out.data(), out.size()), profile);
    }

    std::vector<float*> rows_of(const char* op, const char* name, nb::sequence arrays, const std::vector<int>& buffers,
                                const StepView& step, bool writable, std::vector<Array>& held) const {
        std::vector<float*> data;
        for (nb::handle value : arrays) {
            const size_t i = data.size();
            const std::string argument = std::string(name) + "[" + std::to_string(i) + "]";
            if (i == buffers.size()) break;
            const Buffer& buffer = program_.buffer(buffers[i]);
            held.push_back(take_array(op, argument, value, Element::F32, 2, writable));
            const int64_t rows = buffer.by_output ? step.outputs : step.rows;
            if (held.back().shape[0] != rows || held.back().shape[1] != buffer.width) {
                wrong(op, argument + " has not the shape [" + std::to_string(rows) + ", " + std::to_string(buffer.width) + "]");
            }
            data.push_back(held.back().as<float>());
        }
        if (nb::len(arrays) != buffers.size()) {
            wrong(op, std::string(name) + " has " + std::to_string(nb::len(arrays)) + " arrays, not " + std::to_string(buffers.size()));
        }
        return data;
    }

    Array keep(Array array) {
        arrays_.push_back(array);
        return array;
    }

    Array floats(const char* op, const char* name, nb::handle value, int dimensions) {
        return keep(take_array(op, name, value, Element::F32, dimensions));
    }

    const Weight& matrix(const char* op, const std::string& name, nb::handle value) {
        const Matrix* found;
        if (!nb::try_cast(value, found, false) || !found) {
            throw nb::type_error((std::string(op) + ": " + name + " is not a Matrix").c_str());
        }
        objects_.push_back(nb::borrow(value));
        return found->weight;
    }

    std::vector<Weight> matrices(const char* op, const char* name, nb::handle values) {
        if (!nb::isinstance<nb::sequence>(values)) {
            throw nb::type_error((std::string(op) + ": " + name + " is not a list of Matrix").c_str());
        }
        std::vector<Weight> list;
        for (nb::handle value : values) {
            list.push_back(matrix(op, std::string(name) + "[" + std::to_string(list.size()) + "]", value));
        }
        return list;
    }

    nb::object team_;
    std::vector<nb::object> objects_;
    std::vector<Array> arrays_;
    Program program_;
};

}  // namespace

}  // namespace stolon

NB_MODULE(_native, m) {
    using namespace stolon;
#if !defined(STOLON_LEAK_WARNINGS)
    nb::set_leak_warnings(false);
#endif
    m.doc() = "CPU kernels and the program that runs them";
    m.def("instruction_sets", &instruction_sets);

    nb::class_<TeamObject>(m, "Team")
        .def("__init__", &make_team, "threads"_a, "isa"_a = "")
        .def_prop_ro("threads", [](const TeamObject& t) { return t.team.size(); })
        .def_prop_ro("isa", [](const TeamObject& t) { return std::string(t.kernels->name); });

    nb::class_<Matrix>(m, "Matrix")
        .def_prop_ro("kind", [](const Matrix& w) { return std::string(kKinds[int(w.weight.type)]); })
        .def_prop_ro("columns", [](const Matrix& w) { return w.weight.columns; })
        .def_prop_ro("inputs", [](const Matrix& w) { return w.weight.k; })
        .def_prop_ro("nbytes", [](const Matrix& w) { return w.bytes; })
        .def("column", &column, "n"_a);

    m.def("pack", &pack, "team"_a, "kind"_a, "data"_a, "columns"_a, "inputs"_a);
    m.def("bandwidth", &bandwidth, "team"_a, "bytes"_a, "repeats"_a = 3);

    nb::class_<Step>(m, "Step")
        .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::sequence>(),
             "input_ids"_a, "positions"_a, "write_slots"_a, "q_lens"_a, "kv_lens"_a, "slot_table"_a, "table_rows"_a,
             "output_rows"_a, "short_lists"_a = nb::make_tuple())
        .def("resize", &Step::resize, "rows"_a, "runs"_a, "outputs"_a)
        .def_prop_ro("rows", [](const Step& s) { return s.view().rows; })
        .def_prop_ro("runs", [](const Step& s) { return s.view().runs; })
        .def_prop_ro("outputs", [](const Step& s) { return s.view().outputs; });

    nb::class_<Rotary>(m, "Rotary")
        .def("__init__", [](Rotary* self, nb::handle frequencies, int64_t positions) {
            const Array given = take_array("Rotary", "frequencies", frequencies, Element::F64, 1);
            if (positions < 1) wrong("Rotary", "positions is " + std::to_string(positions) + ", less than 1");
            const double* values = given.as<double>();
            new (self) Rotary(std::vector<double>(values, values + given.size), positions);
        }, "frequencies"_a, "positions"_a)
        .def_prop_ro("positions", &Rotary::positions);

    nb::class_<ProgramObject>(m, "Program")
        .def("__init__", [](ProgramObject* self, nb::handle team) {
            if (!nb::isinstance<TeamObject>(team)) throw nb::type_error("Program: team is not a Team");
            new (self) ProgramObject(nb::borrow(team));
        }, "team"_a)
        .def("input", &ProgramObject::input, "width"_a)
        .def("embed", &ProgramObject::embed, "table"_a, "scale"_a)
        .def("norm", &ProgramObject::norm, "x"_a, "weight"_a, "eps"_a, "add"_a = -1)
        .def("linear", &ProgramObject::linear, "x"_a, "weights"_a, "bias"_a.none() = nb::none(), "residual"_a = -1)
        .def("gated", &ProgramObject::gated, "x"_a, "gate"_a, "up"_a, "activation"_a)
        .def("add", &ProgramObject::add, "x"_a, "y"_a)
        .def("attend", &ProgramObject::attend, "qkv"_a, nb::kw_only(), "heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a,
             "window"_a = 0, "softcap"_a = 0.0f, "head_norm"_a.none() = nb::none(), "eps"_a = 0.0f, "rotary"_a,
             "cache_k"_a, "cache_v"_a)
        .def("take_outputs", &ProgramObject::take_outputs, "x"_a)
        .def("logits", &ProgramObject::logits, "x"_a, "head"_a, "softcap"_a = 0.0f)
        .def("output", &ProgramObject::output, "x"_a)
        .def("finish", &ProgramObject::finish)
        .def("run", &ProgramObject::run, "step"_a, "inputs"_a = nb::make_tuple(), "outputs"_a = nb::make_tuple())
        .def("profile", &ProgramObject::profile, "step"_a, "inputs"_a = nb::make_tuple(), "outputs"_a = nb::make_tuple());

    bind_sample(m);
}
