// Exact integer dots of one packed block (eight outputs by 32 inputs) with the quantised blocks of R rows.
#pragma once

#include "operands.h"

namespace tandem {

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

// Dots of a 5-bit block: nibbles as in `dot4`, then 32 bytes whose bit w is the fifth bit of word w.
template <int R>
inline void dot5(const uint8_t* w, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    const __m256i fifth = _mm256_loadu_si256((const __m256i*)(w + 128));
    for (int r = 0; r < R; ++r) dot[r].v = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half) {
        __m256i acc[R];
        for (int r = 0; r < R; ++r) acc[r] = _mm256_setzero_si256();
        for (int j = 0; j < 4; ++j) {
            const __m256i both = _mm256_loadu_si256((const __m256i*)(w + j * 32));
            const __m256i four = _mm256_and_si256(half ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
            const __m256i shifted = half ? _mm256_srli_epi16(fifth, j) : _mm256_slli_epi16(fifth, 4 - j);
            const __m256i code = _mm256_or_si256(four, _mm256_and_si256(shifted, _mm256_set1_epi8(16)));
            for (int r = 0; r < R; ++r) {
#if TANDEM_VNNI
                acc[r] = dot_u8_s8(acc[r], code, broadcast4(q[r]->q + 16 * half + 4 * j));
#else
                // At most 4 * 2 * 31 * 127 = 31496 in a 16-bit lane: no saturation.
                acc[r] = _mm256_add_epi16(acc[r], _mm256_maddubs_epi16(code, broadcast4(q[r]->q + 16 * half + 4 * j)));
                TANDEM_KEEP(acc[r]);
#endif
            }
        }
        for (int r = 0; r < R; ++r) {
#if TANDEM_VNNI
            dot[r].v = _mm256_add_epi32(dot[r].v, acc[r]);
#else
            dot[r].v = _mm256_add_epi32(dot[r].v, _mm256_madd_epi16(acc[r], _mm256_set1_epi16(1)));
#endif
        }
    }
}

// Dots of a 6-bit block, code - 32 times the 8-bit scale of its half: nibbles as in `dot4`, then two vectors of 32 bytes
// with the upper bits of words 0, 4, 1, 5 and of 2, 6, 3, 7. `scales` holds two for each output.
template <int R>
inline void dot6(const uint8_t* w, const int8_t* scales, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    const __m256i pairs = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)scales));
    for (int r = 0; r < R; ++r) {
        int32_t sums;
        std::memcpy(&sums, q[r]->sums, 4);
        const __m256i offset = _mm256_slli_epi32(_mm256_madd_epi16(pairs, _mm256_set1_epi32(sums)), 5);
        dot[r].v = _mm256_sub_epi32(_mm256_setzero_si256(), offset);
    }
    for (int half = 0; half < 2; ++half) {
        // The half's scale in both 16-bit parts of an output's lane.
        const __m256i scale = half ? _mm256_blend_epi16(_mm256_srli_epi32(pairs, 16), pairs, 0xaa)
                                   : _mm256_blend_epi16(pairs, _mm256_slli_epi32(pairs, 16), 0xaa);
        for (int two = 0; two < 2; ++two) {
            const __m256i upper = _mm256_loadu_si256((const __m256i*)(w + 128 + two * 32));
            __m256i acc[R];
            for (int r = 0; r < R; ++r) acc[r] = _mm256_setzero_si256();
            for (int odd = 0; odd < 2; ++odd) {
                const int j = 2 * two + odd;
                const __m256i both = _mm256_loadu_si256((const __m256i*)(w + j * 32));
                const __m256i four = _mm256_and_si256(half ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
                const __m256i moved = odd ? (half ? _mm256_srli_epi16(upper, 2) : upper)
                                          : _mm256_slli_epi16(upper, half ? 2 : 4);
                const __m256i code = _mm256_or_si256(four, _mm256_and_si256(moved, _mm256_set1_epi8(48)));
                for (int r = 0; r < R; ++r) {
                    // At most 2 * 2 * 63 * 127 = 32004 in a 16-bit lane: no saturation.
                    acc[r] = _mm256_add_epi16(acc[r], _mm256_maddubs_epi16(code, broadcast4(q[r]->q + 16 * half + 4 * j)));
                    TANDEM_KEEP(acc[r]);
                }
            }
            for (int r = 0; r < R; ++r) dot[r].v = _mm256_add_epi32(dot[r].v, _mm256_madd_epi16(acc[r], scale));
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

template <int R>
inline void dot5(const uint8_t* w, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    for (int r = 0; r < R; ++r) {
        for (int o = 0; o < 8; ++o) {
            int32_t sum = 0;
            for (int j = 0; j < 4; ++j)
                for (int i = 0; i < 4; ++i) {
                    const uint8_t both = w[j * 32 + o * 4 + i], fifth = w[128 + o * 4 + i];
                    sum += int32_t((both & 15) | (fifth >> j & 1) << 4) * q[r]->q[4 * j + i];
                    sum += int32_t((both >> 4) | (fifth >> (4 + j) & 1) << 4) * q[r]->q[16 + 4 * j + i];
                }
            dot[r].v[o] = sum;
        }
    }
}

template <int R>
inline void dot6(const uint8_t* w, const int8_t* scales, const QBlock* const (&q)[R], I8 (&dot)[R]) {
    for (int r = 0; r < R; ++r) {
        for (int o = 0; o < 8; ++o) {
            int32_t first = 0, second = 0;
            for (int j = 0; j < 4; ++j)
                for (int i = 0; i < 4; ++i) {
                    const uint8_t both = w[j * 32 + o * 4 + i];
                    const int upper = w[128 + j / 2 * 32 + o * 4 + i] >> (j % 2 * 4);
                    first += (int32_t((both & 15) | (upper & 3) << 4) - 32) * q[r]->q[4 * j + i];
                    second += (int32_t((both >> 4) | (upper >> 2 & 3) << 4) - 32) * q[r]->q[16 + 4 * j + i];
                }
            dot[r].v[o] = first * scales[2 * o] + second * scales[2 * o + 1];
        }
    }
}

#endif

}  // namespace tandem
