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

inline int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
inline int64_t round_up(int64_t n, int64_t to) { return ceil_div(n, to) * to; }

// For sizes that come from outside. Throws std::length_error where the product isn't an int64.
inline int64_t checked_product(int64_t a, int64_t b) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) throw std::length_error("a size is beyond 64 bits");
    return product;
}

// Aligned to a cache line. Large ones are the system's own pages, which go back to it at once (an allocator keeps
// what it was given back), and from two huge pages on aligned to one, which the system is asked to use.
class Memory {
   public:
    Memory() = default;
    explicit Memory(int64_t bytes) : bytes_(bytes) {
        const size_t size = size_t(round_up(bytes > 0 ? bytes : 1, 64));
        if (bytes < kMapped) {
            data_ = {static_cast<std::byte*>(std::aligned_alloc(64, size)), Free{nullptr, 0}};
            if (!data_) throw std::bad_alloc();
            return;
        }
        const bool large = bytes >= 2 * kHugePage;
        const size_t mapped = size + (large ? size_t(kHugePage) : 0);  // pages that nothing touches take no memory
        void* map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) throw std::bad_alloc();
        const auto start = reinterpret_cast<uintptr_t>(map);
        const auto at = large ? uintptr_t(round_up(int64_t(start), kHugePage)) : start;
        data_ = {reinterpret_cast<std::byte*>(at), Free{map, mapped}};
#if defined(MADV_HUGEPAGE)
        if (large) madvise(data_.get(), size / size_t(kHugePage) * size_t(kHugePage), MADV_HUGEPAGE);
#endif
    }

    std::byte* get() const { return data_.get(); }
    int64_t bytes() const { return bytes_; }

   private:
    static constexpr int64_t kHugePage = int64_t(2) << 20, kMapped = int64_t(256) << 10;
    struct Free {
        void* map;  // null: from the allocator
        size_t mapped;
        void operator()(std::byte* p) const {
            if (map) {
                munmap(map, mapped);
            } else {
                std::free(p);
            }
        }
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
