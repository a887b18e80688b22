#include "rotary.h"

#include <algorithm>
#include <cmath>

namespace stolon {

namespace {

constexpr int64_t kBlock = 256;  // positions at a time: a fraction of a millisecond

int64_t table_bytes(int64_t positions, size_t frequencies) {
    return checked_product(checked_product(positions, int64_t(frequencies)), sizeof(float));
}

}  // namespace

Rotary::Rotary(std::vector<double> frequencies, int64_t positions)
    : frequencies_(std::move(frequencies)),
      positions_(positions),
      cos_(table_bytes(positions, frequencies_.size())),
      sin_(table_bytes(positions, frequencies_.size())) {}

void Rotary::reach(int64_t end) {
    if (end <= ready_.load(std::memory_order_acquire)) return;
    const std::lock_guard turn(filling_);
    const int64_t begin = ready_.load(std::memory_order_relaxed);
    const int64_t until = std::min(round_up(end, kBlock), positions_);
    const size_t count = frequencies_.size();
    float* cos = reinterpret_cast<float*>(cos_.get());
    float* sin = reinterpret_cast<float*>(sin_.get());
    for (int64_t position = begin; position < until; ++position) {
        for (size_t f = 0; f < count; ++f) {
            const double angle = double(position) * frequencies_[f];
            cos[size_t(position) * count + f] = float(std::cos(angle));
            sin[size_t(position) * count + f] = float(std::sin(angle));
        }
    }
    if (until > begin) ready_.store(until, std::memory_order_release);
}

}  // namespace stolon
