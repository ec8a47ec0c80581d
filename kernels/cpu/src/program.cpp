// A recorded forward: an array of operations over fixed buffers, run for n rows by one pool in one call.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "attention.h"
#include "elementwise.h"
#include "matrix.h"
#include "thread_pool.h"

namespace tandem {

enum OpKind : int32_t { kEmbed = 0, kProject = 1, kRotateStore = 2, kAttend = 3, kAddLinear = 4, kProjectGated = 5, kHead = 6, kAngles = 7, kKinds = 8 };

// Mirrored by kernels/cpu/abi.py.
struct Op {
    int32_t kind;
    int32_t matrices;
    Matrix m[3];
    const float* in;
    float* out;
    int64_t in_stride;
    int64_t out_stride;
    const float* norm;
    const float* q_norm;
    const float* k_norm;
    const double* frequencies;
    double magnitude;
    float eps;
    float q_scale;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t pairs;
    int32_t interleaved;
    int32_t k_tensor;
    int32_t v_tensor;
    int32_t reserved;
};

struct Batch {
    int32_t n;
    int32_t logits;
    const int32_t* slot;
    const int32_t* token;
    const int32_t* position;
    const int32_t* kv_row;
    const int32_t* prefix;
    const int32_t* ancestor_start;
    const int32_t* ancestors;
    const int32_t* logit_rows;
    const uint64_t* kv_base;  // slots x tensors
    float* logits_out;
    double* op_seconds;  // kKinds sums, or null
    int32_t tensors;
    int32_t reserved;
};

// Transient buffers, sized by the recorder for its largest batch.
struct Workspace {
    float* x;       // normalised inputs, rows x width
    QBlock* q;      // quantised inputs
    float* partial; // attention splits
    int64_t partial_floats;
};

namespace {

constexpr int kPanelRows = 64;
constexpr int64_t kChunkBytes = 16384;
constexpr int kFewRows = 8;
constexpr int kSplitRows = 16;

int64_t groups_of(const Matrix& m) { return (m.n + 7) / 8; }

// Rows that attention computes together.
struct RowTile {
    int32_t first;
    int32_t count;
    bool identity;
};

struct Plan {
    std::vector<RowTile> tiles;
    int32_t splits;  // the most that any row has
};

bool identity_places(const Batch& batch, int r) {
    for (int32_t i = batch.ancestor_start[r]; i < batch.ancestor_start[r + 1]; ++i)
        if (batch.ancestors[i] != batch.prefix[r] + (i - batch.ancestor_start[r])) return false;
    return true;
}

// Neighbouring rows of one slot whose places are its KV rows in order share a tile.
Plan plan_tiles(const Batch& batch, int most_rows) {
    Plan plan;
    plan.splits = 0;
    for (int r = 0; r < batch.n; ++r) {
        plan.splits = std::max(plan.splits, (batch.position[r] + kSplit) / kSplit);
        const bool identity = identity_places(batch, r);
        if (identity && !plan.tiles.empty()) {
            RowTile& last = plan.tiles.back();
            if (last.identity && last.count < most_rows && batch.slot[last.first] == batch.slot[r]) {
                ++last.count;
                continue;
            }
        }
        plan.tiles.push_back({r, 1, identity});
    }
    return plan;
}

class Runner {
  public:
    Runner(ThreadPool::Member& me, const Op* ops, int count, const Batch& batch, const Workspace& ws, const Plan& plan)
        : me_(me), ops_(ops), count_(count), batch_(batch), ws_(ws), plan_(plan) {}

    void walk() {
        for (int i = 0; i < count_; ++i) {
            const auto begin = std::chrono::steady_clock::now();
            run(ops_[i]);
            if (me_.thread() == 0 && batch_.op_seconds)
                batch_.op_seconds[ops_[i].kind] +=
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        }
    }

  private:
    // A phase ends when all of it is done, so the next may read what it wrote.
    void run(const Op& op) {
        switch (op.kind) {
            case kEmbed: return embed(op);
            case kProject:
            case kAddLinear: return project(op);
            case kRotateStore: return rotate_store(op);
            case kAttend: return attend(op);
            case kProjectGated: return project_gated(op);
            case kHead: return head(op);
            case kAngles: return angles(op);
        }
    }

    void embed(const Op& op) {
        me_.each(batch_.n, [&](int64_t r) { unpack_output(op.m[0], batch_.token[r], op.out + r * op.out_stride); });
    }

    // Normalise and quantise the inputs of row `from` as row `to` of the workspace, as far as the matrices want it.
    void prepare_row(const Op& op, int64_t from, int64_t to) {
        const int64_t k = op.m[0].k;
        const float* x = op.in + from * op.in_stride;
        if (op.norm) {
            float* y = ws_.x + to * k;
            rms_norm(x, op.norm, op.eps, k, y);
            x = y;
        }
        bool any = false;
        for (int i = 0; i < op.matrices; ++i) any = any || quantised(op.m[i].form);
        if (any) quantise_row(x, k / 32, ws_.q + to * (k / 32));
    }

