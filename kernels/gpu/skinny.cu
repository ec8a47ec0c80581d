// Matrix products of a few rows with packed weights: out = epilogue((x @ w.T) * alpha) for 1 to 64 rows of x.
//
// A block owns TILES tiles of 16 outputs. Its warps split K into SEGMENTS runs of 64-deep steps at fixed places; each warp
// adds its run in order, 16 products a matrix instruction, and the runs are added in order at the end. Neither the number
// of rows nor TILES changes that, and `_linear_kernel` with as many segments gives the same bits from unpacked weights.
//
// Each warp has a ring of steps in shared memory: its tiles' weights and its own 64 columns of x. What a step brings is
// read by all its tiles, so x costs little traffic beside the weights, and a value unpacked once meets every row.
//
// Set on the compiler's command line: FORM (packing.py describes them), TYPE_BF16 (x and dense weights, else float16), NT
// (eights of rows of x), TILES, EPILOGUE, SEGMENTS (warps), DEPTH (steps of the ring), BLOCKS (a multiprocessor at least),
// HAS_ALPHA and MODE (LaunchMode). No header is needed.
#define EPILOGUE_ADD 1
#define EPILOGUE_GATED 2
#define MODE_PLAIN 0

#define FORM_DENSE 0
#define FORM_Q4 1
#define FORM_Q8 2
#define FORM_Q8_MIN 3
#define FORM_Q8_SHORT 4
#define FORM_FP8 5
#define FORM_NVFP4 6

typedef unsigned int u32;
typedef unsigned char byte;

#ifndef EMULATED
__device__ __forceinline__ u32 scale_add(u32 a, u32 b, u32 c) {
    u32 out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

__device__ __forceinline__ u32 scale_by(u32 a, u32 b) {
    u32 out;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

// Both halves the lower one, or the upper one, of `pair`.
__device__ __forceinline__ u32 lower(u32 pair) {
    u32 out;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(out) : "r"(pair));
    return out;
}

__device__ __forceinline__ u32 upper(u32 pair) {
    u32 out;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(out) : "r"(pair));
    return out;
}

#if FORM == FORM_FP8 || FORM == FORM_NVFP4
// Two e4m3 numbers, from the lower or the upper half of `word`, as float16.
__device__ __forceinline__ u32 widen_lower(u32 word) {
    u32 out;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(out) : "r"(word));
    return out;
}

__device__ __forceinline__ u32 widen_upper(u32 word) {
    u32 out;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(out) : "r"(word));
    return out;
}
#endif

