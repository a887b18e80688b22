#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace stolon {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// How long to spin, and then to offer the core to others, before sleeping.
struct Patience {
    microseconds spin;
    microseconds yield;
};

constexpr Patience kBetween{microseconds(10), microseconds(200)};  // a worker between runs
constexpr Patience kCrowded{microseconds(0), microseconds(100)};  // more lanes than cores
// Within a run. A lane that waited for longer spins for less the next time: its fellow may be waiting for
// the very core that it holds.
constexpr microseconds kMostSpin{40}, kLeastSpin{2}, kYield{1000};

using Word = std::atomic<uint32_t>;

// Wait until `word` is not `old`; whether that came while spinning. Whoever changes it calls notify_all.
bool wait_change(const Word& word, uint32_t old, const Patience& patience) {
    if (patience.spin.count() > 0) {
        for (int i = 0; i < 128; ++i) {
            if (word.load(std::memory_order_acquire) != old) return true;
            pause();
        }
    }
    const Clock::time_point start = Clock::now();
    for (;;) {
        const auto waited = Clock::now() - start;
        if (waited >= patience.spin + patience.yield) break;
        const bool spinning = waited < patience.spin;
        if (!spinning) sched_yield();
        for (int i = 0; i < 32; ++i) {
            if (word.load(std::memory_order_acquire) != old) return spinning;
            pause();
        }
    }
    while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
    return false;
}

int usable_cores() {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return int(std::thread::hardware_concurrency());
}

// Thrown out of a barrier whose run has failed in another lane.
struct Abandoned {};

struct FreeAligned {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(64)); }
};

// The threads of one process. A forked child has none of them and makes its own.
class Crew {
   public:
    Crew(Team* team, int size, size_t scratch_bytes)
        : team_(team),
          size_(size),
          process_(getpid()),
          crowded_(size > usable_cores()),
          spin_(size_t(size)) {
        reserve_scratch(scratch_bytes);
        workers_.reserve(size_t(size - 1));
        // Signals are for the threads of the program, not for these.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (int lane = 1; lane < size; ++lane) workers_.emplace_back([this, lane] { work(lane); });
        } catch (...) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            dismiss();
            throw;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Crew() { dismiss(); }

    bool here() const { return process_ == getpid(); }

    std::recursive_mutex& mutex() { return mutex_; }

    void reserve_scratch(size_t bytes) {
        std::lock_guard<std::recursive_mutex> lock(mutex_);
        if (scratch_ && bytes <= scratch_bytes_) return;
        const size_t each = std::max<size_t>((bytes + 4095) / 4096 * 4096, 4096);
        scratch_.reset(static_cast<std::byte*>(::operator new(each * size_t(size_), std::align_val_t(64))));
        scratch_bytes_ = each;
    }

    void run(const std::function<void(const Lane&)>& body) {
        std::lock_guard<std::recursive_mutex> lock(mutex_);
        if (running_) throw std::logic_error("a team can't be run from inside its own run");
        running_ = true;
        body_ = &body;
        unfinished_.store(uint32_t(size_ - 1), std::memory_order_relaxed);
        if (size_ > 1) {
            run_number_.fetch_add(1, std::memory_order_seq_cst);
            run_number_.notify_all();
        }
        execute(0);
        while (const uint32_t left = unfinished_.load(std::memory_order_acquire)) {
            wait(0, unfinished_, left);
        }
        body_ = nullptr;
        running_ = false;
        if (broken_.load(std::memory_order_relaxed)) {
            arrived_.store(0, std::memory_order_relaxed);
            broken_.store(false, std::memory_order_relaxed);
            std::exception_ptr error = std::move(error_);
            error_ = nullptr;
            std::rethrow_exception(error);
        }
    }

