#include "schedule.h"

#include <algorithm>

#include "memory.h"
#include "pack.h"
#include "schedule_passes.h"

namespace stolon {

namespace {

constexpr int64_t kLine = 64;

// Elements of work on one lane that a barrier is worth.
constexpr int64_t kBarrierWorth = 4096;

// Whether an op takes rows that lie together: there must be room for the tables of a tile.
bool takes_tables(const Op& op) {
    const auto fits = [&](const std::vector<Weight>& weights) {
        return std::all_of(weights.begin(), weights.end(), [&](const Weight& w) {
            return paired(w.type) && w.k / kBlock * kTableBytes * (op.gate == Gate::None ? 1 : 2) <= int64_t(kTableScratch);
        });
    };
    return op.short_counter < 0 && fits(op.weights) && fits(op.up);
}

class Maker {
   public:
    Maker(const Kernels& kernels, const std::vector<Op>& ops, const std::vector<Buffer>& buffers,
          const std::vector<int>& handed_out, int64_t rows, int64_t outputs, int lanes)
        : kernels_(kernels), ops_(ops), buffers_(buffers), handed_out_(handed_out), rows_(rows), outputs_(outputs), lanes_(lanes) {
        region_of_.resize(buffers.size(), -1);
        q8_of_.resize(buffers.size(), -1);
        half_of_.resize(buffers.size(), -1);
        tiles_of_.resize(buffers.size(), -1);
        together_.resize(buffers.size(), true);
        for (const Op& op : ops_)
            if (op.kind == OpKind::Linear && !takes_tables(op)) together_[size_t(op.x)] = false;
    }

    Schedule make() {
        if (rows_ == 0) return std::move(made_);
        for (size_t i = 0; i < ops_.size(); ++i) add_op(int(i));
        for (size_t i = 0; i < handed_out_.size(); ++i) hand_out(handed_out_[i], int(i));
        find_lifetimes(made_);
        if (rows_ == kManyRows) split_by_blocks();
        place_regions(made_);
        put_barriers(made_, ops_, lanes_);
        // A barrier within a run of blocks would part what a lane must do in one go.
        for (size_t i = 1; made_.blocks && i < made_.stages.size(); ++i) {
            if (!made_.stages[i].barrier || run_of_[i] < 0 || run_of_[i] != run_of_[i - 1]) continue;
            return Maker(kernels_, ops_, buffers_, handed_out_, kFewRows + 1, outputs_, lanes_).make();
        }
        return std::move(made_);
    }

   private:
    bool wanted(int buffer) const { return !buffers_[size_t(buffer)].by_output || outputs_ > 0; }

    int64_t count(bool by_output) const { return by_output ? outputs_ : rows_; }

    // How a stage that goes row by row is divided. Where it goes to an array of the caller there is only
    // one place for the result.
    Split row_split(bool by_output, int64_t width, Space target) const {
        const int64_t n = count(by_output);
        if (lanes_ == 1 || n > kFewRows || target == Space::Output) return Split::Rows;
        const int64_t saved = n - (n + lanes_ - 1) / lanes_;
        return saved * width <= kBarrierWorth ? Split::Every : Split::Rows;
    }

    int new_region(Space space, int64_t bytes, int64_t at = 0) {
        made_.regions.push_back({space, bytes, at, -1, -1});
        return int(made_.regions.size()) - 1;
    }

    int rows_region(bool by_output, Split split, int64_t bytes) {
        const bool own = split == Split::Every;
        const Space space = by_output ? (own ? Space::OwnOutRows : Space::OutRows) : (own ? Space::OwnRows : Space::Rows);
        return new_region(space, round_up(bytes, kLine));
    }

    // The region of a buffer that the stage in hand fills. The first time that a buffer is handed out, it
    // is made in the caller's array.
    int result(int buffer, Split split) {
        const Buffer& b = buffers_[size_t(buffer)];
        const int array = array_of(buffer);
        const int region = array >= 0 ? new_region(Space::Output, 1, array)
                                      : rows_region(b.by_output, split, b.width * 4);
        return region_of_[size_t(buffer)] = region;
    }