    Rows prepared(const Op& op) const {
        const int64_t k = op.m[0].k;
        return {op.norm ? ws_.x : op.in, ws_.q, op.norm ? k : op.in_stride, k / 32};
    }

    // Divide `groups` x `rows` among the pool: fn(group from, group to, row from, row to). Few rows are bound by reading
    // weights and want long runs; many rows want a chunk of weights that stays in the first-level cache.
    template <class Fn>
    void divide(int64_t groups, int64_t bytes, int64_t rows, Fn fn) {
        int64_t chunk;
        if (rows <= kFewRows)
            chunk = std::max<int64_t>(1, groups / (me_.size() * 6));
        else
            chunk = std::max<int64_t>(1, kChunkBytes / bytes);
        const int64_t chunks = (groups + chunk - 1) / chunk;
        const int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
        me_.each(chunks * panels, [&](int64_t u) {
            const int64_t g = u % chunks * chunk, r = u / chunks * kPanelRows;
            fn(g, std::min(groups, g + chunk), r, std::min(rows, r + kPanelRows));
        });
    }

    template <class Store>
    void multiply(const Op& op, const Rows& in, int64_t rows, Store store) {
        int64_t groups = 0;
        for (int i = 0; i < op.matrices; ++i) groups += groups_of(op.m[i]);
        divide(groups, group_bytes(op.m[0].form, op.m[0].k), rows, [&](int64_t g0, int64_t g1, int64_t r0, int64_t r1) {
            for (int64_t r = r0; r < r1; r += kTileRows) {
                const int count = int(std::min<int64_t>(kTileRows, r1 - r));
                int i = 0;
                int64_t first = 0, column = 0;
                for (int64_t g = g0; g < g1; ++g) {
                    while (g - first >= groups_of(op.m[i])) {
                        first += groups_of(op.m[i]);
                        column += op.m[i].n;
                        ++i;
                    }
                    F8 acc[kTileRows];
                    product_rows(op.m[i], g - first, in, r, count, acc);
                    for (int j = 0; j < count; ++j) store(op.m[i], (g - first) * 8, column, r + j, acc[j]);
                }
            }
        });
    }

    static void put(const Matrix& m, int64_t output, F8 acc, float* y, bool add) {
        if (output + 8 <= m.n) {
            if (m.bias) acc = acc + f8_load(m.bias + output);
            if (add) acc = f8_load(y) + acc;
            f8_store(y, acc);
            return;
        }
        float lane[8];
        f8_store(lane, acc);
        for (int64_t i = 0; output + i < m.n; ++i) {
            if (m.bias) lane[i] = lane[i] + m.bias[output + i];
            y[i] = add ? y[i] + lane[i] : lane[i];
        }
    }

    void project(const Op& op) {
        me_.each(batch_.n, [&](int64_t r) { prepare_row(op, r, r); });
        const bool add = op.kind == kAddLinear;
        multiply(op, prepared(op), batch_.n, [&](const Matrix& m, int64_t output, int64_t column, int64_t r, F8 acc) {
            put(m, output, acc, op.out + r * op.out_stride + column + output, add);
        });
    }

    void project_gated(const Op& op) {
        me_.each(batch_.n, [&](int64_t r) { prepare_row(op, r, r); });
        const Rows in = prepared(op);
        const Matrix& gate = op.m[0];
        const Matrix& up = op.m[1];
        divide(groups_of(gate), 2 * group_bytes(gate.form, gate.k), batch_.n, [&](int64_t g0, int64_t g1, int64_t r0, int64_t r1) {
            for (int64_t r = r0; r < r1; r += kTileRows) {
                const int count = int(std::min<int64_t>(kTileRows, r1 - r));
                for (int64_t g = g0; g < g1; ++g) {
                    F8 a[kTileRows], b[kTileRows];
                    product_rows(gate, g, in, r, count, a);
                    product_rows(up, g, in, r, count, b);
                    for (int j = 0; j < count; ++j) {
                        float* y = op.out + (r + j) * op.out_stride + g * 8;
                        put(gate, g * 8, gated(a[j], b[j]), y, false);
                    }
                }
            }
        });
    }

    void head(const Op& op) {
        if (!batch_.logits) return;
        me_.each(batch_.logits, [&](int64_t i) { prepare_row(op, batch_.logit_rows[i], i); });
        Rows in = prepared(op);
        multiply(op, in, batch_.logits, [&](const Matrix& m, int64_t output, int64_t, int64_t r, F8 acc) {
            put(m, output, acc, batch_.logits_out + r * int64_t(m.n) + output, false);
        });
    }

