#include "schedule.h"

#include <algorithm>

#include "memory.h"

namespace stolon {

namespace {

constexpr int64_t kLine = 64;

// Elements of work on one lane that a barrier is worth.
constexpr int64_t kBarrierWorth = 4096;

bool per_row(Space space) { return space <= Space::OwnOutRows; }
bool own(Space space) { return space == Space::OwnRows || space == Space::OwnOutRows; }
bool by_rows(Split split) { return split == Split::Rows || split == Split::Blocks; }

class Maker {
   public:
    Maker(const std::vector<Op>& ops, const std::vector<Buffer>& buffers, const std::vector<int>& handed_out,
          int64_t rows, int64_t outputs, int lanes)
        : ops_(ops), buffers_(buffers), handed_out_(handed_out), rows_(rows), outputs_(outputs), lanes_(lanes) {
        region_of_.resize(buffers.size(), -1);
        q8_of_.resize(buffers.size(), -1);
        half_of_.resize(buffers.size(), -1);
    }

    Schedule make() {
        if (rows_ == 0) return std::move(made_);
        for (size_t i = 0; i < ops_.size(); ++i) add_op(int(i));
        for (size_t i = 0; i < handed_out_.size(); ++i) hand_out(handed_out_[i], int(i));
        find_lifetimes();
        if (rows_ == kManyRows) split_by_blocks();
        place();
        put_barriers();
        // A barrier within a run of blocks would part what a lane must do in one go.
        for (size_t i = 1; made_.blocks && i < made_.stages.size(); ++i) {
            if (!made_.stages[i].barrier || run_of_[i] < 0 || run_of_[i] != run_of_[i - 1]) continue;
            return Maker(ops_, buffers_, handed_out_, kFewRows + 1, outputs_, lanes_).make();
        }
        return std::move(made_);
    }

   private:
    struct Access {
        int region;
        bool write;
    };

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
        stage.out = result(op.out, stage.split);
        made_.stages.push_back(stage);
    }

