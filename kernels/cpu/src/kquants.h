// The K-quant forms: 256 inputs share float16 super scales, packed by eight outputs as in matrix.h.
//
// A group holds, for each 256 inputs: 8 float16 scales d, 8 float16 dmin (unused in q6_k); for each of the 8 blocks 16 bytes
// of sub-scales (q4_k, q5_k: 8 scales, then 8 minima, as bytes; q6_k: two signed scales an output, one for each 16 inputs);
// then the blocks' codes as `dots.h` reads them.
//
// Arithmetic of one output for one row, over blocks of 32 in order: q4_k, q5_k: acc = fma(dot, (d * scale) * da, acc), then
// acc = fma(-dmin * minimum, sa, acc); q6_k: acc = fma(dot, d * da, acc) where dot has the scales in it. Every dot is below
// 2^24, and d * scale and dmin * minimum have at most 18 bits: all of them are exact in float32.
#pragma once

#include "dots.h"

namespace tandem {

constexpr int64_t kSuperInputs = 256;
constexpr int64_t kSubScales = 32;
constexpr int64_t kCodes = kSubScales + 8 * 16;

constexpr int64_t k_code_bytes(int form) { return form == kQ4_K ? 128 : form == kQ5_K ? 160 : 192; }
constexpr int64_t k_super_bytes(int form) { return kCodes + 8 * k_code_bytes(form); }
constexpr int64_t k_file_bytes(int form) { return form == kQ4_K ? 144 : form == kQ5_K ? 176 : 210; }

// The codes of block `b` of a super-block as the file holds it.
inline void k_file_codes(int form, const uint8_t* raw, int b, uint8_t (&codes)[32]) {
    if (form == kQ6_K) {
        const uint8_t* low = raw + b / 4 * 64 + b % 2 * 32;
        const uint8_t* high = raw + 128 + b / 4 * 32;
        const int nibble = b % 4 / 2 * 4, two = b % 4 * 2;
        for (int i = 0; i < 32; ++i) codes[i] = uint8_t((low[i] >> nibble & 15) | (high[i] >> two & 3) << 4);
        return;
    }
    const uint8_t* low = raw + (form == kQ5_K ? 48 : 16) + b / 2 * 32;
    const int nibble = b % 2 * 4;
    for (int i = 0; i < 32; ++i) codes[i] = low[i] >> nibble & 15;
    if (form == kQ5_K)
        for (int i = 0; i < 32; ++i) codes[i] = uint8_t(codes[i] | (raw[16 + i] >> b & 1) << 4);
}

// The 6-bit scale and minimum of block `b` from the file's 12 bytes of q4_k and q5_k.
inline void k_file_scales(const uint8_t* raw, int b, uint8_t& scale, uint8_t& minimum) {
    if (b < 4) {
        scale = raw[b] & 63;
        minimum = raw[b + 4] & 63;
    } else {
        scale = uint8_t((raw[b + 4] & 15) | raw[b - 4] >> 6 << 4);
        minimum = uint8_t(raw[b + 4] >> 4 | raw[b] >> 6 << 4);
    }
}

// Put the codes of output `o` into a packed block that holds zeros there.
inline void k_put_codes(int form, const uint8_t (&codes)[32], int o, uint8_t* block) {
    for (int w = 0; w < 4; ++w) {
        for (int i = 0; i < 4; ++i) {
            const int lane = o * 4 + i, low = codes[4 * w + i], high = codes[16 + 4 * w + i];
            block[w * 32 + lane] = uint8_t((low & 15) | (high & 15) << 4);
            if (form == kQ5_K) block[128 + lane] |= uint8_t((low >> 4) << w | (high >> 4) << (4 + w));
            if (form == kQ6_K) block[128 + w / 2 * 32 + lane] |= uint8_t((low >> 4 | high >> 4 << 2) << (w % 2 * 4));
        }
    }
}

inline void k_get_codes(int form, const uint8_t* block, int o, uint8_t (&codes)[32]) {
    for (int w = 0; w < 4; ++w) {
        for (int i = 0; i < 4; ++i) {
            const int lane = o * 4 + i;
            int low = block[w * 32 + lane] & 15, high = block[w * 32 + lane] >> 4;
            if (form == kQ5_K) {
                low |= (block[128 + lane] >> w & 1) << 4;
                high |= (block[128 + lane] >> (4 + w) & 1) << 4;
            }
            if (form == kQ6_K) {
                const int upper = block[128 + w / 2 * 32 + lane] >> (w % 2 * 4);
                low |= (upper & 3) << 4;
                high |= (upper >> 2 & 3) << 4;
            }
            codes[4 * w + i] = uint8_t(low);
            codes[16 + 4 * w + i] = uint8_t(high);
        }
    }
}

// Pack one group of zeroed memory; arguments as those of `pack_group`.
inline void k_pack_group(int form, const uint8_t* raw, int64_t raw_stride, int live, int64_t k, uint8_t* out) {
    for (int o = 0; o < live; ++o) {
        const uint8_t* from = raw + o * raw_stride;
        uint8_t* to = out;
        for (int64_t s = 0; s < k / kSuperInputs; ++s, from += k_file_bytes(form), to += k_super_bytes(form)) {
            std::memcpy(to + o * 2, from + (form == kQ6_K ? 208 : 0), 2);
            if (form != kQ6_K) std::memcpy(to + 16 + o * 2, from + 2, 2);
            for (int b = 0; b < 8; ++b) {
                uint8_t* sub = to + kSubScales + b * 16;
                if (form == kQ6_K)
                    std::memcpy(sub + o * 2, from + 192 + b * 2, 2);
                else
                    k_file_scales(from + 4, b, sub[o], sub[8 + o]);
                uint8_t codes[32];
                k_file_codes(form, from, b, codes);
                k_put_codes(form, codes, o, to + kCodes + b * k_code_bytes(form));
            }
        }
    }
}

// Output `o` of a packed group as float32.
inline void k_unpack_output(int form, const uint8_t* group, int o, int64_t k, float* x) {
    for (; k > 0; k -= kSuperInputs, group += k_super_bytes(form)) {
        uint16_t h[2];
        std::memcpy(h, group + o * 2, 2);
        std::memcpy(h + 1, group + 16 + o * 2, 2);
        const float d = f16_to_f32(h[0]), dmin = f16_to_f32(h[1]);
        for (int b = 0; b < 8; ++b, x += 32) {
            const uint8_t* sub = group + kSubScales + b * 16;
            uint8_t codes[32];
            k_get_codes(form, group + kCodes + b * k_code_bytes(form), o, codes);
            for (int i = 0; i < 32; ++i) {
                if (form == kQ6_K)
                    x[i] = d * float(int8_t(sub[o * 2 + i / 16])) * float(codes[i] - 32);
                else
                    x[i] = std::fma(d * float(sub[o]), float(codes[i]), -dmin * float(sub[8 + o]));
            }
        }
    }
}

// acc[r] = the eight outputs of `group` for rows row .. row + R - 1.
template <int R, int FORM>
inline void k_product_tile(const uint8_t* group, int64_t k, const Rows& rows, int64_t row, F8 (&acc)[R]) {
    constexpr int64_t kCodeBytes = k_code_bytes(FORM);
    constexpr int64_t kBlockBytes = k_super_bytes(FORM) / 8;
    const QBlock* q[R];
    F8 sum[R];  // not `acc`: bytes read through q might alias it
    for (int r = 0; r < R; ++r) {
        q[r] = rows.q + (row + r) * rows.q_stride;
        sum[r] = f8_set(0.0f);
    }
    for (int64_t s = 0; s < k / kSuperInputs; ++s, group += k_super_bytes(FORM)) {
        const F8 d = f8_load_f16((const uint16_t*)group);
        const F8 dmin = f8_load_f16((const uint16_t*)group + 8) * f8_set(-1.0f);
        for (int64_t b = 0; b < 8; ++b) {
            const uint8_t* sub = group + kSubScales + b * 16;
            const uint8_t* codes = group + kCodes + b * kCodeBytes;
            I8 dot[R];
            if constexpr (FORM == kQ4_K) dot4<R>(codes, q, dot);
            if constexpr (FORM == kQ5_K) dot5<R>(codes, q, dot);
            if constexpr (FORM == kQ6_K) dot6<R>(codes, (const int8_t*)sub, q, dot);
            for (int64_t line = 0; line < kBlockBytes; line += 64) prefetch(group + kAhead + b * kBlockBytes + line);
            if constexpr (FORM == kQ6_K) {
                for (int r = 0; r < R; ++r) sum[r] = f8_fma(f8_from(dot[r]), d * f8_set(q[r]->d), sum[r]);
            } else {
                const F8 dw = d * f8_from(i8_load_u8(sub));
                const F8 low = dmin * f8_from(i8_load_u8(sub + 8));
                for (int r = 0; r < R; ++r) sum[r] = f8_fma(f8_from(dot[r]), dw * f8_set(q[r]->d), sum[r]);
                for (int r = 0; r < R; ++r) sum[r] = f8_fma(low, f8_set(q[r]->s), sum[r]);
            }
            for (int r = 0; r < R; ++r) ++q[r];
        }
    }
    for (int r = 0; r < R; ++r) acc[r] = sum[r];
}

}  // namespace tandem
