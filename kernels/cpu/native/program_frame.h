// What the lanes of one step share.
#pragma once

#include "program.h"

namespace stolon {

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

}  // namespace stolon
