// Skinny matrix products from packed weights: out = epilogue(x @ w.T) for 1 to 32 rows of x.
//
// A block owns 16 outputs. Its warps split K into SEGMENTS runs of 64-deep steps at fixed places; each warp adds its run
// in order, 16 products a matrix instruction, and the runs are added in order at the end. The number of rows never
// changes that, and `_linear_kernel` with as many segments gives the same bits from unpacked weights.
//
// Weights are packed so that a lane's 16-byte load is what the matrix instruction wants in its registers: for 4-bit
// weights a whole step (four instructions' worth), for 16-bit weights one instruction's.

// Set on the compiler's command line: FORM_Q4 (else 16-bit weights), TYPE_BF16 (else float16), NT (eights of rows of x),
// EPILOGUE, SEGMENTS (warps), DEPTH (steps in flight), BLOCKS (a multiprocessor at least) and MODE (LaunchMode; weights are
// on their way before the wait, so a product may start early). No header is needed.
#define EPILOGUE_STORE 0
#define EPILOGUE_ADD 1
#define EPILOGUE_GATED 2
#define MODE_PLAIN 0

typedef unsigned int u32;

#if FORM_Q4
#define LOADS 1
#else
#define LOADS 4
#endif

__device__ __forceinline__ u32 and_or(u32 word, u32 mask, u32 bits) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(word), "r"(mask), "r"(bits));
    return out;
}

__device__ __forceinline__ u32 subtract(u32 a, u32 b) {
    u32 out;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

__device__ __forceinline__ u32 scale_add(u32 a, u32 b, u32 c) {
    u32 out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

// Four registers of the first operand from eight 4-bit values: value = quant * scale + minimum, rounded once.
// `low` and `high` are (scale, minimum) in float16 of the lane's two rows. A quant in the mantissa of 1024 is exact.
__device__ __forceinline__ void unpack(u32 word, u32 low, u32 high, u32 a[4]) {
    const u32 low_scale = __byte_perm(low, 0, 0x1010), low_minimum = __byte_perm(low, 0, 0x3232);
    const u32 high_scale = __byte_perm(high, 0, 0x1010), high_minimum = __byte_perm(high, 0, 0x3232);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 q0 = subtract(and_or(word, 0x000f000f, 0x64006400), 0x64006400);
        const u32 q1 = scale_add(and_or(word, 0x00f000f0, 0x64006400), 0x2c002c00, 0xd400d400);  // / 16 - 64
        a[2 * half] = scale_add(q0, low_scale, low_minimum);
        a[2 * half + 1] = scale_add(q1, high_scale, high_minimum);
        word >>= 8;
    }
}

__device__ __forceinline__ void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
#if TYPE_BF16
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

__device__ __forceinline__ uint4 stream(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

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

#if EPILOGUE == EPILOGUE_GATED
#define PARTS 2
#else
#define PARTS 1
#endif

// A warp's ring of x: DEPTH steps of NT * 8 rows by 64, each row's 128 bytes padded to 144 against bank conflicts.
#define ROW_BYTES 144
#define SLOT_BYTES (NT * 8 * ROW_BYTES)

__device__ __forceinline__ void fetch_x(u32 slot, const unsigned short* x, int rows, int x_stride, int lane) {
#pragma unroll
    for (int j = 0; j < 2 * NT; j++) {
        const int row = (lane >> 3) + 4 * j;
        const int chunk = lane & 7;
        const bool live = row < rows;
        const unsigned short* from = x + (long long)(live ? row : 0) * x_stride + chunk * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(slot + row * ROW_BYTES + chunk * 16), "l"(from),
                     "r"(live ? 16 : 0));
    }
}

extern "C" __global__ void __launch_bounds__(SEGMENTS * 32, BLOCKS)
    skinny(const uint4* __restrict__ w, const uint4* __restrict__ scales, const unsigned short* __restrict__ x, void* out,
           int rows, int n, int k, int x_stride, int out_stride) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int lane = threadIdx.x & 31;
    const int segment = threadIdx.x >> 5;
    const int steps = k >> 6;
    const int begin = steps * segment / SEGMENTS;
    const int count = steps * (segment + 1) / SEGMENTS - begin;
    const uint4* wp[PARTS];
    uint4 weights[PARTS][DEPTH][LOADS];
#if FORM_Q4
    const uint4* sp[PARTS];
    uint4 scale[PARTS][DEPTH];
#endif

    // 1. Weights do not depend on the kernel before: their loads are in flight before anything waits.
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const long long at = (blockIdx.x + (long long)p * (n >> 4)) * steps + begin;
        wp[p] = w + at * (32 * LOADS) + lane;
#if FORM_Q4
        sp[p] = scales + at * 8 + (lane >> 2);
#endif
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (d < count) {
#pragma unroll
                for (int j = 0; j < LOADS; j++) weights[p][d][j] = stream(wp[p] + (d * LOADS + j) * 32);
#if FORM_Q4
                scale[p][d] = stream(sp[p] + d * 8);
#endif
            }
#if MODE != MODE_PLAIN
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif

    // 2. This warp's run of x into its ring.
    const u32 ring = (u32)__cvta_generic_to_shared(shared) + segment * (DEPTH * SLOT_BYTES);
    x += begin * 64;
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        if (d < count) fetch_x(ring + d * SLOT_BYTES, x + d * 64, rows, x_stride, lane);
        asm volatile("cp.async.commit_group;");
    }
    float acc[PARTS][NT][4];
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[p][t][i] = 0.0f;

    // 3. One pass over this warp's run of K.
    for (int base = 0; base < count; base += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int step = base + d;
            if (step >= count) break;
            const bool more = step + DEPTH < count;
            u32 b[NT][8];
            asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
            __syncwarp();
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(b[t][4 * half]), "=r"(b[t][4 * half + 1]), "=r"(b[t][4 * half + 2]),
                                   "=r"(b[t][4 * half + 3])
                                 : "r"(ring + d * SLOT_BYTES + (t * 8 + (lane & 7)) * ROW_BYTES + half * 64 +
                                       (lane >> 3) * 16)
                                 : "memory");
            __syncwarp();
            if (more) fetch_x(ring + d * SLOT_BYTES, x + (step + DEPTH) * 64, rows, x_stride, lane);
            asm volatile("cp.async.commit_group;");
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                uint4 now[LOADS];
#pragma unroll
                for (int j = 0; j < LOADS; j++) now[j] = weights[p][d][j];
