// The blocks of the cache that attention reads: where they lie, and what is asked for early.
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

// The keys and values that are wanted next, brought near while others are computed with: a block's rows lie
// anywhere in the cache, so hardware doesn't see them coming. Row by row: of many lines at once the processor
// drops some.
class Ahead {
   public:
    // Rows [begin, end) of `source`, `width` features of each (those of all kv heads of an item), over the next
    // `ticks` calls of `tick`.
    void set(const Source& source, int64_t width, int64_t begin, int64_t end, int64_t ticks) {
        const int64_t rows = std::max<int64_t>(1, end - begin);
        source_ = source;
        width_ = width;
        next_ = begin;
        end_ = end;
        period_ = std::max<int64_t>(1, ticks / rows);
        step_ = (rows + ticks - 1) / ticks;
        wait_ = 1;
    }
    void clear() {
        next_ = end_ = 0;
        wait_ = period_ = INT64_MAX;
    }

    void tick(int n = 1) {
        if ((wait_ -= n) <= 0) fetch();
    }

   private:
    __attribute__((noinline)) void fetch() {
        wait_ += period_;
        for (const int64_t stop = std::min(end_, next_ + step_); next_ < stop; ++next_) {
            const int64_t at = source_.slots[next_] * source_.stride;
            for (int64_t f = 0; f < width_; f += 64 / int64_t(sizeof(bf16))) {
                __builtin_prefetch(source_.k + at + f, 0, 2);
                __builtin_prefetch(source_.v + at + f, 0, 2);
            }
        }
    }

    Source source_{};
    int64_t width_ = 0, next_ = 0, end_ = 0, period_ = 1, step_ = 1, wait_ = 1;
};

}  // namespace

STOLON_END