__device__ __forceinline__ void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if TYPE_BF16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Four 8 by 8 matrices: registers of the second operand for 8 rows of x and 32 columns.
__device__ __forceinline__ void load_matrix(u32 b[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void copy_async16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_async4(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void start_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ void wait_for_input() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ unsigned short narrow(float value) {
    unsigned short out;
#if TYPE_BF16
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
#endif
    return out;
}

// The same instructions as the Triton kernel's epilogue.
__device__ __forceinline__ float silu_times(float gate, float up) {
    float e;
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(__fmul_rn(-gate, 1.4426950408889634f)));
    float s;
    asm("div.full.f32 %0, %1, %2;" : "=f"(s) : "f"(gate), "f"(__fadd_rn(e, 1.0f)));
    return __fmul_rn(s, up);
}
#endif

// How a form lies in memory: u32 words of a lane's block, and bytes of a tile's scales in a step and in a half of it.
#if FORM == FORM_DENSE
#define BLOCK_WORDS 4
#define SCALE_BYTES 0
#elif FORM == FORM_Q4 || FORM == FORM_NVFP4
#define BLOCK_WORDS 1
#define SCALE_BYTES (FORM == FORM_Q4 ? 128 : 64)
#elif FORM == FORM_FP8
#define BLOCK_WORDS 2
#define SCALE_BYTES 4
#else
#define BLOCK_WORDS 2
#define SCALE_BYTES (FORM == FORM_Q8 ? 64 : 128)
#endif
#define LANE_SCALES (SCALE_BYTES / 16)  // bytes of a lane's row pair in a half
#define WORD_BYTES (BLOCK_WORDS * 512)  // of a tile's step
#define CHUNKS (WORD_BYTES / 512)
#define SCALE_CHUNKS (SCALE_BYTES / 16)
#define SCALE_COPIES ((TILES * SCALE_CHUNKS + 31) / 32)
#define X_OFFSET ((TILES * (WORD_BYTES + SCALE_BYTES) + 127) / 128 * 128)
#define SLOT_BYTES (X_OFFSET + NT * 1024)

#if EPILOGUE == EPILOGUE_GATED
#define PARTS 2
#else
#define PARTS 1
#endif
#define GROUP (TILES / PARTS)  // tiles of 16 outputs that a block finishes
#define SUMS (GROUP * 16 + 4)  // padded against bank conflicts

// The words of one block of 16 columns.
struct Words {
    u32 w[BLOCK_WORDS];
};

// A lane's scales of a half.
struct Scales {
    u32 s[2];
};

__device__ __forceinline__ Words load_words(const byte* words, int block, int lane) {
    Words out;
#if BLOCK_WORDS == 1
    out.w[0] = reinterpret_cast<const u32*>(words)[(block >> 1) * 64 + lane * 2 + (block & 1)];
#elif BLOCK_WORDS == 2
    const uint2 v = reinterpret_cast<const uint2*>(words)[(block >> 1) * 64 + lane * 2 + (block & 1)];
    out.w[0] = v.x;
    out.w[1] = v.y;
#else
    const uint4 v = reinterpret_cast<const uint4*>(words)[block * 32 + lane];
    out.w[0] = v.x;
    out.w[1] = v.y;
    out.w[2] = v.z;
    out.w[3] = v.w;
#endif
    return out;
}

__device__ __forceinline__ Scales load_scales(const byte* scales, int half, int lane) {
    Scales out = {{0, 0}};
#if FORM == FORM_FP8
    out.s[0] = *reinterpret_cast<const u32*>(scales);
#elif LANE_SCALES == 8
    const uint2 v = reinterpret_cast<const uint2*>(scales)[half * 8 + (lane >> 2)];
    out.s[0] = v.x;
    out.s[1] = v.y;
#elif LANE_SCALES == 4
    out.s[0] = reinterpret_cast<const u32*>(scales)[half * 8 + (lane >> 2)];
#endif
    return out;
}

// Four registers of the first operand. `odd`: the second block of the half.
__device__ __forceinline__ void unpack(const Words& words, const Scales& scales, int odd, u32 a[4]) {
#if FORM == FORM_DENSE
    a[0] = words.w[0];
    a[1] = words.w[1];
    a[2] = words.w[2];
    a[3] = words.w[3];
#elif FORM == FORM_Q4
    const u32 word = words.w[0];
    const u32 swapped = __byte_perm(word, 0, 0x2301);
    a[0] = scale_add(word & 0x03c003c0, lower(scales.s[0]), upper(scales.s[0]));
    a[1] = scale_add(word & 0x003c003c, lower(scales.s[1]), upper(scales.s[1]));
    a[2] = scale_add(swapped & 0x03c003c0, lower(scales.s[0]), upper(scales.s[0]));
    a[3] = scale_add(swapped & 0x003c003c, lower(scales.s[1]), upper(scales.s[1]));
#elif FORM == FORM_NVFP4
    const u32 word = words.w[0];
    const u32 pair = odd ? widen_upper(scales.s[0]) : widen_lower(scales.s[0]);
    a[0] = scale_by(word & 0x8e008e00, lower(pair));
    a[1] = scale_by(word << 3 & 0x8e008e00, upper(pair));
    a[2] = scale_by((word << 9 & 0x0e000e00) | (word << 1 & 0x80008000), lower(pair));
    a[3] = scale_by((word << 6 & 0x0e000e00) | (word << 2 & 0x80008000), upper(pair));
#elif FORM == FORM_FP8
    a[0] = scale_by(widen_lower(words.w[0]), scales.s[0]);
    a[1] = scale_by(widen_upper(words.w[0]), scales.s[0]);
    a[2] = scale_by(widen_lower(words.w[1]), scales.s[0]);
    a[3] = scale_by(widen_upper(words.w[1]), scales.s[0]);
#else
#if FORM == FORM_Q8_MIN
    const u32 low = lower(scales.s[0]), low_minimum = upper(scales.s[0]);
    const u32 high = lower(scales.s[1]), high_minimum = upper(scales.s[1]);
#else
    const u32 pair = FORM == FORM_Q8_SHORT && odd ? scales.s[1] : scales.s[0];
    const u32 low = lower(pair), high = upper(pair);
    // -128 times the scale: stored times 2^24, so times -2^-17.
    const u32 minima = scale_by(pair, 0x80808080);
    const u32 low_minimum = lower(minima), high_minimum = upper(minima);
#endif
    a[0] = scale_add(words.w[0] & 0x00ff00ff, low, low_minimum);
    a[1] = scale_add(__byte_perm(words.w[0], 0, 0x4341), high, high_minimum);
    a[2] = scale_add(words.w[1] & 0x00ff00ff, low, low_minimum);
    a[3] = scale_add(__byte_perm(words.w[1], 0, 0x4341), high, high_minimum);
#endif
}

#ifdef SKINNY
extern "C" __global__ void __launch_bounds__(SEGMENTS * 32, BLOCKS)
    skinny(const byte* __restrict__ w, const byte* __restrict__ scales, const float* __restrict__ alpha,
           const unsigned short* __restrict__ x, void* out, int rows, int n, int k, int x_stride, int out_stride) {
    extern __shared__ __align__(128) byte shared[];
    const int lane = threadIdx.x & 31;
    const int segment = threadIdx.x >> 5;
    const int steps = k >> 6;
    const int begin = steps * segment / SEGMENTS;
    const int count = steps * (segment + 1) / SEGMENTS - begin;
    const int tiles = n >> 4;  // of a part
    const int first = blockIdx.x * GROUP;
    byte* const ring = shared + segment * (DEPTH * SLOT_BYTES);
    const u32 ring_at = (u32)__cvta_generic_to_shared(ring);

    // 1. Where this lane's share of every copy comes from. A block past the last tile repeats it and stores nothing.
    const byte* wp[TILES];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int tile = t / GROUP * tiles + min(first + t % GROUP, tiles - 1);
        wp[t] = w + ((long long)tile * steps + begin) * WORD_BYTES + lane * 16;
    }
#if SCALE_BYTES == 4
    const int scale_tile = lane < TILES ? lane / GROUP * tiles + min(first + lane % GROUP, tiles - 1) : 0;
    const byte* sp = scales + ((long long)scale_tile * steps + begin) * 4;
#elif SCALE_BYTES
    const byte* sp[SCALE_COPIES];
#pragma unroll
    for (int i = 0; i < SCALE_COPIES; i++) {
        const int t = min((lane + 32 * i) / SCALE_CHUNKS, TILES - 1);
        const int tile = t / GROUP * tiles + min(first + t % GROUP, tiles - 1);
        sp[i] = scales + ((long long)tile * steps + begin) * SCALE_BYTES + (lane & (SCALE_CHUNKS - 1)) * 16;
    }
#endif
    auto fetch_weights = [&](int step, u32 slot) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                copy_async16(slot + t * WORD_BYTES + c * 512 + lane * 16, wp[t] + step * WORD_BYTES + c * 512);
#if SCALE_BYTES == 4
        if (lane < TILES) copy_async4(slot + TILES * WORD_BYTES + lane * 4, sp + step * 4);
#elif SCALE_BYTES
#pragma unroll
        for (int i = 0; i < SCALE_COPIES; i++)
            if (lane + 32 * i < TILES * SCALE_CHUNKS)
                copy_async16(slot + TILES * WORD_BYTES + (lane + 32 * i) * 16, sp[i] + step * SCALE_BYTES);
#endif
    };
    // Rows of 128 bytes, their 16-byte pieces exchanged by row so that no two rows of an 8 by 8 matrix share banks.
    const int x_row = lane >> 3, x_piece = lane & 7;
    const unsigned short* const xp = x + (long long)x_row * x_stride + begin * 64 + x_piece * 8;
    auto fetch_x = [&](int step, u32 slot) {
#pragma unroll
        for (int j = 0; j < 2 * NT; j++) {
            const int row = x_row + 4 * j;
            if (row < rows)
                copy_async16(slot + X_OFFSET + row * 128 + ((x_piece ^ (row & 7)) << 4),
                             xp + (long long)(4 * j) * x_stride + step * 64);
        }
    };

    // 2. Weights do not depend on the kernel before: they are on their way before anything waits.
#pragma unroll
    for (int d = 0; d < DEPTH - 1; d++) {
        if (d < count) fetch_weights(d, ring_at + d * SLOT_BYTES);
        end_group();
    }
#if MODE != MODE_PLAIN
    start_dependents();
    wait_for_input();
#endif
#pragma unroll
    for (int d = 0; d < DEPTH - 1; d++) {
        if (d < count) fetch_x(d, ring_at + d * SLOT_BYTES);
        end_group();
    }
    float acc[TILES][NT][4];
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) acc[t][i][j] = 0.0f;

    // 3. One pass over this warp's run of K. Rows of x past the last are whatever the ring holds: columns of the matrix
    // instruction that nothing reads.
    const u32 x_at = X_OFFSET + (lane & 7) * 128 + (((lane >> 3) ^ (lane & 7)) << 4);
    int slot = 0;
    for (int step = 0; step < count; step++) {
        wait_groups<DEPTH - 2>();
        __syncwarp();
        const int next = step + DEPTH - 1;
        if (next < count) {
            const u32 free_slot = ring_at + (slot == 0 ? DEPTH - 1 : slot - 1) * SLOT_BYTES;
            fetch_weights(next, free_slot);
            fetch_x(next, free_slot);
        }
        end_group();
        const byte* const now = ring + slot * SLOT_BYTES;
        const u32 x_now = ring_at + slot * SLOT_BYTES + x_at;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 b[NT][4];
#pragma unroll
            for (int i = 0; i < NT; i++) load_matrix(b[i], (x_now ^ (half << 6)) + i * 1024);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const byte* const words = now + t * WORD_BYTES;
                const Scales s = load_scales(now + TILES * WORD_BYTES + t * SCALE_BYTES, half, lane);
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    u32 a[4];
                    unpack(load_words(words, 2 * half + odd, lane), s, odd, a);
#pragma unroll
                    for (int i = 0; i < NT; i++) multiply(acc[t][i], a, b[i][2 * odd], b[i][2 * odd + 1]);
                }
            }
        }
        slot = slot == DEPTH - 1 ? 0 : slot + 1;
    }

    // 4. Add the runs in order and finish: sums[part][segment][x row][output], in the rings' place.
    wait_groups<0>();
    __syncthreads();
    float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[((t / GROUP * SEGMENTS + segment) * (NT * 8) + i * 8 + 2 * (lane & 3) + (j & 1)) * SUMS +
                     t % GROUP * 16 + (lane >> 2) + 8 * (j >> 1)] = acc[t][i][j];
    __syncthreads();
    for (int e = threadIdx.x; e < NT * 8 * GROUP * 16; e += SEGMENTS * 32) {
        const int row = e / (GROUP * 16);
        const int column = e % (GROUP * 16);
        const int output = first * 16 + column;
        if (row >= rows) break;
        if (output >= n) continue;
        float total[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            const float* const run = sums + (p * SEGMENTS * NT * 8 + row) * SUMS + column;
            total[p] = run[0];
#pragma unroll
            for (int s = 1; s < SEGMENTS; s++) total[p] = __fadd_rn(total[p], run[s * NT * 8 * SUMS]);
#if HAS_ALPHA
            total[p] = __fmul_rn(total[p], alpha[p * n + output]);
#endif
        }
        const long long at = (long long)row * out_stride + output;
#if EPILOGUE == EPILOGUE_GATED
        reinterpret_cast<unsigned short*>(out)[at] = narrow(silu_times(total[0], total[1]));
#elif EPILOGUE == EPILOGUE_ADD
        float* o = reinterpret_cast<float*>(out) + at;
        *o = __fadd_rn(*o, total[0]);
#else
        reinterpret_cast<float*>(out)[at] = total[0];
#endif
    }
}
#else
// Unpacked weights for large products: w[tile * 16 + r][k], one warp a step.
extern "C" __global__ void unpack_rows(const byte* __restrict__ w, const byte* __restrict__ scales, u32* __restrict__ out,
                                       int tiles, int k) {
#if MODE != MODE_PLAIN
    wait_for_input();
    start_dependents();
#endif
    const int lane = threadIdx.x & 31;
    const int steps = k >> 6;
    const long long warps = (long long)gridDim.x * (blockDim.x >> 5);
    for (long long i = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); i < (long long)tiles * steps;
         i += warps) {
        const byte* const words = w + i * WORD_BYTES;
        const long long row = (i / steps) * 16 + (lane >> 2);
        const long long at = (row * k + (i % steps) * 64) / 2 + (lane & 3);
#pragma unroll
        for (int block = 0; block < 4; block++) {
            u32 a[4];
            unpack(load_words(words, block, lane), load_scales(scales + i * SCALE_BYTES, block >> 1, lane), block & 1, a);
            out[at + 8 * block] = a[0];
            out[at + 4LL * k + 8 * block] = a[1];
            out[at + 8 * block + 4] = a[2];
            out[at + 4LL * k + 8 * block + 4] = a[3];
        }
    }
}
#endif
