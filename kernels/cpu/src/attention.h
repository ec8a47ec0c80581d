// Attention of rows over float16 K and V rows read where they lie.
//
// Place t of a row is KV row t below its prefix, else ancestors[t - prefix]. Places are split at multiples of kSplit. Of each
// split: scores as one chain over the head's dimensions for each place, their maximum, exponentials, their sum by
// lanes (place mod 8) and then across lanes, and the weighted values as one chain over places. Splits merge in order.
// So a row's bits depend on its own places alone; tiles of rows share loads, never sums.
#pragma once

#include <algorithm>
#include <limits>

#include "simd.h"

namespace tandem {

constexpr int kSplit = 128;
constexpr int kMaxQueries = 12;
constexpr int kMaxHeadDim = 256;

// Where one row's places lie.
struct Places {
    const int32_t* ancestors;
    int32_t prefix;
    int32_t count;

    int64_t row(int64_t t) const { return t < prefix ? t : ancestors[t - prefix]; }
};

// A tile: up to kMaxQueries query heads over one KV head. `identity`: place t of each of its rows is KV row t; a tile
// of several rows is always so.
struct Tile {
    const uint16_t* k;
    const uint16_t* v;
    int64_t kv_stride;
    int head_dim;
    int queries;
    const float* q[kMaxQueries];
    Places places[kMaxQueries];
    int32_t most;  // the largest count
    bool identity;

