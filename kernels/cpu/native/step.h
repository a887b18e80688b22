// The layout of one step: rows, the runs that they form, and where their keys and values live.
#pragma once

#include <cstdint>
#include <vector>

namespace stolon {

// As ops.py describes a RaggedBatch. Borrowed arrays, unchecked.
struct StepView {
    int64_t rows = 0;
    const int64_t* input_ids = nullptr;    // [rows]
    const int64_t* positions = nullptr;    // [rows]
    const int64_t* write_slots = nullptr;  // [rows]
    int64_t runs = 0;
    const int64_t* q_lens = nullptr;      // [runs]
    const int64_t* kv_lens = nullptr;     // [runs]
    const int64_t* table_rows = nullptr;  // [runs]
    int64_t table_height = 0;
    int64_t table_width = 0;
    const int64_t* slot_table = nullptr;  // [table_height, table_width]
    int64_t outputs = 0;
    const int64_t* output_rows = nullptr;  // [outputs]
};

// What a program can take. A limit that nothing sets is -1: the values are not used.
struct StepLimits {
    int64_t vocabulary = -1;
    int64_t positions = -1;
    int64_t slots = -1;
};

// A step whose every number is in range. The small arrays are copies: what others do to the originals
// while the step runs doesn't matter. The slot table is not copied.
class CheckedStep {
   public:
    // Throws std::invalid_argument with the name of the argument and the number that is wrong.
    void take(const StepView& step, const StepLimits& limits);
    const StepView& view() const { return view_; }

   private:
    StepView view_;
    std::vector<int64_t> numbers_;
};

}  // namespace stolon