#if FORM_Q4
                const uint4 s = scale[p][d];
#endif
                if (more) {
#pragma unroll
                    for (int j = 0; j < LOADS; j++)
                        weights[p][d][j] = stream(wp[p] + (long long)((step + DEPTH) * LOADS + j) * 32);
#if FORM_Q4
                    scale[p][d] = stream(sp[p] + (long long)(step + DEPTH) * 8);
#endif
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    u32 a[4];
#if FORM_Q4
                    const u32 word = j == 0 ? now[0].x : j == 1 ? now[0].y : j == 2 ? now[0].z : now[0].w;
                    unpack(word, j < 2 ? s.x : s.z, j < 2 ? s.y : s.w, a);
#else
                    a[0] = now[j].x;
                    a[1] = now[j].y;
                    a[2] = now[j].z;
                    a[3] = now[j].w;
#endif
#pragma unroll
                    for (int t = 0; t < NT; t++) multiply(acc[p][t], a, b[t][2 * j], b[t][2 * j + 1]);
                }
            }
        }
    }

    // 4. Add the runs in order and finish: sums[part][segment][x row][output], in the rings' place.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    typedef float Sums[SEGMENTS][NT * 8][17];
    Sums* sums = reinterpret_cast<Sums*>(shared);
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[p][segment][t * 8 + 2 * (lane & 3) + (i & 1)][(lane >> 2) + 8 * (i >> 1)] = acc[p][t][i];
    __syncthreads();
    for (int e = threadIdx.x; e < NT * 8 * 16; e += SEGMENTS * 32) {
        const int row = e >> 4;
        const int column = e & 15;
        if (row >= rows) break;
        float total[PARTS];
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            total[p] = sums[p][0][row][column];
#pragma unroll
            for (int s = 1; s < SEGMENTS; s++) total[p] = __fadd_rn(total[p], sums[p][s][row][column]);
        }
        const long long at = (long long)row * out_stride + blockIdx.x * 16 + column;
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
