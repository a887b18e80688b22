// The contract between the program (program.cpp) and the kernels: plain structs, one function a kernel.
//
// Every kernel is called by all lanes of a team with the same arguments. It contains no barrier unless
// its comment says so; the caller puts one between a kernel that writes and a kernel that reads.
//
// Rows are independent: what a kernel writes for a row depends on that row's inputs alone, bit for bit,
// whatever other rows there are and whichever lane computes it.
//
// Checks of shapes and indices have been made before (program_bind.cpp, program_record.cpp, step.cpp): kernels trust.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "activations.h"
#include "team.h"

namespace stolon {

// Work list of a kernel call: reset to 0 by the caller before the call.
using Counter = std::atomic<int64_t>;

inline constexpr int kTile = 16;  // output columns whose weights lie together

// ---------------------------------------------------------------------------------------------------
// Weights (pack.cpp makes them, gemm.cpp reads them)

enum class WeightType : int { F32 = 0, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

// `[columns, k]`: output column n is row n of the stored matrix. Packed by tiles of 16 columns, the last
// one padded with zeros. The layout inside a tile is described in pack.h.
struct Weight {
    WeightType type;
    int64_t columns;     // n
    int64_t k;           // inputs
    int64_t k_padded;    // k rounded up to what the layout holds (equal to k for the quantised types)
    int64_t tile_bytes;  // from one tile to the next
    const std::byte* data;  // 64-byte aligned
    const uint8_t* units;   // of the columns, where scales have them (pack.h); else null

