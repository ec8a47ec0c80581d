// CUDA on the host, for skinny.cu: a block's threads are fibers that meet at barriers; asynchronous copies land only when
// their group is waited for. Sums of a matrix instruction are float32 in order, so values are near the card's, bits not.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define EMULATED
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __align__(n)
#define __launch_bounds__(...)

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Index { int x; };
static Index threadIdx, blockIdx, gridDim, blockDim;
alignas(128) unsigned char shared[1 << 18];

struct Copy { size_t to; const void* from; int bytes; };
struct Operands { unsigned a[4], b[2]; unsigned at; };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
    bool done = false;
};

struct Barrier { int size = 0, count = 0, generation = 0; };

static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static Barrier block;
static Operands operands[1024];
static ucontext_t scheduler;
static int current;

static void meet(Barrier& barrier) {
    const int generation = barrier.generation;
    if (++barrier.count == barrier.size) {
        barrier.count = 0;
        barrier.generation++;
    }
    while (barrier.generation == generation) swapcontext(&fibers[current].context, &scheduler);
}

static void __syncwarp() { meet(warps[current >> 5]); }
static void __syncthreads() { meet(block); }
static size_t __cvta_generic_to_shared(const void* p) { return (const unsigned char*)p - shared; }
static int min(int a, int b) { return a < b ? a : b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fmul_rn(float a, float b) { return a * b; }

static unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}

static float half_of(unsigned word, int i) {
    const uint16_t bits = (uint16_t)(word >> 16 * i);
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return (float)value;
}

static unsigned half_bits(double value) {
    const _Float16 narrowed = (_Float16)value;
    uint16_t bits;
    std::memcpy(&bits, &narrowed, 2);
    return bits;
}

static unsigned scale_add(unsigned a, unsigned b, unsigned c) {
    unsigned out = 0;
    for (int i = 0; i < 2; i++) out |= half_bits((double)half_of(a, i) * half_of(b, i) + half_of(c, i)) << 16 * i;
    return out;
}

static unsigned scale_by(unsigned a, unsigned b) {
    unsigned out = 0;
    for (int i = 0; i < 2; i++) out |= half_bits((double)half_of(a, i) * half_of(b, i)) << 16 * i;
    return out;
}

static unsigned lower(unsigned pair) { return (pair & 0xffff) * 0x10001u; }
static unsigned upper(unsigned pair) { return (pair >> 16) * 0x10001u; }

static unsigned widen_byte(unsigned b) {  // e4m3, no infinities
    const int exponent = b >> 3 & 15, mantissa = b & 7;
    const double size = exponent ? std::ldexp(1.0 + mantissa / 8.0, exponent - 7) : std::ldexp(mantissa / 8.0, -6);
    return half_bits(b & 128 ? -size : size);
}

static unsigned widen_lower(unsigned word) { return widen_byte(word & 255) | widen_byte(word >> 8 & 255) << 16; }
static unsigned widen_upper(unsigned word) { return widen_lower(word >> 16); }

static void multiply(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    const int lane = current & 31, warp = current & ~31;
    std::memcpy(operands[current].a, a, 16);
    operands[current].b[0] = b0;
    operands[current].b[1] = b1;
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        const int row = (lane >> 2) + 8 * (i >> 1), column = 2 * (lane & 3) + (i & 1);
        for (int k = 0; k < 16; k++) {
            const int pair = k >> 3, quarter = (k & 7) >> 1;
            const Operands& from = operands[warp + (row & 7) * 4 + quarter];
            const Operands& other = operands[warp + column * 4 + quarter];
            c[i] += half_of(from.a[2 * pair + (row >> 3)], k & 1) * half_of(other.b[pair], k & 1);
        }
    }
    __syncwarp();
}

static void load_matrix(unsigned b[4], unsigned at) {
    const int lane = current & 31, warp = current & ~31;
    operands[current].at = at;
    __syncwarp();
    for (int m = 0; m < 4; m++)
        std::memcpy(&b[m], shared + operands[warp + 8 * m + (lane >> 2)].at + 4 * (lane & 3), 4);
    __syncwarp();
}

static void copy_async16(unsigned to, const void* from) { fibers[current].open.push_back({to, from, 16}); }
static void copy_async4(unsigned to, const void* from) { fibers[current].open.push_back({to, from, 4}); }

static void end_group() {
    fibers[current].groups.push_back(std::move(fibers[current].open));
    fibers[current].open.clear();
}

template <int LEFT>
static void wait_groups() {
    auto& groups = fibers[current].groups;
    while ((int)groups.size() > LEFT) {
        for (const Copy& c : groups.front()) std::memcpy(shared + c.to, c.from, c.bytes);
        groups.erase(groups.begin());
    }
}

static void start_dependents() {}
static void wait_for_input() {}
static unsigned short narrow(float value) { return (unsigned short)half_bits(value); }
static float silu_times(float gate, float up) { return gate / (1.0f + std::exp(-gate)) * up; }

template <class Body>
static void run_blocks(int grid, int threads, Body body) {
    static Body* work;
    work = &body;
    gridDim.x = grid;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++) {
        std::memset(shared, 0xff, sizeof shared);
        fibers = std::vector<Fiber>(threads);
        warps.assign(threads / 32, Barrier{32});
        block = Barrier{threads};
        for (Fiber& f : fibers) {
            f.stack.resize(1 << 16);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.data();
            f.context.uc_stack.ss_size = 1 << 16;
            f.context.uc_link = &scheduler;
            makecontext(&f.context, +[] { (*work)(); fibers[current].done = true; }, 0);
        }
        for (int left = threads; left;)
            for (current = 0, left = 0; current < threads; current++)
                if (!fibers[current].done) {
                    threadIdx.x = current;
                    swapcontext(&scheduler, &fibers[current].context);
                    left += !fibers[current].done;
                }
    }
}