    int array_of(int buffer) const {
        const auto found = std::find(handed_out_.begin(), handed_out_.end(), buffer);
        return found == handed_out_.end() ? -1 : int(found - handed_out_.begin());
    }

    Space target(int buffer) const { return array_of(buffer) >= 0 ? Space::Output : Space::Rows; }

    void add_op(int index) {
        const Op& op = ops_[size_t(index)];
        if (!wanted(op.out)) return;
        const Buffer& out = buffers_[size_t(op.out)];
        Stage stage{};
        stage.op = index;
        stage.by_output = out.by_output;
        if (op.x >= 0) {
            stage.x = region_of_[size_t(op.x)];
            stage.width = buffers_[size_t(op.x)].width;
        }
        if (op.y >= 0) stage.y = region_of_[size_t(op.y)];
        stage.split = row_split(out.by_output, out.width, target(op.out));
        switch (op.kind) {
            case OpKind::Input:
                region_of_[size_t(op.out)] = new_region(Space::Input, 1, op.array);
                return;
            case OpKind::Embed: stage.kind = StageKind::Embed; break;
            case OpKind::Norm: stage.kind = StageKind::Norm; break;
            case OpKind::Add: stage.kind = StageKind::Add; break;
            case OpKind::Take: stage.kind = StageKind::Take; break;
            case OpKind::Linear:
                prepare(op, index);
                stage.kind = StageKind::Linear;
                stage.split = Split::Kernel;
                stage.q8 = q8_of_[size_t(op.x)];
                stage.half = half_of_[size_t(op.x)];
                if (kernels_.by_unit(op.weights, op.up)) stage.tiles = tiles_of_[size_t(op.x)];
                stage.together = together_[size_t(op.x)];
                break;
            case OpKind::Attend: {
                const HeadShape& shape = op.attend.shape;
                stage.kind = StageKind::Rotate;
                stage.split = Split::Kernel;
                stage.queries = rows_region(false, Split::Kernel, int64_t(shape.num_heads) * shape.head_dim * 2);
                made_.stages.push_back(stage);
                stage.kind = StageKind::Attention;
                stage.x = -1;
                break;
            }
        }
        if (made_as_tiles(op))
            stage.out_tiles = tiles_of_[size_t(op.out)] = rows_region(out.by_output, stage.split, tile_bytes(out.width));
        else
            stage.out = result(op.out, stage.split);
        made_.stages.push_back(stage);
    }

    static int64_t tile_bytes(int64_t width) { return width * int64_t(sizeof(bf16)); }

    // Whether a result is made as tiles at once, as all that reads it are products by the matrix unit. So can be those of norms
    // and of gated products whose columns fill whole tiles.
    bool made_as_tiles(const Op& op) const {
        const auto whole = [](const Weight& w) { return w.columns % kTile == 0; };
        if (op.kind == OpKind::Linear) {
            if (op.gate == Gate::None || op.bias || op.y >= 0 || !kernels_.by_unit(op.weights, op.up)) return false;
            if (!std::all_of(op.weights.begin(), op.weights.end(), whole)) return false;
        } else if (op.kind != OpKind::Norm) {
            return false;
        }
        bool read = false;
        for (const Op& other : ops_) {
            if (other.y == op.out) return false;
            if (other.x != op.out) continue;
            if (other.kind != OpKind::Linear || !kernels_.by_unit(other.weights, other.up)) return false;
            read = true;
        }
        return read && array_of(op.out) < 0;
    }

    struct Form {
        std::vector<int>* known;  // regions that have it, of each buffer
        int* region;              // of the stage
        int64_t bytes;            // a row
    };
    Form form_of(Stage& stage, ActivationType type, int64_t width) {
        const int64_t halves = round_up(width, 32) * int64_t(sizeof(bf16));
        if (type == ActivationType::Q8) return {&q8_of_, &stage.q8, q8_blocks(width) * int64_t(sizeof(Q8Block))};
        if (type == ActivationType::Tiles) return {&tiles_of_, &stage.tiles, tile_bytes(width)};
        return {&half_of_, &stage.half, halves};
    }

