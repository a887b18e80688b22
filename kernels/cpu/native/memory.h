// Aligned memory without a value in it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>

namespace stolon {

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// For sizes that come from outside. Throws std::length_error where the product isn't an int64.
inline int64_t checked_product(int64_t a, int64_t b) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) throw std::length_error("a size is beyond 64 bits");
    return product;
}

// Aligned to a cache line; large ones to a huge page, which the system is asked to use.
class Memory {
   public:
    Memory() = default;
    explicit Memory(int64_t bytes) : bytes_(bytes) {
        const bool large = bytes >= 2 * kHugePage;
        const size_t size = size_t(bytes > 0 ? bytes : 1);
        data_.reset(static_cast<std::byte*>(std::aligned_alloc(large ? kHugePage : 64, round_up(size, large ? kHugePage : 64))));
        if (!data_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
        if (large) madvise(data_.get(), size / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
    }

    std::byte* get() const { return data_.get(); }
    int64_t bytes() const { return bytes_; }

   private:
    static constexpr int64_t kHugePage = int64_t(2) << 20;
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    std::unique_ptr<std::byte, Free> data_;
    int64_t bytes_ = 0;
};

}  // namespace stolon
