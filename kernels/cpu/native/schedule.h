// From the recorded ops of a program to the list that lanes go through: what is divided how, where results
// lie in memory, and where lanes must wait for each other.
//
// A schedule is made for a count of rows (exact when it is small). With few rows a barrier costs more than
// normalising or quantising them, so every lane does that for all rows, into memory of its own. With many
// rows, what lies between two attentions is done block by block: a lane takes a block of rows through all
// stages, so that what they hand on stays in its cache and nobody waits.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace stolon {

struct AttendOp {
    HeadShape shape;
    float scale;
    int64_t window;  // 0: none
    float softcap;   // 0: none
    const float* head_norm;
    float eps;
    const float* cos;
    const float* sin;
    bf16* k;
    bf16* v;
    int64_t slots;
    int plan;  // of the program's plans
};

enum class OpKind { Input, Embed, Norm, Linear, Add, Attend, Take };

struct Op {
    OpKind kind;
    std::string name;
    int out = -1;  // buffer
    int x = -1;
    int y = -1;    // residual or summand
    bool gather = false;  // x is read through the step's output rows
    std::vector<Weight> weights, up;
    std::span<const Weight> upcoming;  // of the linear after this one
    Gate gate = Gate::None;
    const float* bias = nullptr;
    const float* factor = nullptr;  // of a norm
    float scale = 1.0f;
    float eps = 0.0f;
    float softcap = 0.0f;
    int counter = -1;
    int short_counter = -1;  // of a head that may be cut short: of the tiles of the short lists
    int array = -1;  // of an input
    AttendOp attend{};
};

// A virtual float32 [rows, width].
struct Buffer {
    int64_t width;
    bool by_output;  // a row for each output row, else for each row of the step
};

enum class Space : uint8_t {
    Rows,       // shared by the lanes; `at` is in bytes per row of the step
    OutRows,    // the same per output row
    OwnRows,    // one for each lane
    OwnOutRows,
    Input,      // `at` is the number of an array of the caller
    Output,
    Address,    // a cache: `at` is where it is
};

// Memory with one content. In the first four spaces, n rows take n * bytes from n * at on.
struct Region {
    Space space;
    int64_t bytes;
    int64_t at = 0;
    int first = -1;  // stage that fills it
    int last = -1;   // stage that reads it last
};

enum class StageKind : uint8_t { Embed, Norm, Take, Prepare, Linear, Add, Rotate, Attention, Copy };
inline constexpr const char* kStageNames[] = {"embed", "norm", "take_outputs", "prepare", "linear",
                                              "add",   "rotate", "attention",  "copy"};

enum class Split : uint8_t {
    Kernel,  // the kernel divides the work over the lanes
    Rows,    // every lane does a contiguous part of the rows, the same in all such stages
    Every,   // every lane does all rows
    Blocks,  // lanes claim blocks of rows, and take each through a run of such stages
};

struct Stage {
    StageKind kind;
    Split split;
    bool barrier = false;  // before it
    bool by_output = false;
    ActivationType type = ActivationType::F32;  // of prepare
    int op = -1;
    int x = -1, y = -1, out = -1;  // regions
    int q8 = -1, half = -1, tiles = -1;  // regions: prepared forms of x
    int out_tiles = -1;            // region: of the result, in the one form that it is read in
    bool together = false;         // all that takes q8 takes rows that lie together (activations.h)
    int queries = -1;              // region: of rotate and attention
    int64_t width = 0;             // of x
};

struct Schedule {
    std::vector<Stage> stages;
    std::vector<Region> regions;
    bool blocks = false;  // some stages are split by blocks: own regions hold the rows of one
    int64_t row_bytes[4] = {0, 0, 0, 0};  // of the first four spaces
};

// Up to this many rows schedules are made for the exact number; more rows share one.
inline constexpr int64_t kFewRows = 8;
// Rows of a block, at most: enough to pay for tables of scales (gemm_together.h), and about what a second-level cache holds.
inline constexpr int64_t kBlockRows = 256;
// Stands for any number from `many_rows` on.
inline constexpr int64_t kManyRows = kFewRows + 2;

// From how many rows on what lies between two attentions is done block by block: a block for each lane. Where products
// take tables (`tables`: they may) two, as with fewer rows tables made once for all of them save more than blocks do.
int64_t many_rows(const std::vector<Op>& ops, bool tables, int lanes);

// `rows`: in [0, kFewRows], kFewRows + 1 for more, or kManyRows. `outputs`: in [0, kFewRows], or
// kFewRows + 1 for more. `handed_out`: buffers, in order.
Schedule make_schedule(const Kernels& kernels, const std::vector<Op>& ops, const std::vector<Buffer>& buffers,
                       const std::vector<int>& handed_out, int64_t rows, int64_t outputs, int lanes);

}  // namespace stolon