    void barrier(int lane) {
        // The phase can't change before this lane has arrived, but for a failure.
        const uint32_t phase = phase_.load(std::memory_order_acquire);
        if (broken_.load(std::memory_order_relaxed)) throw Abandoned{};
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == uint32_t(size_)) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.fetch_add(1, std::memory_order_seq_cst);
            phase_.notify_all();
        } else {
            wait(lane, phase_, phase);
        }
        if (broken_.load(std::memory_order_relaxed)) throw Abandoned{};
    }

   private:
    void wait(int lane, const Word& word, uint32_t old) {
        if (crowded_) {
            wait_change(word, old, kCrowded);
            return;
        }
        microseconds& spin = spin_[size_t(lane)].most;
        const bool soon = wait_change(word, old, {spin, kYield});
        spin = soon ? std::min(kMostSpin, spin + microseconds(2)) : std::max(kLeastSpin, spin / 2);
    }

    void execute(int index) noexcept {
        try {
            (*body_)(Lane{index, size_, team_, scratch_.get() + scratch_bytes_ * size_t(index), scratch_bytes_});
        } catch (const Abandoned&) {
        } catch (...) {
            fail(std::current_exception());
        }
    }

    // The first error is the run's; lanes that wait for this one are let go.
    void fail(std::exception_ptr error) noexcept {
        {
            std::lock_guard<std::mutex> lock(error_mutex_);
            if (!error_) error_ = std::move(error);
        }
        broken_.store(true, std::memory_order_seq_cst);
        phase_.fetch_add(1, std::memory_order_seq_cst);
        phase_.notify_all();
    }

    void work(int index) {
        uint32_t seen = 0;
        for (;;) {
            wait_change(run_number_, seen, crowded_ ? kCrowded : kBetween);
            ++seen;  // a run begins only when every lane has finished the one before
            if (dismissed_) return;
            execute(index);
            unfinished_.fetch_sub(1, std::memory_order_seq_cst);
            unfinished_.notify_all();
        }
    }

    void dismiss() {
        dismissed_ = true;
        run_number_.fetch_add(1, std::memory_order_seq_cst);
        run_number_.notify_all();
        for (std::thread& worker : workers_) worker.join();
        workers_.clear();
    }

    Team* const team_;
    const int size_;
    size_t scratch_bytes_ = 0;
    const pid_t process_;
    const bool crowded_;
    std::unique_ptr<std::byte, FreeAligned> scratch_;
    struct alignas(64) Spin {
        microseconds most = kMostSpin;
    };
    std::vector<Spin> spin_;
    std::vector<std::thread> workers_;
    std::recursive_mutex mutex_;
    std::mutex error_mutex_;
    std::exception_ptr error_;
    const std::function<void(const Lane&)>* body_ = nullptr;
    bool running_ = false;
    bool dismissed_ = false;

    // Each on a cache line of its own: they are written by different lanes.
    alignas(64) Word run_number_{0};
    alignas(64) Word unfinished_{0};
    alignas(64) Word arrived_{0};
    alignas(64) Word phase_{0};
    alignas(64) std::atomic<bool> broken_{false};
};

}  // namespace

struct Team::Impl {
    int size;
    std::atomic<size_t> scratch_bytes;
    std::atomic<Crew*> crew{nullptr};

    // The crew of this process. After a fork the parent's is left alone: its threads aren't here, and
    // its locks are in an unknown state.
    Crew& here(Team* team) {
        Crew* found = crew.load(std::memory_order_acquire);
        if (found->here()) return *found;
        auto made = std::make_unique<Crew>(team, size, scratch_bytes);
        if (crew.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return *made.release();
        return *found;
    }
};

Team::Team(int threads, size_t scratch_bytes_per_lane) : impl_(std::make_unique<Impl>()) {
    if (threads < 1 || threads > kMaxThreads) {
        throw std::invalid_argument("Team: threads is " + std::to_string(threads) + ", outside [1, " +
                                    std::to_string(kMaxThreads) + "]");
    }
    impl_->size = threads;
    impl_->scratch_bytes = scratch_bytes_per_lane;
    impl_->crew = new Crew(this, threads, scratch_bytes_per_lane);
}

Team::~Team() {
    Crew* crew = impl_->crew.load();
    if (crew->here()) delete crew;
}

int Team::size() const { return impl_->size; }

std::unique_lock<std::recursive_mutex> Team::hold() {
    return std::unique_lock<std::recursive_mutex>(impl_->here(this).mutex());
}

void Team::reserve_scratch(size_t bytes_per_lane) {
    impl_->here(this).reserve_scratch(bytes_per_lane);
    size_t known = impl_->scratch_bytes;
    while (known < bytes_per_lane && !impl_->scratch_bytes.compare_exchange_weak(known, bytes_per_lane)) {
    }
}

void Team::run(const std::function<void(const Lane&)>& body) { impl_->here(this).run(body); }

void Team::barrier(int lane) { impl_->crew.load(std::memory_order_relaxed)->barrier(lane); }

}  // namespace stolon
