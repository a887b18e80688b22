// The forms of activations: which one a type of weight takes, and where the parts of a row of the Q8 form lie.
#include "memory.h"
#include "pack.h"

namespace stolon {

namespace {

constexpr int64_t kLine = 64;  // bytes of a line of the cache

}  // namespace

ActivationType activation_of(WeightType type) {
    if (type == WeightType::BF16) return ActivationType::BF16;
    return plain(type) ? ActivationType::F32 : ActivationType::Q8;
}

Q8Layout::Q8Layout(int64_t k) {
    const int64_t each = k / kBlock * 4;
    scales = round_up(k, kLine);
    weighted = scales + each;
    for (int i = 0; i < kStartKinds; ++i) starts[i] = weighted + (1 + i) * each;
    half_starts = weighted + (1 + kStartKinds) * each;
    // An odd number of lines: rows that are read together don't crowd into a few sets of a cache.
    bytes = round_up(half_starts + 2 * each, kLine) / kLine | 1;
    bytes *= kLine;
}

void Q8Layout::place(Activations& a, std::byte* base) const {
    a.q8_stride = bytes;
    a.values = reinterpret_cast<int8_t*>(base);
    a.scales = reinterpret_cast<float*>(base + scales);
    a.weighted = reinterpret_cast<float*>(base + weighted);
    for (int i = 0; i < kStartKinds; ++i) a.starts[i] = reinterpret_cast<int32_t*>(base + starts[i]);
    a.half_starts = reinterpret_cast<int32_t*>(base + half_starts);
}

}  // namespace stolon
