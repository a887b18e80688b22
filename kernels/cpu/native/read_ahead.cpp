#include "read_ahead.h"

#include <unistd.h>

#include <algorithm>

namespace stolon {

namespace {

// Of a layer's keys and values, at most: a quarter of the third-level cache, which others use too.
int64_t most_bytes() {
    constexpr int64_t kMost = int64_t(8) << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    static const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0) return std::min(kMost, cache / 4);
#endif
    return kMost;
}

int64_t row_bytes(const HeadShape& shape) { return int64_t(shape.num_kv_heads) * shape.head_dim * int64_t(sizeof(bf16)); }

double work_of(const Op& op) {
    double work = 0;
    for (const std::vector<Weight>* weights : {&op.weights, &op.up})
        for (const Weight& w : *weights) work += double(w.columns) * double(w.k);
    return work;
}

}  // namespace

ReadAhead::ReadAhead(std::span<const Op> ops, int lanes)
    : lanes_(lanes), next_(ops.size(), -1), share_(ops.size(), 0.0), places_(std::make_unique<Place[]>(size_t(lanes))) {
    int attention = -1;
    double work = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].kind == OpKind::Linear) work += work_of(ops[i]);
        if (ops[i].kind != OpKind::Attend) continue;
        if (attention >= 0) {
            next_[size_t(attention)] = int(i);
            for (size_t j = size_t(attention); j < i; ++j)
                if (ops[j].kind == OpKind::Linear) share_[j] = work_of(ops[j]) / work;
        }
        attention = int(i);
        work = 0;
    }
}

void ReadAhead::begin(std::span<const AttentionPlan* const> plans) {
    const int64_t most = most_bytes();
    slots_.resize(plans.size());
    for (size_t i = 0; i < plans.size(); ++i) plans[i]->list_reads(most / (2 * row_bytes(plans[i]->shape)), slots_[i]);
    // The first attention has no products before it in which to read much.
    for (int lane = 0; lane < lanes_; ++lane) places_[size_t(lane)] = {};
}

void ReadAhead::attended(int lane, std::span<const Op> ops, int op) const {
    Place& place = places_[size_t(lane)];
    place = {};
    if (next_[size_t(op)] < 0) return;
    const AttendOp& next = ops[size_t(next_[size_t(op)])].attend;
    const std::vector<int32_t>& slots = slots_[size_t(next.plan)];
    const int64_t count = int64_t(slots.size()), begin = count * lane / lanes_, end = count * (lane + 1) / lanes_;
    place.rows = {reinterpret_cast<const std::byte*>(next.k), reinterpret_cast<const std::byte*>(next.v),
                  row_bytes(next.shape), slots.data() + begin, slots.data() + end, 0};
    place.count = end - begin;
}

void ReadAhead::attach(LinearArgs& args, int lane, int op, double part) const {
    Place& place = places_[size_t(lane)];
    if (place.count == 0) return;
    args.cache_rows = &place.rows;
    args.cache_rows_due = int64_t(double(place.count) * share_[size_t(op)] * part + 1.0);
}

}  // namespace stolon