    // The columns of tiles from `tile` on, at most `most` of them.
    Weight from_tile(int64_t tile, int64_t most) const {
        Weight part = *this;
        part.columns = std::min(most, columns - tile * kTile);
        part.data += tile * tile_bytes;
        if (units) part.units += tile * kTile;
        return part;
    }
};

enum class Gate : int { None = 0, Silu, GeluTanh };

// Rows of a layer's cache that one lane is to bring near while it computes with something else, and how far it is.
struct CacheRows {
    const std::byte* k;
    const std::byte* v;
    int64_t row_bytes;        // of keys, and of values
    const int32_t* next;      // slots
    const int32_t* end;
    int64_t due;              // parts of a row that should have been fetched by now (gemm_operands.h)
};

// Bytes of a lane's scratch that `linear` puts tables into: a third of the smallest second-level cache of the processors
// that tables are for.
inline constexpr size_t kTableScratch = size_t(320) << 10;

// The scratch that a product with k inputs needs without tables: two panels of 16 columns in bfloat16 (matrix_panel.h).
constexpr size_t linear_scratch_bytes(int64_t k) { return size_t(2 * kTile * k) * sizeof(bf16); }

// out[row, n] = sum_k x[row, k] * w[n, k] (+ bias[n]) (+ residual[row, n]); with a gate:
// act(x . w) * (x . up), where w and up have the same number of columns.
// A reduction runs over k in the order of the blocks, for every number of rows. Rows that lie together are given whole, for
// weights whose scales are pairs (pack.h), with room for the tables of a tile in the lanes' scratch.
struct LinearArgs {
    const Activations* x;
    std::span<const Weight> weights;  // several matrices side by side: their columns follow one another
    const Weight* up;           // with a gate: one for each of `weights`
    Gate gate;
    const float* bias;          // [total columns] or null
    const float* residual;      // [rows, total columns], row stride as out, or null; may be `out` itself
    float* out;                 // [rows, total columns]
    int64_t out_stride;
    const Activations* tiles;   // where the result of a gated product goes instead, or null: where the unit multiplies only
    float softcap;              // 0: none; else softcap * tanh(y / softcap)
    std::span<const Weight> upcoming;  // of the next call of `linear`, to be fetched early
    Counter* counter;
    CacheRows* cache_rows;      // this lane's, to be fetched meanwhile; or null
    int64_t cache_rows_due;     // how many of them
};

// ---------------------------------------------------------------------------------------------------
// Rows (rows.cpp)

// out[row] = scale * row ids[row] of a weight, dequantised.
struct EmbedArgs {
    const Weight* table;
    const int64_t* ids;
    int64_t rows;
    float scale;
    float* out;  // [rows, k]
};

// x / sqrt(mean(x^2) + eps) * weight, in float32, for rows that may be gathered.
struct NormArgs {
    const float* x;          // [*, width]
    int64_t x_stride;
    const int64_t* gather;   // row of x for each row of out, or null
    int64_t rows;
    int64_t width;
    const float* weight;
    float eps;
    const float* add;        // added to the result, or null (post-norm residual); stride as out
    float* out;              // may be x or add
    int64_t out_stride;
    const Activations* tiles;  // where the result goes instead, or null
};

struct AddArgs {
    const float* x;
    const float* y;
    float* out;
    int64_t count;
};

// Fill the form of `a` that `type` names from a.f32.
struct PrepareArgs {
    Activations* a;
    ActivationType type;
};

// ---------------------------------------------------------------------------------------------------
// Attention (attention.cpp)

struct HeadShape {
    int num_heads, num_kv_heads, head_dim;
};

// Normalise (optional) and rotate queries and keys, write keys and values to their slots in bf16, and
// queries, times `query_scale`, to `q` in bf16. Rotation is rotate-half: feature i pairs with i + D/2.
struct RotateArgs {
    HeadShape shape;
    int64_t rows;
    const float* qkv;          // [rows, (heads + 2 kv_heads) * head_dim]
    const float* head_norm;    // [heads + kv_heads, head_dim] or null
    float eps;
    const float* cos;          // [positions, head_dim / 2]
    const float* sin;
    const int64_t* positions;  // [rows]
    const int64_t* slots;      // [rows]
    float query_scale;
    bf16* q;                   // [rows, heads, head_dim]
    bf16* k;                   // [slots, kv_heads, head_dim]
    bf16* v;
};

// What attention needs of a step's layout, made once per step and window by `AttentionPlan::build`
// (attention_plan.h, not per instruction set).
struct AttentionPlan;

// softmax(q k^T) v, causal over each run's own context.
//
// The context is cut into blocks of kKvBlock positions, counted from position 0. The partial result of
// a row over a block (maximum, sum, weighted values) depends on the row and the block alone; partials are
// merged in the order of the blocks. May contain barriers.
struct AttentionArgs {
    HeadShape shape;
    const AttentionPlan* plan;
    const bf16* q;
    const bf16* k;
    const bf16* v;
    float softcap;  // 0: none
    float* out;     // [rows, heads * head_dim]
    Counter* counter;
};

// ---------------------------------------------------------------------------------------------------
// Sampling (sample.cpp, described in sample.h)

struct SampleArgs;

// ---------------------------------------------------------------------------------------------------

// One implementation of everything above.
struct Kernels {
    const char* name;
    int64_t together_rows;  // from so many on rows are to lie together, where `linear` takes that
    // Whether `linear` takes activations as Tiles for these weights, whatever their types: where a matrix unit multiplies.
    bool (*by_unit)(std::span<const Weight> weights, std::span<const Weight> up);
    void (*prepare)(const Lane&, const PrepareArgs&);
    void (*linear)(const Lane&, const LinearArgs&);
    void (*embed)(const Lane&, const EmbedArgs&);
    void (*norm)(const Lane&, const NormArgs&);
    void (*add)(const Lane&, const AddArgs&);
    void (*rotate)(const Lane&, const RotateArgs&);
    void (*attention)(const Lane&, const AttentionArgs&);
    void (*sample)(const Lane&, const SampleArgs&);
};

const Kernels* kernels_portable();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_amx();

// The best that this processor runs, or the one named; null if it can't be had.
const Kernels* choose_kernels(const char* name);

}  // namespace stolon
