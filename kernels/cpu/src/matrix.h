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
//
// Arithmetic of one output for one row, in every body: over blocks in order, acc = fma(dot, dw * da, acc) with the
// exact integer dot, then acc = fma(mw, sa, acc) where the form has a minimum, sa being da times the sum of the row's
// quantised inputs. Float forms: four partial sums over k mod 4, added as (s0 + s1) + (s2 + s3).
#pragma once

#include "simd.h"

namespace tandem {

enum Form : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kQ4_0 = 3, kQ4_1 = 4, kQ8_0 = 5 };

struct Matrix {
    const uint8_t* data;
    const float* bias;
    int32_t form;
    int32_t n;
    int32_t k;
    int32_t reserved;
};

inline bool quantised(int form) { return form >= kQ4_0; }

inline int64_t group_bytes(int form, int64_t k) {
    switch (form) {
        case kQ4_0: return k / 32 * (128 + 16);
        case kQ4_1: return k / 32 * (128 + 32);
        case kQ8_0: return k / 32 * (256 + 16);
        case kF32: return k * 32;
        default: return k * 16;
    }
}

// 32 inputs of a row: x = d * q, s = d * sum(q). Side by side, so that a row of a tile costs one pointer.
struct QBlock {
    int8_t q[32];
    float d;
    float s;
};

// Rows as a matrix product reads them: float32 or quantised, strides in elements.
struct Rows {
    const float* x;
    const QBlock* q;
    int64_t x_stride;
    int64_t q_stride;
};

// Quantise 32 * blocks values: q = round(x * 127 / amax), d = amax / 127.
inline void quantise_row(const float* x, int64_t blocks, QBlock* out) {
    for (int64_t b = 0; b < blocks; ++b, x += 32) {
        const F8 x0 = f8_load(x), x1 = f8_load(x + 8), x2 = f8_load(x + 16), x3 = f8_load(x + 24);
        const F8 top = f8_max(f8_max(f8_abs(x0), f8_abs(x1)), f8_max(f8_abs(x2), f8_abs(x3)));
        const float amax = f8_largest(top);
        const F8 inverse = f8_set(amax > 0.0f ? 127.0f / amax : 0.0f);
        const I8 q0 = f8_round(x0 * inverse), q1 = f8_round(x1 * inverse);
        const I8 q2 = f8_round(x2 * inverse), q3 = f8_round(x3 * inverse);
        QBlock& block = out[b];
        block.d = amax / 127.0f;
        block.s = block.d * float(i8_store32(block.q, q0, q1, q2, q3));
    }
}

// Pack one group from the file's rows. `raw` points at the group's first output; `live` outputs of the eight exist.
inline void pack_group(int form, const uint8_t* raw, int64_t raw_stride, int live, int64_t k, uint8_t* out) {
    std::memset(out, 0, size_t(group_bytes(form, k)));
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

#if TANDEM_AVX2

// Holds the compiler to adding as it goes: left alone it keeps all products of a block and spills them.
#define TANDEM_KEEP(v) asm("" : "+x"(v))

inline __m256i broadcast4(const int8_t* q) {
    int32_t word;
    std::memcpy(&word, q, 4);
    return _mm256_set1_epi32(word);
}
#if TANDEM_VNNI
inline __m256i dot_u8_s8(__m256i acc, __m256i u, __m256i s) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(acc, u, s);
#else
    return _mm256_dpbusd_avx_epi32(acc, u, s);
#endif
}
#endif

// Integer dots of a 4-bit block of eight outputs with the blocks of R rows.
template <int R>
inline void dot4(const uint8_t* w, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i acc[R];
    for (int r = 0; r < R; ++r) acc[r] = _mm256_setzero_si256();
    for (int j = 0; j < 4; ++j) {
        const __m256i both = _mm256_loadu_si256((const __m256i*)(w + j * 32));
        const __m256i low = _mm256_and_si256(both, nibble);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        for (int r = 0; r < R; ++r) {
#if TANDEM_VNNI
            acc[r] = dot_u8_s8(acc[r], low, broadcast4(q[r]->q + 4 * j));
            acc[r] = dot_u8_s8(acc[r], high, broadcast4(q[r]->q + 16 + 4 * j));
#else
            // At most 8 * 2 * 15 * 127 = 30480 in a 16-bit lane: no saturation.
            acc[r] = _mm256_add_epi16(acc[r], _mm256_maddubs_epi16(low, broadcast4(q[r]->q + 4 * j)));
            acc[r] = _mm256_add_epi16(acc[r], _mm256_maddubs_epi16(high, broadcast4(q[r]->q + 16 + 4 * j)));
            TANDEM_KEEP(acc[r]);
#endif
        }
    }
#if TANDEM_VNNI
    for (int r = 0; r < R; ++r) dot[r].v = acc[r];
#else
    const __m256i one = _mm256_set1_epi16(1);
    for (int r = 0; r < R; ++r) dot[r].v = _mm256_madd_epi16(acc[r], one);
#endif
}

template <int R>
inline void dot8(const uint8_t* w, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    for (int r = 0; r < R; ++r) dot[r].v = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
        const __m256i signed_w = _mm256_loadu_si256((const __m256i*)(w + j * 32));
        const __m256i size = _mm256_abs_epi8(signed_w);
        for (int r = 0; r < R; ++r) {
            const __m256i a = _mm256_sign_epi8(broadcast4(q[r]->q + 4 * j), signed_w);
#if TANDEM_VNNI
            dot[r].v = dot_u8_s8(dot[r].v, size, a);
#else
            // |w| <= 128 and |a| <= 127, so a pair stays within 32512.
            const __m256i pairs = _mm256_maddubs_epi16(size, a);
            dot[r].v = _mm256_add_epi32(dot[r].v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
        }
    }
}

#else

template <int R>
inline void dot4(const uint8_t* w, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    for (int r = 0; r < R; ++r) {
        for (int o = 0; o < 8; ++o) {
            int32_t sum = 0;
            for (int j = 0; j < 4; ++j)
                for (int i = 0; i < 4; ++i) {
                    const uint8_t both = w[j * 32 + o * 4 + i];
                    sum += int32_t(both & 15) * q[r]->q[4 * j + i] + int32_t(both >> 4) * q[r]->q[16 + 4 * j + i];
                }
            dot[r].v[o] = sum;
        }
    }
}

template <int R>
inline void dot8(const uint8_t* w, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    for (int r = 0; r < R; ++r) {
        for (int o = 0; o < 8; ++o) {
            int32_t sum = 0;
            for (int j = 0; j < 8; ++j)
                for (int i = 0; i < 4; ++i) sum += int32_t(int8_t(w[j * 32 + o * 4 + i])) * q[r]->q[4 * j + i];
            dot[r].v[o] = sum;
        }
    }
}

#endif

// Weights are read once, front to back; the hardware's own prefetch starts anew at each page.
constexpr int64_t kAhead = 4096;
inline void prefetch(const void* p) { __builtin_prefetch(p); }

// acc[r] = the eight outputs of `group` for rows row .. row + R - 1.
template <int R, int FORM>
inline void product_tile(const uint8_t* group, int64_t k, const Rows& rows, int64_t row, F8 (&acc)[R]) {
    if constexpr (FORM == kF32 || FORM == kF16 || FORM == kBF16) {
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
                for (int r = 0; r < R; ++r) sum[r] = f8_fma(low, f8_set(q[r]->s), sum[r]);
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
        default: return product_rows_of<kQ8_0>(group, m.k, rows, row, count, out);
    }
}

}  // namespace tandem