    uint16_t* kv(int slot, int tensor) const {
        return (uint16_t*)uintptr_t(batch_.kv_base[int64_t(slot) * batch_.tensors + tensor]);
    }

    void rotate_store(const Op& op) {
        const int64_t hd = op.head_dim;
        const int64_t kv_width = hd * op.kv_heads;
        me_.each(batch_.n, [&](int64_t r) {
            float* q = op.out + r * op.out_stride;
            float* k = q + hd * op.heads;
            const float* v = k + kv_width;
            const float* angles = op.in + r * op.in_stride;
            for (int h = 0; h < op.heads + op.kv_heads; ++h) {
                float* x = q + h * hd;
                const float* norm = h < op.heads ? op.q_norm : op.k_norm;
                if (norm) rms_norm(x, norm, op.eps, hd, x);
                rotate_head(x, angles, op.pairs, op.interleaved);
                if (h < op.heads)
                    for (int64_t d = 0; d < hd; d += 8) f8_store(x + d, f8_load(x + d) * f8_set(op.q_scale));
            }
            const int64_t row = batch_.kv_row[r];
            uint16_t* k_row = kv(batch_.slot[r], op.k_tensor) + row * kv_width;
            uint16_t* v_row = kv(batch_.slot[r], op.v_tensor) + row * kv_width;
            for (int64_t d = 0; d < kv_width; d += 8) {
                f8_store_f16(k_row + d, f8_load(k + d));
                f8_store_f16(v_row + d, f8_load(v + d));
            }
        });
    }

    void angles(const Op& op) {
        me_.each(batch_.n, [&](int64_t r) {
            rotary_angles(batch_.position[r], op.frequencies, op.pairs, op.magnitude, op.out + r * op.out_stride);
        });
    }

    Places places(int64_t r) const {
        return {batch_.ancestors + batch_.ancestor_start[r], batch_.prefix[r], batch_.position[r] + 1};
    }

    Tile tile_of(const Op& op, const RowTile& rows, int kv_head, int first_head, int heads) const {
        Tile t;
        const int64_t offset = int64_t(kv_head) * op.head_dim;
        t.k = kv(batch_.slot[rows.first], op.k_tensor) + offset;
        t.v = kv(batch_.slot[rows.first], op.v_tensor) + offset;
        t.kv_stride = int64_t(op.kv_heads) * op.head_dim;
        t.head_dim = op.head_dim;
        t.identity = rows.identity;
        t.queries = 0;
        t.most = 0;
        for (int r = rows.first; r < rows.first + rows.count; ++r) {
            const Places p = places(r);
            t.most = std::max(t.most, p.count);
            for (int h = first_head; h < first_head + heads; ++h) {
                t.places[t.queries] = p;
                t.q[t.queries++] = op.in + r * op.in_stride + int64_t(h) * op.head_dim;
            }
        }
        return t;
    }

    void attend(const Op& op) {
        const int group = op.heads / op.kv_heads;
        const int head_chunks = (group + kMaxQueries - 1) / kMaxQueries;
        const int64_t units = int64_t(plan_.tiles.size()) * op.kv_heads * head_chunks;
        const int64_t cell = op.head_dim + 2;
        const bool split = plan_.splits > 1 && batch_.n <= kSplitRows &&
                           int64_t(batch_.n) * op.heads * plan_.splits * cell <= ws_.partial_floats;
        me_.each(split ? units * plan_.splits : units, [&](int64_t u) {
            const int only = split ? int(u % plan_.splits) : -1;
            if (split) u /= plan_.splits;
            const RowTile& rows = plan_.tiles[size_t(u / (op.kv_heads * head_chunks))];
            const int kv_head = int(u / head_chunks % op.kv_heads);
            const int first = int(u % head_chunks) * kMaxQueries;
            const int heads = std::min(group - first, kMaxQueries);
            const Tile tile = tile_of(op, rows, kv_head, kv_head * group + first, heads);
            const int splits = (tile.most + kSplit - 1) / kSplit;
            if (!split) return attend_whole(op, rows, tile, splits, kv_head * group + first, heads);
            if (only >= splits) return;
            Partial partial;
            for (int i = 0; i < tile.queries; ++i)
                partial.out[i] = cell_of(op, rows.first + i / heads, kv_head * group + first + i % heads, only);
            attend_split(tile, only, partial);
            for (int i = 0; i < tile.queries; ++i) {
                partial.out[i][op.head_dim] = partial.sum[i];
                partial.out[i][op.head_dim + 1] = partial.top[i];
            }
        });
        if (!split) return;
        me_.each(int64_t(batch_.n) * op.heads, [&](int64_t u) {
            const int64_t r = u / op.heads;
            const int h = int(u % op.heads);
            const int splits = (batch_.position[r] + kSplit) / kSplit;
            float* out = cell_of(op, r, h, 0);
            float sum = out[op.head_dim], top = out[op.head_dim + 1];
            for (int i = 1; i < splits; ++i) {
                const float* next = cell_of(op, r, h, i);
                merge_split(out, sum, top, next, next[op.head_dim], next[op.head_dim + 1], op.head_dim);
            }
            finish_head(out, sum, op.head_dim, op.out + r * op.out_stride + int64_t(h) * op.head_dim);
        });
    }

