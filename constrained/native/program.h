// A regex as instructions and graphs of bytes: the tables of fsm/program.py, where the fields are described.
#pragma once

#include <cstdint>
#include <vector>

namespace stolon {

constexpr int64_t kFar = int64_t{1} << 40;  // lengths are counted up to here
constexpr int kMaxLoops = 5;

struct Instruction {
    enum Op : int64_t { kMatch, kSplit, kEnter, kLoop, kAccept };
    int64_t op, depth, x, y, low, high, length, loop, body;
};

struct Program {
    int64_t start;
    std::vector<Instruction> code;
    std::vector<int64_t> targets;
    struct Node {
        uint32_t first, last;
        bool end;
        int64_t rest, more;  // shortest text to an end: in all, and of one byte or more
    };
    struct Edge {
        uint8_t low, high;
        uint32_t to;
    };
    std::vector<Node> nodes;
    std::vector<Edge> edges;

    // Check every index and measure the graph. Throws std::invalid_argument.
    void prepare();
};

}  // namespace stolon
