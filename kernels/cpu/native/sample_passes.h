// Tokens with their logits, the ranking of them, and passes over a row.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "sample.h"
#include "sample_vectors.h"

STOLON_BEGIN

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kLowest = -FLT_MAX;

// Logits with their tokens, by ascending token.
struct Tokens {
    const float* y;
    const uint32_t* ids;  // null: a place is its id
    int64_t count;

    vf at(int64_t i) const { return i + W <= count ? vload(y + i) : load_first(y + i, count - i, -kInfinity); }
    vi id_at(int64_t i) const {
        if (!ids) return iota(uint32_t(i));
        return i + W <= count ? iload(ids + i) : load_first(ids + i, count - i);
    }
    uint32_t id(int64_t i) const { return ids ? ids[i] : uint32_t(i); }
};

// Every filter keeps the beginning of one ranking: logits descending, equal ones by id. A cut is the last
// token kept.
struct Cut {
    float value;
    uint32_t last;

    bool keeps(float y, uint32_t id) const { return y > value || (y == value && id <= last); }
};
inline constexpr Cut kNoCut{-kInfinity, UINT32_MAX};

inline Cut tighter(Cut a, Cut b) {
    if (a.value != b.value) return a.value > b.value ? a : b;
    return a.last < b.last ? a : b;
}

// A token's place in that ranking as a number: larger is better.
inline uint64_t rank_key(float y, uint32_t id) {
    uint32_t bits;
    y += 0.0f;  // -0 is equal to 0
    std::memcpy(&bits, &y, 4);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return uint64_t(bits) << 32 | uint32_t(~id);
}
inline uint32_t id_of(uint64_t key) { return ~uint32_t(key); }
inline float value_of(uint64_t key) {
    uint32_t bits = uint32_t(key >> 32);
    bits ^= bits >> 31 ? 0x80000000u : 0xffffffffu;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}

// A lane's memory. Lists have room for W elements past the last one.
struct Work {
    float* adjusted;      // the row after penalties and mask
    float* list;          // what a mask or top-k leaves
    uint32_t* list_ids;
    float* band;          // what a filter looks at
    uint32_t* band_ids;
    uint64_t* keys;
    float* raw_groups;
    float* groups;
    float* group_copy;

    Work(std::byte* at, int64_t vocab) {
        const size_t places = (size_t(vocab) + 1024 + 1023) / 1024 * 1024;
        auto take = [&](size_t bytes) {
            std::byte* here = at;
            at += bytes;
            return here;
        };
        adjusted = reinterpret_cast<float*>(take(places * 4));
        list = reinterpret_cast<float*>(take(places * 4));
        list_ids = reinterpret_cast<uint32_t*>(take(places * 4));
        band = reinterpret_cast<float*>(take(places * 4));
        band_ids = reinterpret_cast<uint32_t*>(take(places * 4));
        keys = reinterpret_cast<uint64_t*>(take(places * 8));
        // W for 1,024 tokens, three times.
        const size_t each = places / 1024 * 16;
        raw_groups = reinterpret_cast<float*>(take(3 * each * 4));
        groups = raw_groups + each;
        group_copy = groups + each;
    }
};

inline constexpr int64_t kGroupSpan = 1024;

struct Scan {
    float top;
    bool has_nan;
    const float* groups;  // maxima of disjoint groups of at most kGroupSpan / W tokens
    int64_t group_count;
};

inline Scan scan(const float* y, int64_t count, float* groups) {
    uint32_t nans = 0;
    vf all = vset(-kInfinity);
    int64_t block = 0;
    for (int64_t begin = 0; begin < count; begin += kGroupSpan, ++block) {
        const int64_t end = std::min(begin + kGroupSpan, count);
        vf m0 = vset(-kInfinity), m1 = m0, m2 = m0, m3 = m0;
        int64_t i = begin;
        for (; i + 4 * W <= end; i += 4 * W) {
            const vf a = vload(y + i), b = vload(y + i + W), c = vload(y + i + 2 * W), d = vload(y + i + 3 * W);
            nans |= where_nan(a, b) | where_nan(c, d);
            m0 = vmax(m0, a);
            m1 = vmax(m1, b);
            m2 = vmax(m2, c);
            m3 = vmax(m3, d);
        }
        for (; i < end; i += W) {
            const vf a = i + W <= end ? vload(y + i) : load_first(y + i, end - i, -kInfinity);
            nans |= where_nan(a, a);
            m0 = vmax(m0, a);
        }
        const vf m = vmax(vmax(m0, m1), vmax(m2, m3));
        vstore(groups + block * W, m);
        all = vmax(all, m);
    }
    return {vhigh(all), nans != 0, groups, block * W};
}