    float* cell_of(const Op& op, int64_t row, int head, int split) const {
        return ws_.partial + ((row * op.heads + head) * plan_.splits + split) * (op.head_dim + 2);
    }

    // All splits of a tile on one thread, merged as they come: the same sums as split by split.
    void attend_whole(const Op& op, const RowTile& rows, const Tile& tile, int splits, int first_head, int heads) {
        alignas(32) float first[kMaxQueries][kMaxHeadDim];
        alignas(32) float next[kMaxQueries][kMaxHeadDim];
        Partial a, b;
        for (int i = 0; i < tile.queries; ++i) {
            a.out[i] = first[i];
            b.out[i] = next[i];
        }
        attend_split(tile, 0, a);
        for (int s = 1; s < splits; ++s) {
            attend_split(tile, s, b);
            for (int i = 0; i < tile.queries; ++i)
                if (tile.places[i].count > s * kSplit)
                    merge_split(a.out[i], a.sum[i], a.top[i], b.out[i], b.sum[i], b.top[i], op.head_dim);
        }
        for (int i = 0; i < tile.queries; ++i) {
            float* y = op.out + int64_t(rows.first + i / heads) * op.out_stride + int64_t(first_head + i % heads) * op.head_dim;
            finish_head(a.out[i], a.sum[i], op.head_dim, y);
        }
    }

    ThreadPool::Member& me_;
    const Op* ops_;
    int count_;
    const Batch& batch_;
    const Workspace& ws_;
    const Plan& plan_;
};

int run_batch(ThreadPool& pool, const Op* ops, int count, const Batch& batch, const Workspace& ws) {
    int group = 1;
    for (int i = 0; i < count; ++i)
        if (ops[i].kind == kAttend) group = std::max(group, ops[i].heads / ops[i].kv_heads);
    const Plan plan = plan_tiles(batch, std::max(1, kMaxQueries / group));
    pool.run([&](ThreadPool::Member& me) { Runner(me, ops, count, batch, ws, plan).walk(); });
    return 0;
}

}  // namespace
}  // namespace tandem

extern "C" {

// Sizes of the structures as compiled, to be compared with the caller's.
void tandem_sizes(int32_t* sizes) {
    sizes[0] = int32_t(sizeof(tandem::Matrix));
    sizes[1] = int32_t(sizeof(tandem::Op));
    sizes[2] = int32_t(sizeof(tandem::Batch));
    sizes[3] = int32_t(sizeof(tandem::Workspace));
}

const char* tandem_instructions() {
#if TANDEM_VNNI
    return "avx2+vnni";
#elif TANDEM_AVX2
    return "avx2";
#else
    return "portable";
#endif
}

// Null where the threads cannot be started.
void* tandem_pool_new(int32_t threads) {
    try {
        return new tandem::ThreadPool(threads);
    } catch (...) {
        return nullptr;
    }
}

void tandem_pool_free(void* pool) { delete (tandem::ThreadPool*)pool; }

int64_t tandem_matrix_bytes(int32_t form, int64_t n, int64_t k) { return (n + 7) / 8 * tandem::group_bytes(form, k); }

// Pack `n` rows of `row_bytes` bytes each, as the file holds them, into `out` (tandem_matrix_bytes).
void tandem_pack(void* pool, int32_t form, const uint8_t* raw, int64_t row_bytes, int64_t n, int64_t k, uint8_t* out) {
    const int64_t groups = (n + 7) / 8, chunk = 64;
    ((tandem::ThreadPool*)pool)->run([&](tandem::ThreadPool::Member& me) {
        me.each((groups + chunk - 1) / chunk, [&](int64_t u) {
            for (int64_t g = u * chunk; g < std::min(groups, (u + 1) * chunk); ++g)
                tandem::pack_group(form, raw + g * 8 * row_bytes, row_bytes, int(std::min<int64_t>(8, n - g * 8)), k,
                                   out + g * tandem::group_bytes(form, k));
        });
    });
}

// 0, or 1 where memory for the plan ran out.
int32_t tandem_run(void* pool, const tandem::Op* ops, int32_t count, const tandem::Batch* batch, const tandem::Workspace* ws) {
    try {
        return tandem::run_batch(*(tandem::ThreadPool*)pool, ops, count, *batch, *ws);
    } catch (...) {
        return 1;
    }
}
}