    // The forms of x that the weights take and that aren't there yet.
    void prepare(const Op& op, int index) {
        const Buffer& x = buffers_[size_t(op.x)];
        for (const std::vector<Weight>* weights : {&op.weights, &op.up}) {
            for (const Weight& weight : *weights) {
                const ActivationType type = activation_of(weight.type);
                if (type == ActivationType::F32) continue;
                int& form = (type == ActivationType::Q8 ? q8_of_ : half_of_)[size_t(op.x)];
                if (form >= 0) continue;
                Stage stage{};
                stage.kind = StageKind::Prepare;
                stage.op = index;
                stage.type = type;
                stage.by_output = x.by_output;
                stage.split = row_split(x.by_output, x.width, Space::Rows);
                stage.x = region_of_[size_t(op.x)];
                stage.width = x.width;
                form = rows_region(x.by_output, stage.split,
                                   type == ActivationType::Q8 ? Q8Layout(x.width).bytes : round_up(x.width, 32) * 2);
                (type == ActivationType::Q8 ? stage.q8 : stage.half) = form;
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

    // What a stage reads and writes, without the caches.
    std::vector<Access> accesses(const Stage& stage) const {
        std::vector<Access> all;
        const auto add = [&](int region, bool write) {
            if (region >= 0) all.push_back({region, write});
        };
        add(stage.x, false);
        add(stage.y, false);
        add(stage.out, true);
        add(stage.q8, stage.kind == StageKind::Prepare);
        add(stage.half, stage.kind == StageKind::Prepare);
        add(stage.queries, stage.kind == StageKind::Rotate);
        return all;
    }

    void find_lifetimes() {
        for (size_t i = 0; i < made_.stages.size(); ++i) {
            for (const Access& access : accesses(made_.stages[i])) {
                Region& region = made_.regions[size_t(access.region)];
                if (region.first < 0) region.first = int(i);
                region.last = int(i);
            }
        }
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

    // Best fit among the gaps between what is alive. A linear may write over its residual.
    void place() {
        std::vector<int> alive[4];
        for (size_t i = 0; i < made_.stages.size(); ++i) {
            const Stage& stage = made_.stages[i];
            const std::vector<Access> all = accesses(stage);
            int replaced = -1;
            for (const Access& access : all) {
                Region& region = made_.regions[size_t(access.region)];
                if (!access.write || !per_row(region.space) || region.first != int(i)) continue;
                std::vector<int>& others = alive[int(region.space)];
                if (access.region == stage.out && may_replace(stage, int(i))) {
                    replaced = stage.y;
                    region.at = made_.regions[size_t(replaced)].at;
                    std::replace(others.begin(), others.end(), replaced, access.region);
                    continue;
                }
                region.at = find_gap(others, region.bytes);
                others.push_back(access.region);
                int64_t& high = made_.row_bytes[int(region.space)];
                high = std::max(high, region.at + region.bytes);
            }
            for (const Access& access : all) {
                const Region& region = made_.regions[size_t(access.region)];
                if (!per_row(region.space) || region.last != int(i) || access.region == replaced) continue;
                std::erase(alive[int(region.space)], access.region);
            }
        }
    }

    bool may_replace(const Stage& stage, int index) const {
        if (stage.kind != StageKind::Linear || stage.y < 0 || stage.y == stage.x) return false;
        const Region& residual = made_.regions[size_t(stage.y)];
        const Region& out = made_.regions[size_t(stage.out)];
        return residual.space == out.space && residual.bytes == out.bytes && residual.last == index;
    }

    int64_t find_gap(const std::vector<int>& alive, int64_t bytes) const {
        std::vector<const Region*> taken;
        for (const int region : alive) taken.push_back(&made_.regions[size_t(region)]);
        std::sort(taken.begin(), taken.end(), [](const Region* a, const Region* b) { return a->at < b->at; });
        int64_t end = 0, best = -1, best_size = 0;
        for (const Region* region : taken) {
            const int64_t size = region->at - end;
            if (size >= bytes && (best < 0 || size < best_size)) {
                best = end;
                best_size = size;
            }
            end = region->at + region->bytes;
        }
        return best < 0 ? end : best;
    }

    struct Touched {
        Region region;
        int number;  // of the region; -1: a cache
        bool write;
        bool by_rows;
    };

    // A barrier stands before the first stage that meets what another lane may have touched since the last
    // one. Later is never better, so there are as few as can be.
    void put_barriers() {
        if (lanes_ == 1) return;
        std::vector<Touched> since;
        for (Stage& stage : made_.stages) {
            const std::vector<Touched> now = touched(stage);
            stage.barrier = std::any_of(now.begin(), now.end(), [&](const Touched& a) {
                return std::any_of(since.begin(), since.end(), [&](const Touched& b) { return meet(a, b); });
            });
            if (stage.barrier) since.clear();
            since.insert(since.end(), now.begin(), now.end());
        }
    }

    std::vector<Touched> touched(const Stage& stage) const {
        std::vector<Touched> all;
        for (const Access& access : accesses(stage)) {
            const Region& region = made_.regions[size_t(access.region)];
            if (own(region.space)) continue;
            const bool gathered = access.region == stage.x &&
                                  (stage.kind == StageKind::Take || (stage.kind == StageKind::Norm && ops_[size_t(stage.op)].gather));
            all.push_back({region, access.region, access.write, by_rows(stage.split) && !gathered});
        }
        if (stage.kind == StageKind::Rotate || stage.kind == StageKind::Attention) {
            const AttendOp& attend = ops_[size_t(stage.op)].attend;
            const int64_t bytes = attend.slots * attend.shape.num_kv_heads * attend.shape.head_dim * 2;
            for (const bf16* cache : {attend.k, attend.v}) {
                const Region region{Space::Address, bytes, int64_t(reinterpret_cast<intptr_t>(cache))};
                all.push_back({region, -1, stage.kind == StageKind::Rotate, false});
            }
        }
        return all;
    }

    static bool meet(const Touched& a, const Touched& b) {
        if (a.region.space != b.region.space || !(a.write || b.write)) return false;
        // Each lane keeps to its rows, which lie in the same place in regions of one size.
        const bool alike = a.region.at == b.region.at && a.region.bytes == b.region.bytes;
        if (a.number >= 0 && alike && a.by_rows && b.by_rows) return false;
        return a.region.at < b.region.at + b.region.bytes && b.region.at < a.region.at + a.region.bytes;
    }

    const std::vector<Op>& ops_;
    const std::vector<Buffer>& buffers_;
    const std::vector<int>& handed_out_;
    const int64_t rows_, outputs_;
    const int lanes_;
    Schedule made_;
    std::vector<int> region_of_, q8_of_, half_of_;
    std::vector<int> run_of_;  // of each stage: its run of blocks, or -1
};

}  // namespace

Q8Layout::Q8Layout(int64_t k) {
    const int64_t each = k / kBlock * 4;
    scales = round_up(k, kLine);
    weighted = scales + each;
    for (int i = 0; i < kStartKinds; ++i) starts[i] = weighted + (1 + i) * each;
    half_starts = weighted + (1 + kStartKinds) * each;
    // An odd number of lines: rows that are read together don't crowd into a few sets of a cache.
    bytes = round_up(half_starts + 2 * each, kLine) / kLine | 1;
    bytes *= kLine;
}

void Q8Layout::place(Activations& a, std::byte* base) const {
    a.q8_stride = bytes;
    a.values = reinterpret_cast<int8_t*>(base);
    a.scales = reinterpret_cast<float*>(base + scales);
    a.weighted = reinterpret_cast<float*>(base + weighted);
    for (int i = 0; i < kStartKinds; ++i) a.starts[i] = reinterpret_cast<int32_t*>(base + starts[i]);
    a.half_starts = reinterpret_cast<int32_t*>(base + half_starts);
}

Schedule make_schedule(const std::vector<Op>& ops, const std::vector<Buffer>& buffers,
                       const std::vector<int>& handed_out, int64_t rows, int64_t outputs, int lanes) {
    return Maker(ops, buffers, handed_out, rows, outputs, lanes).make();
}

}  // namespace stolon