// The first place that holds the maximum.
inline int64_t first_of(const float* y, int64_t count, const Scan& found) {
    int64_t group = 0;
    const vf top = vset(found.top);
    while (group + W < found.group_count && !where_eq(vload(found.groups + group), top)) group += W;
    for (int64_t i = group / W * kGroupSpan; i < count; i += W) {
        const vf a = i + W <= count ? vload(y + i) : load_first(y + i, count - i, -kInfinity);
        if (const uint32_t mask = where_eq(a, top)) return i + __builtin_ctz(mask);
    }
    return 0;
}

inline SampleStatus finite(const Scan& found) {
    if (found.has_nan) return SampleStatus::NotANumber;
    if (found.top == kInfinity) return SampleStatus::Infinite;
    return found.top == -kInfinity ? SampleStatus::NothingFinite : SampleStatus::Ok;
}

// Sum of weights e^((y - top) * inverse), or with Count of ones, over finite logits; and the sums over
// those at or above each of N limits. Blocks of 8 vectors are summed in float32, blocks in float64.
template <bool Count, int N>
inline double masses(const Tokens& from, float top, float inverse, const float* limits, double* mass) {
    const vf t = vset(top), inv = vset(inverse), one = vset(1.0f), lowest = vset(kLowest);
    double total = 0.0;
    for (int j = 0; j < N; ++j) mass[j] = 0.0;
    for (int64_t begin = 0; begin < from.count; begin += 8 * W) {
        const int64_t end = std::min(begin + 8 * W, from.count);
        vf sum = vset(0.0f), sums[N + 1];
        for (int j = 0; j < N; ++j) sums[j] = sum;
        for (int64_t i = begin; i < end; i += W) {
            const vf y = from.at(i);
            const vf weight = Count ? keep_ge(one, y, lowest) : exp_below((y - t) * inv);
            sum = sum + weight;
            for (int j = 0; j < N; ++j) sums[j] = sums[j] + keep_ge(weight, y, vset(limits[j]));
        }
        total += double(vsum(sum));
        for (int j = 0; j < N; ++j) mass[j] += double(vsum(sums[j]));
    }
    return total;
}

inline double total_weight(const Tokens& from, float top, double inverse) {
    return masses<false, 0>(from, top, float(inverse), nullptr, nullptr);
}

inline double weight_of(float y, float top, double inverse) { return std::exp((double(y) - double(top)) * inverse); }

// The same over what a cut keeps.
inline double kept_weight(const Tokens& from, Cut cut, float top, double inverse) {
    if (cut.value == -kInfinity) return total_weight(from, top, inverse);
    const vf value = vset(cut.value), t = vset(top), inv = vset(float(inverse));
    double total = 0.0;
    for (int64_t i = 0; i < from.count; i += W) {
        const vf y = from.at(i);
        const uint32_t mask = where_ge(y, value);
        if (!mask) continue;
        uint32_t ties = mask & where_eq(y, value);
        if (!ties) {
            total += double(vsum(keep_ge(exp_below((y - t) * inv), y, value)));
            continue;
        }
        for (uint32_t left = mask; left; left &= left - 1) {
            const int64_t at = i + __builtin_ctz(left);
            if (cut.keeps(from.y[at], from.id(at))) total += weight_of(from.y[at], top, inverse);
        }
    }
    return total;
}

// The tokens with low <= y < high. `y` and `ids` may be where `from` lies.
inline Tokens collect(const Tokens& from, float low, float high, float* y, uint32_t* ids) {
    const vf least = vset(low), most = vset(high);
    int64_t count = 0;
    for (int64_t i = 0; i < from.count; i += W) {
        const vf a = from.at(i);
        const uint32_t mask = where_ge(a, least) & ~where_ge(a, most);
        if (mask) count += store_chosen(y + count, ids + count, a, from.id_at(i), mask);
    }
    return {y, ids, count};
}

// What a cut keeps, of tokens none of which is below it.
inline Tokens drop_ties(const Tokens& from, Cut cut, float* y, uint32_t* ids) {
    int64_t count = 0;
    for (int64_t i = 0; i < from.count; ++i) {
        if (!cut.keeps(from.y[i], from.ids[i])) continue;
        y[count] = from.y[i];
        ids[count++] = from.ids[i];
    }
    return {y, ids, count};
}

struct Extent {
    double least, most;
};

inline Extent range(const Tokens& from) {
    vf least = vset(kInfinity), most = vset(-kInfinity);
    float low = kInfinity, high = -kInfinity;
    int64_t i = 0;
    for (; i + W <= from.count; i += W) {
        const vf y = vload(from.y + i);
        least = vmin(least, y);
        most = vmax(most, y);
    }
    for (; i < from.count; ++i) {
        low = std::min(low, from.y[i]);
        high = std::max(high, from.y[i]);
    }
    return {-double(std::max(vhigh(vset(0.0f) - least), -low)), double(std::max(vhigh(most), high))};
}

inline int64_t make_keys(const Tokens& from, uint64_t* keys) {
    for (int64_t i = 0; i < from.count; ++i) keys[i] = rank_key(from.y[i], from.id(i));
    return from.count;
}

STOLON_END
