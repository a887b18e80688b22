// The layout of one step: rows, the runs that they form, and where their keys and values live.
#pragma once

#include <cstdint>
#include <vector>

namespace stolon {

struct IdList {
    const int64_t* ids;
    int64_t count;
};

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
    // Of the last output rows only the logits of these ids are wanted: a list for each.
    int64_t lists = 0;
    const IdList* short_lists = nullptr;  // [lists]
};

// A tile of output columns for rows that follow one another.
struct RowTile {
    int64_t tile;
    int64_t row;  // of the output rows
    int64_t rows;
};

// What a program can take. A limit that nothing sets is -1: the values are not used.
struct StepLimits {
    int64_t vocabulary = -1;
    int64_t positions = -1;
    int64_t slots = -1;
    int64_t columns = -1;  // of the output head
};

// A step whose every number is in range. The small arrays are copies: what others do to the originals
// while the step runs doesn't matter. The slot table is not copied.
class CheckedStep {
   public:
    // Throws std::invalid_argument with the name of the argument and the number that is wrong.
    void take(const StepView& step, const StepLimits& limits);
    const StepView& view() const { return view_; }
    // What the short lists need of the output head, each once, by tile.
    const std::vector<RowTile>& tiles() const { return tiles_; }

   private:
    void take_lists(int64_t columns);

    StepView view_;
    std::vector<int64_t> numbers_;
    std::vector<RowTile> tiles_;
};

}  // namespace stolon