    // The forms of x that the weights take and that aren't there yet.
    void prepare(const Op& op, int index) {
        const Buffer& x = buffers_[size_t(op.x)];
        const bool unit = kernels_.by_unit(op.weights, op.up);
        for (const std::vector<Weight>* weights : {&op.weights, &op.up}) {
            for (const Weight& weight : *weights) {
                const ActivationType type = unit ? ActivationType::Tiles : activation_of(weight.type);
                if (type == ActivationType::F32) continue;
                Stage stage{};
                const auto [known, region, bytes] = form_of(stage, type, x.width);
                int& form = (*known)[size_t(op.x)];
                if (form >= 0) continue;
                stage.kind = StageKind::Prepare;
                stage.op = index;
                stage.type = type;
                stage.together = together_[size_t(op.x)];
                stage.by_output = x.by_output;
                stage.split = row_split(x.by_output, x.width, Space::Rows);
                stage.x = region_of_[size_t(op.x)];
                stage.width = x.width;
                *region = form = rows_region(x.by_output, stage.split, bytes);
                made_.stages.push_back(stage);
            }
        }
    }

    void hand_out(int buffer, int array) {
        if (!wanted(buffer)) return;
        const int region = region_of_[size_t(buffer)];
        const Region& r = made_.regions[size_t(region)];
        if (r.space == Space::Output && r.at == array) return;
        Stage stage{};
        stage.kind = StageKind::Copy;
        stage.split = Split::Rows;
        stage.by_output = buffers_[size_t(buffer)].by_output;
        stage.x = region;
        stage.width = buffers_[size_t(buffer)].width;
        stage.out = new_region(Space::Output, 1, array);
        made_.stages.push_back(stage);
    }

    // Runs of stages that go row by row are split by blocks. What begins and ends within a run is a lane's own.
    void split_by_blocks() {
        run_of_.assign(made_.stages.size(), -1);
        int runs = 0;
        for (size_t i = 0; i < made_.stages.size(); ++i) {
            Stage& stage = made_.stages[i];
            if (stage.by_output || stage.kind == StageKind::Attention || stage.kind == StageKind::Copy) continue;
            stage.split = Split::Blocks;
            run_of_[i] = i && run_of_[i - 1] >= 0 ? run_of_[i - 1] : runs++;
        }
        for (Region& region : made_.regions) {
            if (region.space != Space::Rows || region.first < 0) continue;
            const int run = run_of_[size_t(region.first)];
            if (run >= 0 && run == run_of_[size_t(region.last)]) region.space = Space::OwnRows;
        }
        made_.blocks = true;
    }

    const Kernels& kernels_;
    const std::vector<Op>& ops_;
    const std::vector<Buffer>& buffers_;
    const std::vector<int>& handed_out_;
    const int64_t rows_, outputs_;
    const int lanes_;
    Schedule made_;
    std::vector<int> region_of_, q8_of_, half_of_, tiles_of_;
    std::vector<char> together_;  // of each buffer: whether all linears that read it take tables
    std::vector<int> run_of_;  // of each stage: its run of blocks, or -1
};

}  // namespace

int64_t many_rows(const std::vector<Op>& ops, bool tables, int lanes) {
    tables = tables && std::any_of(ops.begin(), ops.end(), [](const Op& op) {
        return op.kind == OpKind::Linear && takes_tables(op);
    });
    return (tables ? 2 : 1) * kBlockRows * lanes;
}

Schedule make_schedule(const Kernels& kernels, const std::vector<Op>& ops, const std::vector<Buffer>& buffers,
                       const std::vector<int>& handed_out, int64_t rows, int64_t outputs, int lanes) {
    return Maker(kernels, ops, buffers, handed_out, rows, outputs, lanes).make();
}

}  // namespace stolon
