// Per-row operations: RMS norm, rotary embedding, SiLU gate. Every sum has one order, fixed by the width.
#pragma once

#include "simd.h"

namespace tandem {

// y = x / sqrt(mean(x^2) + eps) * weight, `width` a multiple of 8. y may be x.
inline void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* y) {
    F8 sum[4] = {f8_set(0.0f), f8_set(0.0f), f8_set(0.0f), f8_set(0.0f)};
    int64_t i = 0;
    for (; i + 32 <= width; i += 32) {
        for (int p = 0; p < 4; ++p) {
            const F8 v = f8_load(x + i + p * 8);
            sum[p] = f8_fma(v, v, sum[p]);
        }
    }
    for (int p = 0; i < width; i += 8, ++p) {
        const F8 v = f8_load(x + i);
        sum[p] = f8_fma(v, v, sum[p]);
    }
    const float total = f8_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    const F8 scale = f8_set(1.0f / std::sqrt(total / float(width) + eps));
    for (i = 0; i < width; i += 8) f8_store(y + i, f8_load(x + i) * scale * f8_load(weight + i));
}

// Cosine and sine of position * frequency for each pair, times `magnitude`, interleaved: `pairs` x 2 values.
inline void rotary_angles(int64_t position, const double* frequencies, int64_t pairs, double magnitude, float* angles) {
    for (int64_t i = 0; i < pairs; ++i) {
        const double theta = double(position) * frequencies[i];
        angles[2 * i] = float(std::cos(theta) * magnitude);
        angles[2 * i + 1] = float(std::sin(theta) * magnitude);
    }
}

// Rotate one head in place. Interleaved: pairs (2i, 2i + 1). Otherwise pairs (i, i + pairs).
inline void rotate_head(float* x, const float* angles, int64_t pairs, bool interleaved) {
    const int64_t step = interleaved ? 2 : 1;
    const int64_t other = interleaved ? 1 : pairs;
    for (int64_t i = 0; i < pairs; ++i) {
        const float c = angles[2 * i], s = angles[2 * i + 1];
        const float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * c - b * s;
        x[i * step + other] = a * s + b * c;
    }
}

// silu(gate) * up
inline F8 gated(F8 gate, F8 up) {
    const F8 one = f8_set(1.0f);
    return gate / (one + f8_exp(f8_set(0.0f) - gate)) * up;
}

}  // namespace tandem