    int64_t row(int64_t t) const { return identity ? t : places[0].row(t); }
};

// A split's result for each query: weighted values (not divided), sum and maximum.
struct Partial {
    float* out[kMaxQueries];
    float sum[kMaxQueries];
    float top[kMaxQueries];
};

// keys[d * 8 + lane] = K of eight places from t on, dimension d. Places past the end repeat the last one.
inline void transpose_keys(const Tile& tile, int64_t t, float* keys) {
    const uint16_t* row[8];
    for (int i = 0; i < 8; ++i) row[i] = tile.k + tile.row(std::min<int64_t>(t + i, tile.most - 1)) * tile.kv_stride;
#if TANDEM_AVX2
    for (int d = 0; d < tile.head_dim; d += 8) {
        __m128i x[8], y[8];
        for (int i = 0; i < 8; ++i) x[i] = _mm_loadu_si128((const __m128i*)(row[i] + d));
        for (int i = 0; i < 4; ++i) {
            y[2 * i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
            y[2 * i + 1] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
        }
        for (int i = 0; i < 2; ++i) {
            x[4 * i] = _mm_unpacklo_epi32(y[4 * i], y[4 * i + 2]);
            x[4 * i + 1] = _mm_unpackhi_epi32(y[4 * i], y[4 * i + 2]);
            x[4 * i + 2] = _mm_unpacklo_epi32(y[4 * i + 1], y[4 * i + 3]);
            x[4 * i + 3] = _mm_unpackhi_epi32(y[4 * i + 1], y[4 * i + 3]);
        }
        for (int i = 0; i < 4; ++i) {
            _mm256_store_ps(keys + (d + 2 * i) * 8, _mm256_cvtph_ps(_mm_unpacklo_epi64(x[i], x[i + 4])));
            _mm256_store_ps(keys + (d + 2 * i + 1) * 8, _mm256_cvtph_ps(_mm_unpackhi_epi64(x[i], x[i + 4])));
        }
    }
#else
    for (int d = 0; d < tile.head_dim; ++d)
        for (int i = 0; i < 8; ++i) keys[d * 8 + i] = f16_to_f32(row[i][d]);
#endif
}

// Scores of Q queries over G groups of eight places: out[g * kMaxQueries + i]. More chains hide the latency of one.
template <int Q, int G>
inline void score_queries(const float* const* q, const float* keys, int head_dim, F8* out) {
    F8 acc[G][Q];
    for (int g = 0; g < G; ++g)
        for (int i = 0; i < Q; ++i) acc[g][i] = f8_set(0.0f);
    for (int d = 0; d < head_dim; ++d) {
        F8 k[G];
        for (int g = 0; g < G; ++g) k[g] = f8_load(keys + (g * kMaxHeadDim + d) * 8);
        for (int i = 0; i < Q; ++i) {
            const F8 x = f8_set(q[i][d]);
            for (int g = 0; g < G; ++g) acc[g][i] = f8_fma(k[g], x, acc[g][i]);
        }
    }
    for (int g = 0; g < G; ++g)
        for (int i = 0; i < Q; ++i) out[g * kMaxQueries + i] = acc[g][i];
}

template <int G>
inline void score_all(const float* const* q, int queries, const float* keys, int head_dim, F8* out) {
    int i = 0;
    if constexpr (G == 1)
        for (; i + 12 <= queries; i += 12) score_queries<12, G>(q + i, keys, head_dim, out + i);
    for (; i + 6 <= queries; i += 6) score_queries<6, G>(q + i, keys, head_dim, out + i);
    for (; i + 3 <= queries; i += 3) score_queries<3, G>(q + i, keys, head_dim, out + i);
    for (; i < queries; ++i) score_queries<1, G>(q + i, keys, head_dim, out + i);
}

// Ask for a head's row of eight places early.
inline void prefetch_rows(const Tile& tile, const uint16_t* base, int64_t t) {
    for (int64_t i = t; i < std::min<int64_t>(t + 8, tile.most); ++i)
        for (int d = 0; d < tile.head_dim; d += 32) __builtin_prefetch(base + tile.row(i) * tile.kv_stride + d);
}

// out[i][d] += weight[i][t] * V of place t, for Q queries and N vectors of dimensions from d on, t in [from, to).
template <int Q, int N>
inline void add_values(const Tile& tile, const float* const* weight, float* const* out, int64_t base, int64_t from,
                       int64_t to, int d) {
    F8 acc[Q][N];
    for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) acc[i][n] = f8_load(out[i] + d + n * 8);
    for (int64_t t = from; t < to; ++t) {
        const uint16_t* row = tile.v + tile.row(t) * tile.kv_stride + d;
        F8 v[N];
        for (int n = 0; n < N; ++n) v[n] = f8_load_f16(row + n * 8);
        for (int i = 0; i < Q; ++i) {
            const F8 w = f8_set(weight[i][t - base]);
            for (int n = 0; n < N; ++n) acc[i][n] = f8_fma(w, v[n], acc[i][n]);
        }
    }
    for (int i = 0; i < Q; ++i)
        for (int n = 0; n < N; ++n) f8_store(out[i] + d + n * 8, acc[i][n]);
}

template <int Q>
inline void add_values_wide(const Tile& tile, const float* const* weight, float* const* out, int64_t base, int64_t from,
                            int64_t to) {
    int d = 0;
    for (; d + 32 <= tile.head_dim; d += 32) add_values<Q, 4>(tile, weight, out, base, from, to, d);
    for (; d < tile.head_dim; d += 8) add_values<Q, 1>(tile, weight, out, base, from, to, d);
}

inline void add_values_all(const Tile& tile, const float* const* weight, float* const* out, int queries, int64_t base,
                           int64_t from, int64_t to) {
    if (from >= to) return;
    int i = 0;
    for (; i + 3 <= queries; i += 3) add_values_wide<3>(tile, weight + i, out + i, base, from, to);
    for (; i + 2 <= queries; i += 2) add_values_wide<2>(tile, weight + i, out + i, base, from, to);
    for (; i < queries; ++i) add_values_wide<1>(tile, weight + i, out + i, base, from, to);
}

// One split of a tile. Queries whose row has no place in it get sum 0 and top -inf.
inline void attend_split(const Tile& tile, int split, Partial& partial) {
    alignas(32) float keys[2 * kMaxHeadDim * 8];
    alignas(32) float weight[kMaxQueries][kSplit];
    const float kNone = -std::numeric_limits<float>::infinity();
    const int64_t first = int64_t(split) * kSplit;
    const int64_t last = std::min<int64_t>(first + kSplit, tile.most);
    const int groups = int((last - first + 7) / 8);
    const F8 lane = f8_load([] {
        alignas(32) static const float index[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        return index;
    }());
    F8 top[kMaxQueries];
    for (int i = 0; i < tile.queries; ++i) top[i] = f8_set(kNone);
    for (int g = 0; g < groups;) {
        F8 score[2 * kMaxQueries];
        const int several = tile.queries <= 6 && g + 1 < groups ? 2 : 1;
        for (int i = 0; i < several; ++i) {
            const int64_t t = first + (g + i) * 8;
            prefetch_rows(tile, tile.k, t + 16);
            prefetch_rows(tile, tile.v, t);
            transpose_keys(tile, t, keys + i * kMaxHeadDim * 8);
        }
        if (several == 2)
            score_all<2>(tile.q, tile.queries, keys, tile.head_dim, score);
        else
            score_all<1>(tile.q, tile.queries, keys, tile.head_dim, score);
        for (int s = 0; s < several; ++s, ++g) {
            for (int i = 0; i < tile.queries; ++i) {
                const F8 live = f8_set(float(tile.places[i].count - (first + g * 8)));
                const F8 masked = f8_if_less(lane, live, score[s * kMaxQueries + i], f8_set(kNone));
                f8_store(&weight[i][g * 8], masked);
                top[i] = f8_max(masked, top[i]);
            }
        }
    }
    int64_t shared = last;
    for (int i = 0; i < tile.queries; ++i) {
        shared = std::min<int64_t>(shared, tile.places[i].count);
        if (tile.places[i].count <= first) {
            partial.top[i] = kNone;
            partial.sum[i] = 0.0f;
            continue;
        }
        const float most = f8_largest(top[i]);
        F8 sum = f8_set(0.0f);
        for (int g = 0; g < groups; ++g) {
            const F8 e = f8_exp(f8_load(&weight[i][g * 8]) - f8_set(most));
            f8_store(&weight[i][g * 8], e);
            sum = sum + e;
        }
        partial.top[i] = most;
        partial.sum[i] = f8_sum(sum);
    }
    const float* weights[kMaxQueries];
    for (int i = 0; i < tile.queries; ++i) {
        weights[i] = weight[i];
        for (int d = 0; d < tile.head_dim; d += 8) f8_store(partial.out[i] + d, f8_set(0.0f));
    }
    add_values_all(tile, weights, partial.out, tile.queries, first, first, shared);
    // A row never reads the V of another row's places, not even times zero.
    for (int i = 0; i < tile.queries;) {
        int same = 1;
        while (i + same < tile.queries && tile.places[i + same].count == tile.places[i].count) ++same;
        const int64_t end = std::min<int64_t>(last, tile.places[i].count);
        add_values_all(tile, weights + i, partial.out + i, same, first, std::max(first, shared), end);
        i += same;
    }
}

// Fold a later split's result into an earlier one's.
inline void merge_split(float* out, float& sum, float& top, const float* other, float other_sum, float other_top, int head_dim) {
    const float most = other_top > top ? other_top : top;
    const float a = exp1(top - most), b = exp1(other_top - most);
    const F8 fa = f8_set(a), fb = f8_set(b);
    for (int d = 0; d < head_dim; d += 8) f8_store(out + d, f8_fma(f8_load(other + d), fb, f8_load(out + d) * fa));
    sum = std::fma(other_sum, b, sum * a);
    top = most;
}

inline void finish_head(const float* out, float sum, int head_dim, float* y) {
    const F8 total = f8_set(sum);
    for (int d = 0; d < head_dim; d += 8) f8_store(y + d, f8_load(out + d) / total);
}

}  // namespace tandem
