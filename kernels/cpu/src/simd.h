// Eight-lane vectors: one set of operations with AVX2 and plain C++ bodies that round identically.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(TANDEM_PORTABLE)
#define TANDEM_AVX2 1
#include <immintrin.h>
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
#define TANDEM_VNNI 1
#endif
#endif

namespace tandem {

inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | (mantissa << 13) | (mantissa ? 0x400000 : 0);
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else if (mantissa) {
        exponent = 113;
        while (!(mantissa & 0x400)) {
            mantissa <<= 1;
            --exponent;
        }
        bits = sign | (exponent << 23) | ((mantissa & 0x3ff) << 13);
    } else {
        bits = sign;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

// Round to nearest, ties to even, as the hardware conversion does.
inline uint16_t f32_to_f16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return uint16_t(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
    if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (bits < 0x38800000) {
        if (bits < 0x33000000) return sign;
        const uint32_t shift = 126 - (bits >> 23);
        const uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
        const uint32_t half = 1u << (shift - 1);
        uint32_t q = mantissa >> shift;
        const uint32_t rest = mantissa & ((1u << shift) - 1);
        if (rest > half || (rest == half && (q & 1))) ++q;
        return uint16_t(sign | q);
    }
    const uint32_t odd = (bits >> 13) & 1;
    bits += 0xfff + odd;
    return uint16_t(sign | ((bits - 0x38000000) >> 13));
}

// The nearest float16 value; what float16 cannot reach stays as it is.
inline float f16_rounded(float f) {
#if TANDEM_AVX2
    const float near = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
#else
    const float near = f16_to_f32(f32_to_f16(f));
#endif
    return std::isinf(near) ? f : near;
}

inline float bf16_to_f32(uint16_t h) {
    const uint32_t bits = uint32_t(h) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

#if TANDEM_AVX2

struct F8 {
    __m256 v;
};
struct I8 {
    __m256i v;
};

inline F8 f8_set(float x) { return {_mm256_set1_ps(x)}; }
inline F8 f8_load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void f8_store(float* p, F8 a) { _mm256_storeu_ps(p, a.v); }
inline F8 f8_load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
inline F8 f8_load_bf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
}
inline void f8_store_f16(uint16_t* p, F8 a) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F8 f8_fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so a NaN in either yields b.
inline F8 f8_max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F8 f8_min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F8 f8_abs(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F8 f8_from(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline I8 f8_round(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }
// 2^n for integer n in [-126, 127].
inline F8 f8_exp2i(I8 n) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.v, _mm256_set1_epi32(127)), 23))};
}
// x < limit ? y : z
inline F8 f8_if_less(F8 x, F8 limit, F8 y, F8 z) {
    return {_mm256_blendv_ps(z.v, y.v, _mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ))};
}
inline I8 i8_load_u8(const uint8_t* p) { return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))}; }
inline int32_t i8_sum(I8 a, I8 b) {
    const __m256i both = _mm256_add_epi32(a.v, b.v);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
// Store four vectors of values in [-127, 127] as 32 bytes.
inline void i8_store32(int8_t* q, I8 a, I8 b, I8 c, I8 d) {
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a.v, b.v), _mm256_packs_epi32(c.v, d.v));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i*)q, _mm256_permutevar8x32_epi32(packed, order));
}

#else

struct F8 {
    float v[8];
};
struct I8 {
    int32_t v[8];
};

