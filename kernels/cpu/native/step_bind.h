// `Step` of the module: the arrays of a step, as long as its owner ever needs them, and how much of them is in use.
#pragma once

#include "binding.h"
#include "step.h"

namespace stolon {

class Step {
   public:
    Step(nb::handle input_ids, nb::handle positions, nb::handle write_slots, nb::handle q_lens, nb::handle kv_lens,
         nb::handle slot_table, nb::handle table_rows, nb::handle output_rows, nb::sequence short_lists);

    void resize(int64_t rows, int64_t runs, int64_t outputs);
    const StepView& view() const { return view_; }

   private:
    int64_t take(nb::handle value, const char* name, const int64_t*& data);

    std::vector<Array> held_;
    std::vector<IdList> lists_;
    StepView view_;
    int64_t rows_ = 0, runs_ = 0, outputs_ = 0;
};

}  // namespace stolon
