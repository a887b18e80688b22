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

// Memory for many things that live about as long: they lie one after the other in huge pages, where alone each
// would be too small for one. A piece holds on to what it was cut from.
class Arena {
   public:
    using Piece = std::shared_ptr<std::byte>;

    Piece take(int64_t bytes) {
        const int64_t size = round_up(bytes, 64);
        if (!chunk_ || size > chunk_->bytes() - used_) {
            if (size > kChunk / 4) return cut(std::make_shared<Memory>(size), 0);
            // Pages that no piece touches take no memory.
            chunk_ = std::make_shared<Memory>(kChunk);
            used_ = 0;
        }
        used_ += size;
        return cut(chunk_, used_ - size);
    }

   private:
    static constexpr int64_t kChunk = int64_t(64) << 20;
    static Piece cut(const std::shared_ptr<Memory>& from, int64_t at) { return {from, from->get() + at}; }

    std::shared_ptr<Memory> chunk_;
    int64_t used_ = 0;
};

}  // namespace stolon
