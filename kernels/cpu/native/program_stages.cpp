// The stages of a program: where their operands lie, and the kernel calls.
#include <cstring>

#include "program_frame.h"

namespace stolon {

namespace {

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

// Pointers of one lane to the regions of a step.
struct Places {
    const Schedule& schedule;
    std::byte* base[4];
    int64_t rows[4];  // that the four spaces have room for
    int64_t first;    // row of the step that own regions begin with
    std::span<const float* const> inputs;
    std::span<float* const> outputs;

    std::byte* bytes(int region) const {
        const Region& r = schedule.regions[size_t(region)];
        return base[int(r.space)] + r.at * rows[int(r.space)];
    }
    int64_t room(int region) const { return rows[int(schedule.regions[size_t(region)].space)]; }
    // Place of a row of the step in a region.
    int64_t place(int region, int64_t row) const {
        return schedule.regions[size_t(region)].space == Space::OwnRows ? row - first : row;
    }
    float* row(int region, int64_t row, int64_t width) const {
        return region < 0 ? nullptr : floats(region) + place(region, row) * width;
    }
    float* floats(int region) const {
        if (region < 0) return nullptr;
        const Region& r = schedule.regions[size_t(region)];
        if (r.space == Space::Input) return const_cast<float*>(inputs[size_t(r.at)]);
        if (r.space == Space::Output) return outputs[size_t(r.at)];
        return reinterpret_cast<float*>(bytes(region));
    }
};

// Rows `range` of a region of tiles, k numbers a row. `all`: the rows of the step, or of the block, that lie together there.
Activations tiled(const Places& places, int region, int64_t k, Range range, Range all) {
    Activations a{};
    a.rows = range.size();
    a.k = k;
    a.tiles = reinterpret_cast<bf16*>(places.bytes(region)) + places.place(region, all.begin) * k;
    a.tiled = all.size();
    a.first = range.begin - all.begin;
    return a;
}

// Rows `range` of the input of a stage. `all`: the rows of the step, or of the block, that stages are in.
Activations activations(const Places& places, const Stage& stage, Range range, Range all, int64_t together_rows) {
    const int64_t k = stage.width;
    Activations a{};
    if (stage.tiles >= 0) a = tiled(places, stage.tiles, k, range, all);
    a.rows = range.size();
    a.k = k;
    a.f32 = places.row(stage.x, range.begin, k);
    a.f32_stride = k;
    if (stage.half >= 0) {
        const int64_t from = places.place(stage.half, range.begin);
        a.half_stride = round_up(k, 32);
        a.half = reinterpret_cast<bf16*>(places.bytes(stage.half)) + from * a.half_stride;
    }
    if (stage.q8 >= 0) {
        const auto blocks_of = [&](int64_t row) {
            return reinterpret_cast<Q8Block*>(places.bytes(stage.q8)) + places.place(stage.q8, row) * q8_blocks(k);
        };
        if (stage.together && all.size() >= together_rows) {
            static_assert(sizeof(PairBlock) <= sizeof(Q8Block));
            a.pairs = reinterpret_cast<PairBlock*>(blocks_of(all.begin));
            a.together = all.size();
            a.first = range.begin - all.begin;
        } else {
            a.q8_stride = q8_blocks(k);
            a.q8 = blocks_of(range.begin);
        }
    }
    return a;
}

// The output rows of the short lists: tile by tile what is wanted, through the kernel that computes whole
// rows, so that the bits are the same. `args` are those of the whole rows.
void short_rows(const Kernels& kernels, const Lane& alone, const Places& places, const Stage& stage, Range all,
                LinearArgs args, const std::vector<RowTile>& tiles, Counter& counter) {
    const Weight& whole = args.weights[0];
    const auto part = [&](int64_t index) { return whole.from_tile(tiles[size_t(index)].tile, kTile); };
    const int64_t count = int64_t(tiles.size());
    int64_t index = Lane::claim(counter);
    while (index < count) {
        const int64_t next = Lane::claim(counter);
        const Weight weight = part(index), following = part(std::min(next, count - 1));
        const RowTile& at = tiles[size_t(index)];
        const Range rows{at.row, at.row + at.rows};
        const Activations x = activations(places, stage, rows, all, kernels.together_rows);
        Counter only{0};
        args.x = &x;
        args.weights = {&weight, 1};
        args.upcoming = {&following, 1};
        args.out = places.row(stage.out, at.row, args.out_stride) + at.tile * kTile;
        args.counter = &only;
        kernels.linear(alone, args);
        index = next;
    }
}

}  // namespace

static_assert(int(Space::Rows) % 2 == 0 && int(Space::OutRows) % 2 == 1 && int(Space::OwnRows) % 2 == 0 &&
              int(Space::OwnOutRows) % 2 == 1);

void Program::do_stage(const Lane& lane, const Frame& frame, const Stage& stage, int64_t begin, int64_t end) const {
    const StepView& step = *frame.step;
    std::byte* own = frame.own + frame.own_bytes * lane.index;
    const Places places{*frame.schedule,
                        {frame.base[0], frame.base[1], own, own + frame.own_out_at},
                        {step.rows, step.outputs, frame.own_rows, step.outputs},
                        frame.schedule->blocks ? begin : 0,
                        frame.inputs,
                        frame.outputs};
    // For kernels whose rows are divided here, one lane is all there is.
    const Lane alone{0, 1, lane.team, lane.scratch, lane.scratch_bytes};
    Range range{begin, end};
    if (stage.split == Split::Rows) range = {end * lane.index / lane.count, end * (lane.index + 1) / lane.count};
    if (range.size() == 0) return;

    static const Op none{};
    const Op& op = stage.op >= 0 ? ops_[size_t(stage.op)] : none;
    switch (stage.kind) {
        case StageKind::Embed: {
            const Weight& table = op.weights[0];
            kernels_.embed(alone, {&table, step.input_ids + range.begin, range.size(), op.scale,
                                   places.row(stage.out, range.begin, table.k)});
            break;
        }
        case StageKind::Norm: {
            const int64_t width = stage.width;
            Activations tiles{};
            if (stage.out_tiles >= 0) tiles = tiled(places, stage.out_tiles, width, range, {begin, end});
            kernels_.norm(alone, {op.gather ? places.floats(stage.x) : places.row(stage.x, range.begin, width), width,
                                  op.gather ? step.output_rows + range.begin : nullptr, range.size(), width, op.factor,
                                  op.eps, places.row(stage.y, range.begin, width),
                                  places.row(stage.out, range.begin, width), width,
                                  stage.out_tiles >= 0 ? &tiles : nullptr});
            break;
        }
        case StageKind::Take: {
            const float* x = places.floats(stage.x);
            float* out = places.floats(stage.out);
            for (int64_t row = range.begin; row < range.end; ++row) {
                std::memcpy(out + row * stage.width, x + step.output_rows[row] * stage.width, size_t(stage.width) * 4);
            }
            break;
        }
        case StageKind::Copy: {
            const int64_t from = range.begin * stage.width;
            std::memcpy(places.floats(stage.out) + from, places.floats(stage.x) + from,
                        size_t(range.size() * stage.width) * 4);
            break;
        }
        case StageKind::Add: {
            kernels_.add(alone, {places.row(stage.x, range.begin, stage.width), places.row(stage.y, range.begin, stage.width),
                                 places.row(stage.out, range.begin, stage.width), range.size() * stage.width});
            break;
        }
        case StageKind::Prepare: {
            Activations a = activations(places, stage, range, {begin, end}, kernels_.together_rows);
            kernels_.prepare(alone, {&a, stage.type});
            break;
        }
        case StageKind::Linear: {
            Activations whole = activations(places, stage, range, {begin, end}, kernels_.together_rows);
            LinearArgs args{};
            args.x = &whole;
            args.weights = op.weights;
            args.up = op.up.data();
            args.gate = op.gate;
            args.bias = op.bias;
            args.out_stride = buffers_[size_t(op.out)].width;
            args.residual = places.row(stage.y, range.begin, args.out_stride);
            args.out = places.row(stage.out, range.begin, args.out_stride);
            Activations tiles{};
            if (stage.out_tiles >= 0) {
                tiles = tiled(places, stage.out_tiles, args.out_stride, range, {begin, end});
                args.tiles = &tiles;
            }
            args.softcap = op.softcap;
            args.upcoming = op.upcoming;
            const double part = stage.split == Split::Blocks ? double(range.size() * lane.count) / double(step.rows) : 1.0;
            read_ahead_->attach(args, lane.index, stage.op, part);
            if (stage.split == Split::Blocks) {
                Counter counter{0};
                args.counter = &counter;
                kernels_.linear(alone, args);
                break;
            }
            args.counter = &counter_[size_t(op.counter)].value;
            if (op.short_counter >= 0 && step.lists) {
                short_rows(kernels_, alone, places, stage, {begin, end}, args, step_.tiles(), counter_[size_t(op.short_counter)].value);
                whole.rows -= step.lists;
                if (!whole.rows) break;
            }
            kernels_.linear(lane, args);
            break;
        }
        case StageKind::Rotate: {
            const AttendOp& at = op.attend;
            bf16* queries = reinterpret_cast<bf16*>(places.bytes(stage.queries));
            queries += places.place(stage.queries, begin) * at.shape.num_heads * at.shape.head_dim;
            kernels_.rotate(stage.split == Split::Blocks ? alone : lane,
                            {at.shape, range.size(), places.row(stage.x, begin, stage.width), at.head_norm, at.eps, at.cos,
                             at.sin, step.positions + begin, step.write_slots + begin, at.scale, queries, at.k, at.v});
            break;
        }
        case StageKind::Attention: {
            const AttendOp& at = op.attend;
            kernels_.attention(lane, {at.shape, &plans_[size_t(at.plan)]->plan,
                                      reinterpret_cast<const bf16*>(places.bytes(stage.queries)), at.k, at.v,
                                      at.softcap, places.floats(stage.out), &counter_[size_t(op.counter)].value});
            read_ahead_->attended(lane.index, ops_, stage.op);
            break;
        }
    }
}

}  // namespace stolon
