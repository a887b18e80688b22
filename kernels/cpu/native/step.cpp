#include "step.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace stolon {

namespace {

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument("run: " + text); }

std::string item(const char* name, int64_t index, int64_t value) {
    return std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

// Whether all of values[0, count) are in [0, bound). Additions and ors alone, which every instruction set
// has for vectors of 64 bits: this goes over every context of a step.
bool all_below(const int64_t* values, int64_t count, int64_t bound) {
    const uint64_t last = uint64_t(bound) - 1;
    uint64_t wrong = bound > 0 ? 0 : ~uint64_t(0);
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t value = uint64_t(values[i]);
        wrong |= value | (last - value);
    }
    return count == 0 || int64_t(wrong) >= 0;
}

void check_range(const char* name, const int64_t* values, int64_t count, int64_t bound, const char* of) {
    if (all_below(values, count, bound)) return;
    const int64_t* wrong = std::find_if(values, values + count, [&](int64_t v) { return v < 0 || v >= bound; });
    fail(item(name, wrong - values, *wrong) + ", outside [0, " + std::to_string(bound) + "): " + of);
}

}  // namespace

void CheckedStep::take(const StepView& step, const StepLimits& limits) {
    numbers_.resize(size_t(3 * step.rows + 3 * step.runs + step.outputs));
    int64_t* next = numbers_.data();
    view_ = step;
    const auto copy = [&](const int64_t*& values, int64_t count) {
        std::copy(values, values + count, next);
        values = next;
        next += count;
    };
    copy(view_.input_ids, step.rows);
    copy(view_.positions, step.rows);
    copy(view_.write_slots, step.rows);
    copy(view_.q_lens, step.runs);
    copy(view_.kv_lens, step.runs);
    copy(view_.table_rows, step.runs);
    copy(view_.output_rows, step.outputs);

    if (limits.vocabulary >= 0) {
        check_range("input_ids", view_.input_ids, step.rows, limits.vocabulary, "rows of the embedding table");
    }
    if (limits.positions >= 0) {
        check_range("positions", view_.positions, step.rows, limits.positions, "rows of the rotary tables");
    }
    if (limits.slots >= 0) {
        check_range("write_slots", view_.write_slots, step.rows, limits.slots, "slots of the cache");
    }
    check_range("output_rows", view_.output_rows, step.outputs, step.rows, "rows of the step");
    take_lists(limits.columns);
    check_range("table_rows", view_.table_rows, step.runs, step.table_height, "rows of slot_table");
    int64_t rows = 0;
    for (int64_t i = 0; i < step.runs; ++i) {
        const int64_t q = view_.q_lens[i], kv = view_.kv_lens[i];
        if (q < 1 || q > step.rows - rows) {
            fail(item("q_lens", i, q) + "; lengths are at least 1 and sum to the step's " + std::to_string(step.rows) +
                 " rows");
        }
        if (kv < q || kv > step.table_width) {
            fail(item("kv_lens", i, kv) + ", outside [q_lens[i] = " + std::to_string(q) + ", width of slot_table = " +
                 std::to_string(step.table_width) + "]");
        }
        rows += q;
    }
    if (rows != step.rows) {
        fail("q_lens sum to " + std::to_string(rows) + ", the step has " + std::to_string(step.rows) + " rows");
    }
    if (limits.slots < 0) return;
    for (int64_t i = 0; i < step.runs; ++i) {
        const int64_t* slots = view_.slot_table + view_.table_rows[i] * step.table_width;
        if (all_below(slots, view_.kv_lens[i], limits.slots)) continue;
        const std::string name = "slot_table[" + std::to_string(view_.table_rows[i]) + "]";
        check_range(name.c_str(), slots, view_.kv_lens[i], limits.slots, "slots of the cache");
    }
}

void CheckedStep::take_lists(int64_t columns) {
    tiles_.clear();
    if (view_.lists > view_.outputs) {
        fail("there are " + std::to_string(view_.lists) + " short_lists for " + std::to_string(view_.outputs) + " output rows");
    }
    if (columns < 0) view_.lists = 0;  // no head is there to be cut short
    if (!view_.lists) return;
    std::vector<std::pair<int64_t, int64_t>> wanted;  // tile and row
    for (int64_t i = 0; i < view_.lists; ++i) {
        const IdList& list = view_.short_lists[i];
        const std::vector<int64_t> ids(list.ids, list.ids + list.count);
        const std::string name = "short_lists[" + std::to_string(i) + "]";
        check_range(name.c_str(), ids.data(), list.count, columns, "columns of the head");
        for (const int64_t id : ids) wanted.emplace_back(id / kTile, view_.outputs - view_.lists + i);
    }
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    for (const auto& [tile, row] : wanted) {
        if (!tiles_.empty() && tiles_.back().tile == tile && tiles_.back().row + tiles_.back().rows == row) {
            ++tiles_.back().rows;
        } else {
            tiles_.push_back({tile, row, 1});
        }
    }
}

}  // namespace stolon
