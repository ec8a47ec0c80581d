// The pool on its own, for test_pool.py: `walks THREADS` counts units that were done twice, never, or before their time;
// `absent` walks beside a thread that comes to no phase before all are over.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "thread_pool.h"

namespace {

constexpr int kPhases = 40;
constexpr int kUnits = 30;

int walks(int threads) {
    tandem::ThreadPool pool(threads);
    int wrong = 0;
    for (int job = 0; job < 300; ++job) {
        std::vector<int> done(kUnits);
        std::atomic<int> early{0};
        pool.run([&](tandem::ThreadPool::Member& me) {
            for (int phase = 0; phase < kPhases; ++phase) {
                const int units = (job + phase) % 4 == 0 ? phase % 2 : kUnits;
                me.each(units, [&](int64_t u) { ++done[u]; });
                me.each(kUnits, [&](int64_t u) {
                    const int most = units == kUnits ? phase + 1 : phase + (u < units);
                    if (done[u] != most) ++early;
                    done[u] = phase + 1;
                });
            }
        });
        wrong += early;
        for (int count : done) wrong += count != kPhases;
    }
    return wrong;
}

int absent() {
    tandem::ThreadPool pool(2);
    std::atomic<bool> over{false};
    int done = 0;
    pool.run([&](tandem::ThreadPool::Member& me) {
        while (me.thread() == 1 && !over) std::this_thread::yield();
        for (int phase = 0; phase < kPhases; ++phase) me.each(kUnits, [&](int64_t) { ++done; });
        over = true;
    });
    return kPhases * kUnits - done;
}

}  // namespace

int main(int, char** words) {
    std::printf("%d\n", std::string(words[1]) == "absent" ? absent() : walks(std::atoi(words[2])));
}
