// Top-k, top-p and min-p: each finds where it cuts the ranking.
#pragma once

#include "sample_passes.h"

STOLON_BEGIN

// A type of each build's own, unlike std::greater: the sorting functions that it makes don't meet in the
// linker, which would give the code for one instruction set to all.
struct Descending {
    template <typename T>
    bool operator()(T a, T b) const {
        return a > b;
    }
};

// A list that holds the k best finite tokens, and as few others as is quick: the k-th largest of the
// groups' maxima is no larger than the k-th largest logit.
inline Tokens contenders(const Tokens& from, const Scan& found, int64_t k, Work& work) {
    float low = kLowest;
    if (k <= found.group_count) {
        std::copy(found.groups, found.groups + found.group_count, work.group_copy);
        float* kth = work.group_copy + (k - 1);
        std::nth_element(work.group_copy, kth, work.group_copy + found.group_count, Descending());
        low = std::max(low, *kth);
    }
    return collect(from, low, kInfinity, work.band, work.band_ids);
}

// The k best finite tokens into work.keys, best first; returns how many there are.
inline int64_t best(const Tokens& from, const Scan& found, int64_t k, Work& work) {
    const int64_t count = make_keys(contenders(from, found, k, work), work.keys);
    k = std::min(k, count);
    std::partial_sort(work.keys, work.keys + k, work.keys + count, Descending());
    return k;
}

inline constexpr int kLimits = 4;
// Of the first four limits below the maximum, in units of temperature.
inline constexpr double kDepths[kLimits] = {3.0, 6.0, 9.0, 12.0};
inline constexpr int64_t kFew = 64;

// Narrow [low, high) to the stretch in which the mass of everything at or above reaches `wanted`; `above`
// is the mass at or above `high`.
inline void narrow(const float* limits, const double* mass, double wanted, double& above, float& low, float& high) {
    int j = 0;
    while (j < kLimits && mass[j] < wanted) ++j;
    if (j < kLimits) low = std::max(low, limits[j]);
    if (j > 0) {
        high = limits[j - 1];
        above = mass[j - 1];
    }
}

// The smallest beginning of the ranking whose mass reaches a share of the whole (or, with Count, that has
// `amount` tokens). Limits close in on its edge; only a few tokens about it are sorted.
template <bool Count>
inline Cut cut_at(const Tokens& from, float top, double inverse, double amount, Work& work) {
    float limits[kLimits];
    double mass[kLimits];
    for (int j = 0; j < kLimits; ++j) {
        limits[j] = float(std::max(double(top) - kDepths[j] / inverse, double(kLowest)));
    }
    const double total = masses<Count, kLimits>(from, top, float(inverse), limits, mass);
    const double wanted = Count ? amount : amount * total;
    double above = 0.0;
    float low = kLowest, high = kInfinity;
    narrow(limits, mass, wanted, above, low, high);
    Tokens band = collect(from, low, high, work.band, work.band_ids);
    while (band.count > kFew) {
        const auto [bottom, peak] = range(band);
        if (bottom == peak) break;
        for (int j = 0; j < kLimits; ++j) {
            limits[j] = float(peak - (peak - bottom) * (double(j + 1) / (kLimits + 1)));
        }
        masses<Count, kLimits>(band, top, float(inverse), limits, mass);
        for (double& each : mass) each += above;
        narrow(limits, mass, wanted, above, low, high);
        band = collect(band, low, high, work.band, work.band_ids);
    }
    if (!band.count) return {kLowest, UINT32_MAX};
    if (band.count > kFew) {  // all equal
        const double each = Count ? 1.0 : weight_of(band.y[0], top, inverse);
        const double needed = each > 0.0 ? std::ceil((wanted - above) / each) : double(band.count);
        const int64_t count = int64_t(std::clamp(needed, 1.0, double(band.count)));
        return {band.y[0], band.ids[count - 1]};
    }
    const int64_t count = make_keys(band, work.keys);
    std::sort(work.keys, work.keys + count, Descending());
    int64_t i = 0;
    double reached = 0.0;
    for (;; ++i) {
        reached += Count ? 1.0 : weight_of(value_of(work.keys[i]), top, inverse);
        if (reached >= wanted - above || i + 1 == count) break;
    }
    return {value_of(work.keys[i]), id_of(work.keys[i])};
}

// The k best tokens as a list.
inline Tokens top_k(const Tokens& from, const Scan& found, int64_t k, float top, double inverse, Work& work) {
    if (k > found.group_count / 2 && from.count > 4096) {
        const Cut cut = cut_at<true>(from, top, inverse, double(k), work);
        const Tokens kept = collect(from, cut.value, kInfinity, work.list, work.list_ids);
        return drop_ties(kept, cut, work.list, work.list_ids);
    }
    const Tokens some = contenders(from, found, k, work);
    if (some.count <= k) return collect(some, kLowest, kInfinity, work.list, work.list_ids);
    make_keys(some, work.keys);
    std::nth_element(work.keys, work.keys + (k - 1), work.keys + some.count, Descending());
    const Cut cut{value_of(work.keys[k - 1]), id_of(work.keys[k - 1])};
    return drop_ties(some, cut, work.list, work.list_ids);
}

// The lowest logit whose weight is at least `p` of the best token's.
inline Cut cut_min_p(float top, double inverse, double p) {
    const auto kept = [&](float y) { return weight_of(y, top, inverse) >= p; };
    const double floor = double(top) + std::log(p) / inverse;
    float y = std::min(float(std::max(floor - 0.5e-16 / inverse, double(kLowest))), top);
    for (int i = 0; i < 64 && y < top && !kept(y); ++i) y = std::nextafter(y, kInfinity);
    for (int i = 0; i < 64 && y > kLowest; ++i) {
        const float below = std::nextafter(y, -kInfinity);
        if (!kept(below)) break;
        y = below;
    }
    return {y, UINT32_MAX};
}

STOLON_END
