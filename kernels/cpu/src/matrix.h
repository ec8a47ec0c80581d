// Weight matrices packed by eight outputs, and the product of one group of eight with a tile of rows.
//
// A quantised matrix of n outputs by k inputs is stored by groups of eight outputs (the last one padded with zeros). A
// group holds, for each block of 32 inputs, 32-bit words of four consecutive inputs of one output, eight outputs side by
// side: lane o of every vector belongs to output o, so a dot product needs no sum across lanes. The scales follow.
//
//   4-bit   group: blocks x 4 x 32 bytes of nibbles (low: inputs 4j.., high: inputs 16 + 4j..), then blocks x 8 float16
//           scales, then (q4_1) 8 float16 minima, block by block
//   8-bit   group: blocks x 8 x 32 bytes, then blocks x 8 float16 scales
//   f16, bf16, f32   group: k x 8 values
//   q4_k, q5_k, q6_k: kquants.h
//
// Arithmetic of one output for one row, in every body: over blocks in order, acc = fma(dot, dw * da, acc) with the
// exact integer dot, then acc = fma(mw, sa, acc) where the form has a minimum, sa being da times the sum of the row's
// quantised inputs. Float forms: four partial sums over k mod 4, added as (s0 + s1) + (s2 + s3).
#pragma once

#include "kquants.h"

namespace tandem {

inline int64_t group_bytes(int form, int64_t k) {
    if (k_quantised(form)) return k / kSuperInputs * k_super_bytes(form);
    switch (form) {
        case kQ4_0: return k / 32 * (128 + 16);
        case kQ4_1: return k / 32 * (128 + 32);
        case kQ8_0: return k / 32 * (256 + 16);
        case kF32: return k * 32;
        default: return k * 16;
    }
}

// Pack one group from the file's rows. `raw` points at the group's first output; `live` outputs of the eight exist.
inline void pack_group(int form, const uint8_t* raw, int64_t raw_stride, int live, int64_t k, uint8_t* out) {
    std::memset(out, 0, size_t(group_bytes(form, k)));
    if (k_quantised(form)) return k_pack_group(form, raw, raw_stride, live, k, out);
    if (!quantised(form)) {
        const int64_t width = form == kF32 ? 4 : 2;
        for (int o = 0; o < live; ++o)
            for (int64_t i = 0; i < k; ++i) std::memcpy(out + (i * 8 + o) * width, raw + o * raw_stride + i * width, size_t(width));
        return;
    }
    const int64_t blocks = k / 32;
    const int words = form == kQ8_0 ? 8 : 4;
    const int head = form == kQ4_1 ? 4 : 2;
    const int block_bytes = head + words * 4;
    const int scale_bytes = head * 8;
    uint8_t* scales = out + blocks * words * 32;
    for (int o = 0; o < live; ++o) {
        const uint8_t* block = raw + o * raw_stride;
        for (int64_t b = 0; b < blocks; ++b, block += block_bytes) {
            std::memcpy(scales + b * scale_bytes + o * 2, block, 2);
            if (form == kQ4_1) std::memcpy(scales + b * scale_bytes + 16 + o * 2, block + 2, 2);
            for (int w = 0; w < words; ++w) std::memcpy(out + (b * words + w) * 32 + o * 4, block + head + w * 4, 4);
        }
    }
}

// One output's weights as float32, from its packed group: an embedding row.
inline void unpack_output(const Matrix& m, int64_t output, float* x) {
    const uint8_t* group = m.data + output / 8 * group_bytes(m.form, m.k);
    const int64_t o = output % 8;
    if (k_quantised(m.form)) return k_unpack_output(m.form, group, int(o), m.k, x);
    if (!quantised(m.form)) {
        for (int64_t i = 0; i < m.k; ++i) {
            if (m.form == kF32) {
                std::memcpy(x + i, group + (i * 8 + o) * 4, 4);
            } else {
                uint16_t h;
                std::memcpy(&h, group + (i * 8 + o) * 2, 2);
                x[i] = m.form == kF16 ? f16_to_f32(h) : bf16_to_f32(h);
            }
        }
        return;
    }
    const int64_t blocks = m.k / 32;
    const int words = m.form == kQ8_0 ? 8 : 4;
    const int scale_bytes = m.form == kQ4_1 ? 32 : 16;
    const uint8_t* scales = group + blocks * words * 32;
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        uint16_t h;
        std::memcpy(&h, scales + b * scale_bytes + o * 2, 2);
        const float d = f16_to_f32(h);
        float low = -8.0f * d;
        if (m.form == kQ4_1) {
            std::memcpy(&h, scales + b * scale_bytes + 16 + o * 2, 2);
            low = f16_to_f32(h);
        }
        for (int w = 0; w < words; ++w) {
            const uint8_t* lane = group + (b * words + w) * 32 + o * 4;
            for (int i = 0; i < 4; ++i) {
                if (m.form == kQ8_0) {
                    x[w * 4 + i] = d * float(int8_t(lane[i]));
                } else {
                    x[w * 4 + i] = std::fma(d, float(lane[i] & 15), low);
                    x[16 + w * 4 + i] = std::fma(d, float(lane[i] >> 4), low);
                }
            }
        }
    }
}

