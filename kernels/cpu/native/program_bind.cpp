// `Rotary` and `Program` of the module.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding.h"
#include "program.h"
#include "step_bind.h"

namespace stolon {

using namespace nb::literals;

namespace {

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

void bind_program(nb::module_& module) {
    nb::class_<Rotary>(module, "Rotary")
        .def("__init__", [](Rotary* self, nb::handle frequencies, int64_t positions) {
            const Array given = take_array("Rotary", "frequencies", frequencies, Element::F64, 1);
            if (positions < 1) wrong("Rotary", "positions is " + std::to_string(positions) + ", less than 1");
            const double* values = given.as<double>();
            new (self) Rotary(std::vector<double>(values, values + given.size), positions);
        }, "frequencies"_a, "positions"_a)
        .def_prop_ro("positions", &Rotary::positions);

    nb::class_<ProgramObject>(module, "Program")
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
}

}  // namespace stolon
