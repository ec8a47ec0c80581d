// A pool of threads that walks one batch together. Work is claimed unit by unit, and a phase is over when its units are
// done, whoever did them: a thread that has lost its core holds up nothing but the unit that it was at.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
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

// Where threads wait for what others store: they spin `spins` times, then sleep.
class Event {
  public:
    // `ready` reads sequentially consistent atomics only.
    template <class Ready>
    void wait(Ready ready, int spins) {
        for (int i = 0; i < spins; ++i) {
            if (ready()) return;
            relax();
        }
        std::unique_lock<std::mutex> hold(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        rung_.wait(hold, ready);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

    // To be called after a sequentially consistent store of what makes a waiter ready.
    void ring() {
        if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
        std::lock_guard<std::mutex> hold(mutex_);
        rung_.notify_all();
    }

  private:
    alignas(64) std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable rung_;
};

class ThreadPool {
  public:
    // One thread's way through a job.
    class Member {
      public:
        int thread() const { return thread_; }
        int size() const { return pool_.size_; }

        // Compute fn(0) to fn(units - 1), divided among the pool; returns when all are done. Every member comes to the
        // same phases with the same `units`; between them a member reads nothing that a phase writes.
        template <class Fn>
        void each(int64_t units, Fn fn) {
            if (pool_.size_ == 1) {
                for (int64_t u = 0; u < units; ++u) fn(u);
                return;
            }
            if (units == 0) return;
            const uint32_t phase = phase_++;
            int64_t mine = 0;
            uint64_t ticket = pool_.ticket_.load(std::memory_order_acquire);
            while (phase_of(ticket) == phase && unit_of(ticket) < units) {
                if (!pool_.ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
                fn(unit_of(ticket));
                ++mine;
                ticket = pool_.ticket_.load(std::memory_order_acquire);
            }
            pool_.end(phase, mine, units);
        }

      private:
        friend class ThreadPool;
        Member(ThreadPool& pool, int thread, uint32_t phase) : pool_(pool), thread_(thread), phase_(phase) {}

        ThreadPool& pool_;
        const int thread_;
        uint32_t phase_;
    };

    using Job = std::function<void(Member&)>;

    explicit ThreadPool(int threads) : size_(threads < 1 ? 1 : threads) {
        for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { serve(i); });
    }
    ~ThreadPool() {
        ending_.store(true, std::memory_order_seq_cst);
        start_.ring();
        for (auto& w : workers_) w.join();
    }
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    // Run `job` on the caller, as thread 0, and on every thread of the pool that is there in time; returns when all its
    // phases are done and nobody is in it.
    void run(const Job& job) {
        Member me(*this, 0, phase_of(ticket_.load(std::memory_order_acquire)));
        if (size_ == 1) return job(me);
        job_ = &job;
        first_ = me.phase_;
        jobs_.fetch_add(1, std::memory_order_seq_cst);
        start_.ring();
        job(me);
        jobs_.fetch_add(1, std::memory_order_seq_cst);
        left_.wait([this] { return inside_.load(std::memory_order_seq_cst) == 0; }, kPhaseSpins);
    }

  private:
    // Long enough for the other threads' share of a phase, short enough not to hold a core that another process wants.
    static constexpr int kPhaseSpins = 2000;
    static constexpr int kJobSpins = 4000;

    static uint32_t phase_of(uint64_t ticket) { return uint32_t(ticket >> 32); }
    static int64_t unit_of(uint64_t ticket) { return int64_t(uint32_t(ticket)); }

    // A member has done `mine` of the phase's units and found no more: end the phase where they were its last, else wait.
    void end(uint32_t phase, int64_t mine, int64_t units) {
        if (mine > 0 && done_.fetch_add(mine, std::memory_order_acq_rel) + mine == units) {
            done_.store(0, std::memory_order_relaxed);
            ticket_.store(uint64_t(phase + 1) << 32, std::memory_order_seq_cst);
            phases_.ring();
            return;
        }
        phases_.wait([&] { return phase_of(ticket_.load(std::memory_order_seq_cst)) != phase; }, kPhaseSpins);
    }

    void serve(int thread) {
        uint64_t seen = 0;
        const auto called = [&] {
            const uint64_t now = jobs_.load(std::memory_order_seq_cst);
            return (now % 2 == 1 && now != seen) || ending_.load(std::memory_order_seq_cst);
        };
        for (;;) {
            start_.wait(called, kJobSpins);
            if (ending_.load(std::memory_order_seq_cst)) return;
            // Said before the look: either `run` sees that someone is inside, or that one sees that the job has closed.
            inside_.fetch_add(1, std::memory_order_seq_cst);
            seen = jobs_.load(std::memory_order_seq_cst);
            if (seen % 2 == 1) {
                Member me(*this, thread, first_);
                (*job_)(me);
            }
            if (inside_.fetch_sub(1, std::memory_order_seq_cst) == 1) left_.ring();
        }
    }

    const int size_;
    const Job* job_ = nullptr;
    uint32_t first_ = 0;  // the job's first phase
    Event start_, phases_, left_;
    // The phase, and below it the next unit that nobody has claimed: in one word, so that a late claim finds its phase over.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    alignas(64) std::atomic<uint64_t> jobs_{0};  // odd while a job is open
    std::atomic<int> inside_{0};
    std::atomic<bool> ending_{false};
    std::vector<std::thread> workers_;
};

}  // namespace tandem
