// The blocks of the cache that attention reads: where they lie, who sees what of them, and what is asked for early.
#pragma once

#include <algorithm>

#include "attention_plan.h"
#include "isa.h"
#include "kernels.h"
#include "simd.h"

STOLON_BEGIN

namespace {

// The accumulators of a tile stay in registers only where the loops over them are unrolled early.
#define STOLON_UNROLL _Pragma("GCC unroll 8")

constexpr int kPositions = int(kKvBlock);
constexpr int kValuesAtOnce = 32;  // positions
#if defined(STOLON_AMX)
constexpr int kStacked = int(kMostTileRows);  // rows computed together, at most
#else
constexpr int kStacked = int(kTileRows);
#endif
constexpr int64_t kAheadBytes = 512 << 10;  // fetched early, at most: half of a usual second-level cache
constexpr int kState = 16;  // offset of the values in a state or partial: {m, l, padding, values}

// One stacked row.
struct Row {
    const bf16* q;
    int64_t position;
    float* state;
    float* out;
};

// Positions of a block, counted from its first.
struct Span {
    int low, high;
};

int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// What rows see, which are causal and may look back no further than a window of positions (0: none).
struct Sight {
    int64_t window;

    // The lowest position that a row at `position` sees.
    int64_t low_of(int64_t position) const { return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0; }
    bool sees(int64_t position, int64_t block) const {
        return block * kKvBlock <= position && low_of(position) < (block + 1) * kKvBlock;
    }
    // What a row at `position` sees of a block, which is something.
    Span span_of(int64_t position, int64_t block) const {
        const int64_t start = block * kKvBlock;
        return {int(std::clamp<int64_t>(low_of(position) - start, 0, kPositions)),
                int(std::min<int64_t>(kPositions, position + 1 - start))};
    }
};

// Slots of one block for one kv head: positions [low, high) of it are loaded, the others are zero.
struct Source {
    const bf16* k;
    const bf16* v;
    int64_t stride;  // from slot to slot
    const int64_t* slots;
    int low, high;
    int head_dim;
    int64_t feature;  // of the token's row in the cache, at which k and v are

    Source part(int first, int count) const {
        Source s = *this;
        s.slots += first;
        s.low = std::max(0, low - first);
        s.high = std::min(count, high - first);
        return s;
    }
};

// A lane's scratch, handed out piece by piece.
struct Scratch {
    std::byte* at;

    template <class T>
    void take(T*& to, int64_t count) {
        to = reinterpret_cast<T*>(at);
        at += round_up(count * int64_t(sizeof(T)), 64);
    }
};

// Rows of the cache that are read in order: those of one run's positions, some heads of each.
struct Stretch {
    const bf16* k = nullptr;
    const bf16* v = nullptr;
    int64_t stride = 0;  // from slot to slot
    int64_t width = 0;   // features
    const int64_t* slots = nullptr;  // by position
    int64_t begin = 0, end = 0;      // positions

    bool operator==(const Stretch&) const = default;
};

// Brings keys and values near while those before them are computed with: a row lies anywhere in the cache, so hardware
// doesn't see it coming. It goes through the stretch of an item and on into that of the next, some rows ahead of the
// computing and as fast, because of requests that come too close together the processor drops some.
class Ahead {
public:
    // What is computed with next, and what after it; the former may be what came after the last one.
    void enter(const Stretch& now, const Stretch& then) {
        next_[0] = stretch_[1] == now ? next_[1] : now.begin;
        next_[1] = then.begin;
        stretch_[0] = now;
        stretch_[1] = then;
    }

    // From `position` on, `rows` rows are computed with, which takes `ticks`: meanwhile fetch as many, and more of them
    // if those ahead are fewer than `lead`.
    void pace(int64_t position, int64_t rows, int64_t lead, int64_t ticks) {
        next_[0] = std::max(next_[0], std::min(position, stretch_[0].end));
        const int64_t ahead = next_[0] - position + next_[1] - stretch_[1].begin;
        left_ = std::max<int64_t>(0, rows + lead - ahead);
        period_ = left_ ? std::max<int64_t>(1, ticks / left_) : INT64_MAX;
        wait_ = period_;
    }

    void tick(int n = 1) {
        if ((wait_ -= n) <= 0) fetch();
    }

private:
    __attribute__((noinline)) void fetch() {
        for (; wait_ <= 0; wait_ += period_) {
            const int which = next_[0] < stretch_[0].end ? 0 : 1;
            const Stretch& from = stretch_[which];
            if (left_-- <= 0 || next_[which] >= from.end) {
                wait_ = period_ = INT64_MAX;
                return;
            }
            const int64_t at = from.slots[next_[which]++] * from.stride;
            for (int64_t f = 0; f < from.width; f += 64 / int64_t(sizeof(bf16))) {
                __builtin_prefetch(from.k + at + f, 0, 2);
                __builtin_prefetch(from.v + at + f, 0, 2);
            }
        }
    }

    Stretch stretch_[2];
    int64_t next_[2] = {0, 0};  // positions
    int64_t left_ = 0, period_ = INT64_MAX, wait_ = INT64_MAX;
};

}  // namespace

STOLON_END
