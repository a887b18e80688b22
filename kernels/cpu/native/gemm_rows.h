// Words of the blocks of a few rows of activations, as operands of vector instructions.
#pragma once

#include <cstddef>

#include "kernels.h"
#include "tile.h"

STOLON_BEGIN
namespace {

// Where the parts of a block lie, in bytes.
constexpr int kValuesAt = int(offsetof(Q8Block, values));
constexpr int kScaleAt = int(offsetof(Q8Block, scale));
constexpr int kWeightedAt = int(offsetof(Q8Block, weighted));
constexpr int kPowerAt = int(offsetof(Q8Block, power));
constexpr int kLevelAt = int(offsetof(Q8Block, level));
constexpr int kPairStartAt = int(offsetof(Q8Block, pair_start));
constexpr int kMinusSumAt = int(offsetof(Q8Block, minus_sum));
constexpr int kHalfStartsAt = int(offsetof(Q8Block, half_starts));

constexpr float kPowerUnit = 0x1p-64f;  // what the powers of blocks are in
static_assert(kPowerBias == 64);

// R rows from `first` on. `At` is counted in bytes from where `next` has come to.
template <int R>
class Rows {
    const std::byte* first_;
    int64_t row_bytes_;

public:
    // `stride` blocks from row to row.
    Rows(const Q8Block* first, int64_t stride)
        : first_(reinterpret_cast<const std::byte*>(first)), row_bytes_(stride * int64_t(sizeof(Q8Block))) {}
    STOLON_ALWAYS void next() { first_ += sizeof(Q8Block); }

    template <int r, int At>
    STOLON_ALWAYS int32_t word() const {
        return load_word(first_ + r * row_bytes_ + At);
    }
    // Sixteen times the word.
    template <int r, int At>
    STOLON_ALWAYS I16 spread() const {
        return i_set(word<r, At>());
    }
    // sums += codes times the four activations of the word.
    template <int r, int At, int Bits>
    STOLON_ALWAYS void dot(I16& sums, B64 codes) const {
        sums = dot4<Bits>(sums, codes, word<r, At>());
    }
    // a times the power of two that the word is.
    template <int r, int At>
    STOLON_ALWAYS F16 raised(F16 a) const {
        return f_raised(a, i_set(word<r, At>()));
    }
};

#if defined(STOLON_AVX512) && !defined(STOLON_SANITIZE)

// More than three rows. A compiler loads each word by an instruction of its own, from an address that it keeps for each
// row; six of them, and there are too few registers for the rest. So the instructions are written out: three rows are
// counted from one address, three from another, and the load is part of the instruction. (The compiler does not know that
// they read: blocks were written before this function was called, and nothing here writes them.)
template <int R>
    requires(R > 3)
class Rows<R> {
    static_assert(R <= 6);
    const std::byte* low_;
    const std::byte* high_;
    int64_t row_bytes_;

#define STOLON_WITH_WORD(before, after, result, ...)                                                        \
    if constexpr (r % 3 == 0)                                                                               \
        asm(before " %c[at](%[row])" after : result : [row] "r"(r < 3 ? low_ : high_), [at] "i"(At), ##__VA_ARGS__); \
    else                                                                                                    \
        asm(before " %c[at](%[row],%[step],%c[times])" after                                                \
            : result                                                                                        \
            : [row] "r"(r < 3 ? low_ : high_), [step] "r"(row_bytes_), [at] "i"(At), [times] "i"(r % 3), ##__VA_ARGS__)

public:
    Rows(const Q8Block* first, int64_t stride)
        : low_(reinterpret_cast<const std::byte*>(first)), high_(reinterpret_cast<const std::byte*>(first + 3 * stride)),
          row_bytes_(stride * int64_t(sizeof(Q8Block))) {}
    STOLON_ALWAYS void next() {
        low_ += sizeof(Q8Block);
        high_ += sizeof(Q8Block);
    }

    template <int r, int At>
    STOLON_ALWAYS int32_t word() const {
        int32_t out;
        STOLON_WITH_WORD("movl", ", %[out]", [out] "=r"(out));
        return out;
    }
    template <int r, int At>
    STOLON_ALWAYS I16 spread() const {
        I16 out;
        STOLON_WITH_WORD("vpbroadcastd", ", %[out]", [out] "=v"(out.v));
        return out;
    }
    template <int r, int At, int Bits>
    STOLON_ALWAYS void dot(I16& sums, B64 codes) const {
        STOLON_WITH_WORD("vpdpbusd", "%{1to16%}, %[codes], %[sums]", [sums] "+v"(sums.v), [codes] "v"(codes.v));
    }
    template <int r, int At>
    STOLON_ALWAYS F16 raised(F16 a) const {
        F16 out;
        STOLON_WITH_WORD("vpaddd", "%{1to16%}, %[a], %[out]", [out] "=v"(out.v), [a] "v"(a.v));
        return out;
    }
#undef STOLON_WITH_WORD
};

#endif

// R rows whose blocks lie one behind the other, group by group of inputs.
template <int R>
class TogetherRows {
    const std::byte* at_;

public:
    static constexpr int kGroupBytes = R * int(sizeof(PairBlock));

    explicit TogetherRows(const PairBlock* first) : at_(reinterpret_cast<const std::byte*>(first)) {}
    STOLON_ALWAYS void next() { at_ += kGroupBytes; }

    template <int r, int At>
    STOLON_ALWAYS int32_t word() const {
        return load_word(at_ + r * int(sizeof(PairBlock)) + At);
    }
    template <int r, int At>
    STOLON_ALWAYS I16 spread() const {
        return i_set(word<r, At>());
    }
    template <int r, int At, int Bits>
    STOLON_ALWAYS void dot(I16& sums, B64 codes) const {
#if defined(STOLON_AVX512) && !defined(STOLON_SANITIZE)
        // A compiler loads the word by an instruction of its own. (It does not know that this reads; see above.)
        asm("vpdpbusd %c[at](%[row])%{1to16%}, %[codes], %[sums]"
            : [sums] "+v"(sums.v)
            : [codes] "v"(codes.v), [row] "r"(at_), [at] "i"(r * int(sizeof(PairBlock)) + At));
#else
        sums = dot4<Bits>(sums, codes, word<r, At>());
#endif
    }
    template <int r, int At>
    STOLON_ALWAYS F16 raised(F16 a) const {
        return f_raised(a, i_set(word<r, At>()));
    }
};

}  // namespace
STOLON_END
