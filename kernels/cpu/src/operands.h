// What a matrix product reads: the handle of a packed weight, and rows as float32 or quantised to 8 bits.
#pragma once

#include "simd.h"

namespace tandem {

enum Form : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kQ4_0 = 3, kQ4_1 = 4, kQ8_0 = 5, kQ4_K = 6, kQ5_K = 7, kQ6_K = 8 };

struct Matrix {
    const uint8_t* data;
    const float* bias;
    int32_t form;
    int32_t n;
    int32_t k;
    int32_t reserved;
};

inline bool quantised(int form) { return form >= kQ4_0; }
constexpr bool k_quantised(int form) { return form >= kQ4_K; }

// 32 inputs of a row: x = d * q, d a float16 value as in GGUF's q8_0 and q8_1 blocks; s = d * sum(q), and s16 that sum as
// q8_1 keeps it, which is what a q4_1 minimum multiplies; sums are those of each half. Side by side, so that a row of a
// tile costs one pointer.
struct QBlock {
    int8_t q[32];
    float d;
    float s;
    float s16;
    int16_t sums[2];
};

// Rows as a matrix product reads them: float32 or quantised, strides in elements.
struct Rows {
    const float* x;
    const QBlock* q;
    int64_t x_stride;
    int64_t q_stride;
};

// Quantise 32 * blocks values: q = round(x * 127 / amax), d = amax / 127, rounded to float16 after q and s16 are made.
inline void quantise_row(const float* x, int64_t blocks, QBlock* out) {
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        const F8 x0 = f8_load(x), x1 = f8_load(x + 8), x2 = f8_load(x + 16), x3 = f8_load(x + 24);
        const F8 top = f8_max(f8_max(f8_abs(x0), f8_abs(x1)), f8_max(f8_abs(x2), f8_abs(x3)));
        const float amax = f8_largest(top);
        const F8 inverse = f8_set(amax > 0.0f ? 127.0f / amax : 0.0f);
        const I8 q0 = f8_round(x0 * inverse), q1 = f8_round(x1 * inverse);
        const I8 q2 = f8_round(x2 * inverse), q3 = f8_round(x3 * inverse);
        QBlock& block = out[b];
        const float d = amax / 127.0f;
        block.d = f16_rounded(d);
        i8_store32(block.q, q0, q1, q2, q3);
        const int32_t first = i8_sum(q0, q1), second = i8_sum(q2, q3);
        block.s = block.d * float(first + second);
        block.s16 = f16_rounded(d * float(first + second));
        block.sums[0] = int16_t(first);
        block.sums[1] = int16_t(second);
    }
}

// Weights are read once, front to back; the hardware's own prefetch starts anew at each page.
constexpr int64_t kAhead = 4096;
inline void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace tandem
