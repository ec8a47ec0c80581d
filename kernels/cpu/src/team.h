// A team of threads that walks one pass together: bounded spinning, then sleep, and a shared ticket for dividing work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tandem {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A value that threads wait on: they spin `spins` times, then sleep until it changes.
class Gate {
  public:
    uint32_t now() const { return value_.load(std::memory_order_acquire); }

    void open() {
        value_.fetch_add(1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) {
            std::lock_guard<std::mutex> hold(mutex_);
            wake_.notify_all();
        }
    }

    void wait(uint32_t seen, int spins) {
        for (int i = 0; i < spins; ++i) {
            if (now() != seen) return;
            relax();
        }
        std::unique_lock<std::mutex> hold(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(hold, [&] { return value_.load(std::memory_order_seq_cst) != seen; });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

  private:
    alignas(64) std::atomic<uint32_t> value_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
};

class Team {
  public:
    explicit Team(int threads) : size_(threads < 1 ? 1 : threads) {
        for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { serve(i); });
    }
    ~Team() {
        job_ = nullptr;
        start_.open();
        for (auto& w : workers_) w.join();
    }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Run `job(thread)` on every thread of the team, the caller being thread 0; returns when all are done.
    void run(const std::function<void(int)>& job) {
        if (size_ == 1) {
            ticket_.store(0, std::memory_order_relaxed);
            job(0);
            return;
        }
        ticket_.store(0, std::memory_order_relaxed);
        job_ = &job;
        start_.open();
        job(0);
        barrier();
    }

    // The next undone unit of the phase.
    int next() { return ticket_.fetch_add(1, std::memory_order_relaxed); }

    // All threads have finished the phase; the ticket starts again at 0.
    void barrier() {
        if (size_ == 1) {
            ticket_.store(0, std::memory_order_relaxed);
            return;
        }
        const uint32_t seen = phase_.now();
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            ticket_.store(0, std::memory_order_relaxed);
            phase_.open();
        } else {
            phase_.wait(seen, kPhaseSpins);
        }
    }

  private:
    // Long enough for the other threads' share of a phase, short enough not to hold a core that another process wants.
    static constexpr int kPhaseSpins = 2000;
    static constexpr int kJobSpins = 4000;

    void serve(int thread) {
        uint32_t seen = 0;
        for (;;) {
            start_.wait(seen, kJobSpins);
            ++seen;
            if (!job_) return;
            (*job_)(thread);
            barrier();
        }
    }

    const int size_;
    const std::function<void(int)>* job_ = nullptr;
    Gate start_;
    Gate phase_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> ticket_{0};
    std::vector<std::thread> workers_;
};

}  // namespace tandem
