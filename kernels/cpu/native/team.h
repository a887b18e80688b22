// A small team of threads that runs one function on all of its lanes at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace stolon {

class Team;

// One thread's place in a running team. Kernels are called by every lane with the same arguments and
// divide the work among themselves; which lane does what never changes a bit of any result.
struct Lane {
    int index;
    int count;
    Team* team;
    std::byte* scratch;  // 64-byte aligned, this lane's own
    size_t scratch_bytes;

    // Wait until all lanes are here. What any lane wrote before is visible to all after.
    void barrier() const;
    // The next unclaimed item of a work list. `counter` starts at 0, and all lanes use the same one.
    static int64_t claim(std::atomic<int64_t>& counter, int64_t n = 1) {
        return counter.fetch_add(n, std::memory_order_relaxed);
    }
    // The next unclaimed items of `total`: half of an even share of what is left, so a lane reads what lies together for as
    // long as there is much of it, and all lanes end together. (Guided self-scheduling, Polychronopoulos and Kuck 1987.)
    struct Run {
        int64_t begin, end;
    };
    Run claim_run(std::atomic<int64_t>& counter, int64_t total) const {
        int64_t begin = counter.load(std::memory_order_relaxed), end;
        do {
            if (begin >= total) return {total, total};
            end = begin + half_share(total - begin);
        } while (!counter.compare_exchange_weak(begin, end, std::memory_order_relaxed));
        return {begin, end};
    }
    // Where this lane's first run begins if lanes come in their order, or near it.
    int64_t likely_first(int64_t total) const { return std::min(index * half_share(total), total - 1); }

private:
    int64_t half_share(int64_t left) const { return (left + 2 * count - 1) / (2 * count); }
};

class Team {
   public:
    static constexpr int kMaxThreads = 256;

    // `threads` lanes; the thread that calls `run` is lane 0.
    Team(int threads, size_t scratch_bytes_per_lane);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const;
    // Run `body` on every lane; returns when all are done. One caller at a time (a second one waits).
    // What a lane throws is thrown here, when every lane has stopped. After a fork the child has threads
    // of its own from its first run on.
    void run(const std::function<void(const Lane&)>& body);
    // Keep other callers out of `run` over several runs of this one.
    std::unique_lock<std::recursive_mutex> hold();
    // Make every lane's scratch at least this large.
    void reserve_scratch(size_t bytes_per_lane);
    void barrier(int lane);

   private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

inline void Lane::barrier() const {
    if (count > 1) team->barrier(index);
}

}  // namespace stolon
