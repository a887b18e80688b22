#include "step_bind.h"

namespace stolon {

using namespace nb::literals;

namespace {

void same(int64_t size, int64_t want, const char* name, const char* other) {
    if (size == want) return;
    wrong("Step", std::string(name) + " has " + std::to_string(size) + " elements, " + other + " has " + std::to_string(want));
}

void within(const char* name, int64_t n, int64_t most) {
    if (n >= 0 && n <= most) return;
    wrong("Step.resize", std::string(name) + " is " + std::to_string(n) + ", outside [0, " + std::to_string(most) + "]");
}

}  // namespace

Step::Step(nb::handle input_ids, nb::handle positions, nb::handle write_slots, nb::handle q_lens, nb::handle kv_lens,
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

void Step::resize(int64_t rows, int64_t runs, int64_t outputs) {
    within("rows", rows, rows_);
    within("runs", runs, runs_);
    within("outputs", outputs, outputs_);
    view_.rows = rows;
    view_.runs = runs;
    view_.outputs = outputs;
}

int64_t Step::take(nb::handle value, const char* name, const int64_t*& data) {
    held_.push_back(take_array("Step", name, value, Element::I64, 1));
    data = held_.back().as<int64_t>();
    return held_.back().size;
}

void bind_step(nb::module_& module) {
    nb::class_<Step>(module, "Step")
        .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::sequence>(),
             "input_ids"_a, "positions"_a, "write_slots"_a, "q_lens"_a, "kv_lens"_a, "slot_table"_a, "table_rows"_a,
             "output_rows"_a, "short_lists"_a = nb::make_tuple())
        .def("resize", &Step::resize, "rows"_a, "runs"_a, "outputs"_a)
        .def_prop_ro("rows", [](const Step& s) { return s.view().rows; })
        .def_prop_ro("runs", [](const Step& s) { return s.view().runs; })
        .def_prop_ro("outputs", [](const Step& s) { return s.view().outputs; });
}

}  // namespace stolon