template <class Fn>
inline F8 f8_each(Fn fn) {
    F8 r;
    for (int i = 0; i < 8; ++i) r.v[i] = fn(i);
    return r;
}
inline F8 f8_set(float x) {
    return f8_each([&](int) { return x; });
}
inline F8 f8_load(const float* p) {
    return f8_each([&](int i) { return p[i]; });
}
inline void f8_store(float* p, F8 a) { std::memcpy(p, a.v, sizeof a.v); }
inline F8 f8_load_f16(const uint16_t* p) {
    return f8_each([&](int i) { return f16_to_f32(p[i]); });
}
inline F8 f8_load_bf16(const uint16_t* p) {
    return f8_each([&](int i) { return bf16_to_f32(p[i]); });
}
inline void f8_store_f16(uint16_t* p, F8 a) {
    for (int i = 0; i < 8; ++i) p[i] = f32_to_f16(a.v[i]);
}
inline F8 operator+(F8 a, F8 b) {
    return f8_each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F8 operator-(F8 a, F8 b) {
    return f8_each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F8 operator*(F8 a, F8 b) {
    return f8_each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F8 operator/(F8 a, F8 b) {
    return f8_each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F8 f8_fma(F8 a, F8 b, F8 c) {
    return f8_each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline F8 f8_max(F8 a, F8 b) {
    return f8_each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 f8_min(F8 a, F8 b) {
    return f8_each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 f8_abs(F8 a) {
    return f8_each([&](int i) { return std::fabs(a.v[i]); });
}
inline F8 f8_from(I8 a) {
    return f8_each([&](int i) { return float(a.v[i]); });
}
inline I8 f8_round(F8 a) {
    I8 r;
    for (int i = 0; i < 8; ++i) r.v[i] = a.v[i] >= -2147483648.0f && a.v[i] < 2147483648.0f ? int32_t(std::nearbyintf(a.v[i])) : INT32_MIN;
    return r;
}
inline F8 f8_exp2i(I8 n) {
    return f8_each([&](int i) {
        const uint32_t bits = (uint32_t(n.v[i]) + 127u) << 23;
        float f;
        std::memcpy(&f, &bits, 4);
        return f;
    });
}
inline F8 f8_if_less(F8 x, F8 limit, F8 y, F8 z) {
    return f8_each([&](int i) { return x.v[i] < limit.v[i] ? y.v[i] : z.v[i]; });
}
inline I8 i8_load_u8(const uint8_t* p) {
    I8 r;
    for (int i = 0; i < 8; ++i) r.v[i] = p[i];
    return r;
}
inline int32_t i8_sum(I8 a, I8 b) {
    int32_t sum = 0;
    for (int i = 0; i < 8; ++i) sum += a.v[i] + b.v[i];
    return sum;
}
inline void i8_store32(int8_t* q, I8 a, I8 b, I8 c, I8 d) {
    for (int i = 0; i < 8; ++i) {
        q[i] = int8_t(a.v[i]);
        q[8 + i] = int8_t(b.v[i]);
        q[16 + i] = int8_t(c.v[i]);
        q[24 + i] = int8_t(d.v[i]);
    }
}

#endif

// Reductions in one fixed order.
inline float f8_sum(F8 a) {
    float l[8];
    f8_store(l, a);
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}
inline float f8_largest(F8 a) {
    float l[8];
    f8_store(l, a);
    float m = l[0];
    for (int i = 1; i < 8; ++i) m = l[i] > m ? l[i] : m;
    return m;
}

// e^x to about 2 units in the last place: x = n ln 2 + r, polynomial of degree 6 in r. 0 below -87, finite above 88.
inline F8 f8_exp(F8 x) {
    const F8 low = f8_set(-87.0f);
    const F8 c = f8_min(f8_set(88.0f), f8_max(low, x));
    const I8 n = f8_round(c * f8_set(1.44269504088896341f));
    const F8 nf = f8_from(n);
    F8 r = f8_fma(nf, f8_set(-0.693359375f), c);
    r = f8_fma(nf, f8_set(2.12194440e-4f), r);
    F8 p = f8_set(1.9875691500e-4f);
    p = f8_fma(p, r, f8_set(1.3981999507e-3f));
    p = f8_fma(p, r, f8_set(8.3334519073e-3f));
    p = f8_fma(p, r, f8_set(4.1665795894e-2f));
    p = f8_fma(p, r, f8_set(1.6666665459e-1f));
    p = f8_fma(p, r, f8_set(5.0000001201e-1f));
    const F8 e = f8_fma(p, r * r, r) + f8_set(1.0f);
    return f8_if_less(x, low, f8_set(0.0f), e * f8_exp2i(n));
}
inline float exp1(float x) {
    float l[8];
    f8_store(l, f8_exp(f8_set(x)));
    return l[0];
}

}  // namespace tandem