// acc[r] = the eight outputs of `group` for rows row .. row + R - 1.
template <int R, int FORM>
inline void product_tile(const uint8_t* group, int64_t k, const Rows& rows, int64_t row, F8 (&acc)[R]) {
    if constexpr (k_quantised(FORM)) {
        k_product_tile<R, FORM>(group, k, rows, row, acc);
    } else if constexpr (FORM == kF32 || FORM == kF16 || FORM == kBF16) {
        F8 part[4][R];
        for (int p = 0; p < 4; ++p)
            for (int r = 0; r < R; ++r) part[p][r] = f8_set(0.0f);
        const float* x = rows.x + row * rows.x_stride;
        auto step = [&](int64_t i, F8(&sum)[R]) {
            F8 w;
            if constexpr (FORM == kF32) w = f8_load((const float*)group + i * 8);
            if constexpr (FORM == kF16) w = f8_load_f16((const uint16_t*)group + i * 8);
            if constexpr (FORM == kBF16) w = f8_load_bf16((const uint16_t*)group + i * 8);
            for (int r = 0; r < R; ++r) sum[r] = f8_fma(w, f8_set(x[r * rows.x_stride + i]), sum[r]);
        };
        int64_t i = 0;
        for (; i + 4 <= k; i += 4) {
            step(i, part[0]);
            step(i + 1, part[1]);
            step(i + 2, part[2]);
            step(i + 3, part[3]);
        }
        for (int p = 0; i < k; ++i, ++p) step(i, part[p]);
        for (int r = 0; r < R; ++r) acc[r] = (part[0][r] + part[1][r]) + (part[2][r] + part[3][r]);
    } else {
        const int64_t blocks = k / 32;
        constexpr int kWords = FORM == kQ8_0 ? 8 : 4;
        constexpr int kScale = FORM == kQ4_1 ? 16 : 8;
        constexpr int64_t kBlockBytes = kWords * 32 + kScale * 2;
        const uint16_t* scales = (const uint16_t*)(group + blocks * kWords * 32);
        const QBlock* q[R];
        F8 sum[R];  // not `acc`: bytes read through q might alias it
        for (int r = 0; r < R; ++r) {
            q[r] = rows.q + (row + r) * rows.q_stride;
            sum[r] = f8_set(0.0f);
        }
        for (int64_t b = 0; b < blocks; ++b) {
            I8 dot[R];
            if constexpr (FORM == kQ8_0)
                dot8<R>(group + b * 256, q, dot);
            else
                dot4<R>(group + b * 128, q, dot);
            for (int64_t line = 0; line < kBlockBytes; line += 64) prefetch(group + kAhead + b * kBlockBytes + line);
            const F8 dw = f8_load_f16(scales + b * kScale);
            for (int r = 0; r < R; ++r) sum[r] = f8_fma(f8_from(dot[r]), dw * f8_set(q[r]->d), sum[r]);
            if constexpr (FORM == kQ4_1) {
                const F8 low = f8_load_f16(scales + b * kScale + 8);
                for (int r = 0; r < R; ++r) sum[r] = f8_fma(low, f8_set(q[r]->s16), sum[r]);
            }
            if constexpr (FORM == kQ4_0) {
                const F8 low = dw * f8_set(-8.0f);
                for (int r = 0; r < R; ++r) sum[r] = f8_fma(low, f8_set(q[r]->s), sum[r]);
            }
            for (int r = 0; r < R; ++r) ++q[r];
        }
        for (int r = 0; r < R; ++r) acc[r] = sum[r];
    }
}

constexpr int kTileRows = 4;

template <int FORM>
inline void product_rows_of(const uint8_t* group, int64_t k, const Rows& rows, int64_t row, int count, F8* out) {
    switch (count) {
        case 1: return product_tile<1, FORM>(group, k, rows, row, *(F8(*)[1])out);
        case 2: return product_tile<2, FORM>(group, k, rows, row, *(F8(*)[2])out);
        case 3: return product_tile<3, FORM>(group, k, rows, row, *(F8(*)[3])out);
        default: return product_tile<4, FORM>(group, k, rows, row, *(F8(*)[4])out);
    }
}

// The eight outputs of group `g` for `count` (1 to kTileRows) rows from `row` on.
inline void product_rows(const Matrix& m, int64_t g, const Rows& rows, int64_t row, int count, F8* out) {
    const uint8_t* group = m.data + g * group_bytes(m.form, m.k);
    switch (m.form) {
        case kF32: return product_rows_of<kF32>(group, m.k, rows, row, count, out);
        case kF16: return product_rows_of<kF16>(group, m.k, rows, row, count, out);
        case kBF16: return product_rows_of<kBF16>(group, m.k, rows, row, count, out);
        case kQ4_0: return product_rows_of<kQ4_0>(group, m.k, rows, row, count, out);
        case kQ4_1: return product_rows_of<kQ4_1>(group, m.k, rows, row, count, out);
        case kQ4_K: return product_rows_of<kQ4_K>(group, m.k, rows, row, count, out);
        case kQ5_K: return product_rows_of<kQ5_K>(group, m.k, rows, row, count, out);
        case kQ6_K: return product_rows_of<kQ6_K>(group, m.k, rows, row, count, out);
        default: return product_rows_of<kQ8_0>(group, m.k, rows, row, count, out);
    }
}

}  // namespace tandem
