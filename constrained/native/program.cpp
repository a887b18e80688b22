#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace stolon {

void Program::prepare() {
    auto check = [](bool ok) {
        if (!ok) throw std::invalid_argument("a program's tables are not consistent");
    };
    auto size = static_cast<int64_t>(code.size());
    check(start >= 0 && start < size && nodes.size() < (1u << 31) && size < (int64_t{1} << 31));
    for (const Instruction& i : code) {
        check(i.depth >= 0 && i.depth <= kMaxLoops && i.loop >= -1 && i.loop < size);
        if (i.op == Instruction::kMatch) {
            check(i.x >= 0 && i.x < static_cast<int64_t>(nodes.size()) && i.y >= 0 && i.y < size);
        } else if (i.op == Instruction::kSplit) {
            check(i.x >= 0 && i.x <= i.y && i.y <= static_cast<int64_t>(targets.size()));
        } else if (i.op == Instruction::kEnter || i.op == Instruction::kLoop) {
            check(i.x >= 0 && i.x < size && i.y >= 0 && i.y < size && i.low >= 0 && i.high >= -1);
            check(i.low < (1 << 30) && i.high < (1 << 30) && i.depth < kMaxLoops + (i.op == Instruction::kLoop));
            check(i.op == Instruction::kEnter || i.depth > 0);
        } else {
            check(i.op == Instruction::kAccept);
        }
    }
    for (const Instruction& i : code) check(i.loop < 0 || code[i.loop].op == Instruction::kLoop);
    for (int64_t t : targets) check(t >= 0 && t < size);
    for (size_t n = 0; n < nodes.size(); n++) {
        Node& node = nodes[n];
        check(node.first <= node.last && node.last <= edges.size());
        node.more = kFar;
        for (uint32_t e = node.first; e < node.last; e++) {
            check(edges[e].to < n && edges[e].low <= edges[e].high);  // edges lead to nodes before
            node.more = std::min(node.more, 1 + nodes[edges[e].to].rest);
        }
        node.rest = node.end ? 0 : node.more;
    }
}

}  // namespace stolon
