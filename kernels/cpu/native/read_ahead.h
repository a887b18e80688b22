// What attention will read of the cache, brought near by the products before it.
//
// Products keep a lane computing and leave memory idle; attention over many contexts is the other way round. So while
// the products between two attentions go on, each lane asks for a part of the rows that the second one will read. It
// changes no bit of a result.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention_plan.h"
#include "kernels.h"
#include "schedule.h"

namespace stolon {

class ReadAhead {
   public:
    // `ops`: of a program, all recorded.
    ReadAhead(std::span<const Op> ops, int lanes);

    // A step begins; `plans`: those that its attentions go by.
    void begin(std::span<const AttentionPlan* const> plans);
    // Lane `lane` is done with the attention `op`: what the next one reads is what it fetches now.
    void attended(int lane, std::span<const Op> ops, int op) const;
    // Let `args`, a call of linear op `op` in which `lane` does `part` of what it does of the op, fetch on.
    void attach(LinearArgs& args, int lane, int op, double part) const;

   private:
    struct alignas(64) Place {
        CacheRows rows{};
        int64_t count = 0;  // rows that the lane fetches for this attention
    };

    const int lanes_;
    std::vector<int> next_;      // of each attention: the one after it, or -1
    std::vector<double> share_;  // of each linear: its part of the products between two attentions
    std::vector<std::vector<int32_t>> slots_;  // of each plan: what is to be read, in order
    std::unique_ptr<Place[]> places_;          // of the lanes
};

}  // namespace stolon
