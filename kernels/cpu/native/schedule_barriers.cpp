// Where the lanes of a schedule wait for each other.
#include <algorithm>

#include "schedule_passes.h"

namespace stolon {

namespace {

bool own(Space space) { return space == Space::OwnRows || space == Space::OwnOutRows; }
bool by_rows(Split split) { return split == Split::Rows || split == Split::Blocks; }

struct Touched {
    Region region;
    int number;  // of the region; -1: a cache
    bool write;
    bool by_rows;
    bool tiled;  // rows lie in tiles
};

std::vector<Touched> touched(const Schedule& schedule, const std::vector<Op>& ops, const Stage& stage) {
    std::vector<Touched> all;
    for (const Access& access : accesses(stage)) {
        const Region& region = schedule.regions[size_t(access.region)];
        if (own(region.space)) continue;
        const bool gathered = access.region == stage.x &&
                              (stage.kind == StageKind::Take || (stage.kind == StageKind::Norm && ops[size_t(stage.op)].gather));
        const bool tiled = access.region == stage.tiles || access.region == stage.out_tiles;
        all.push_back({region, access.region, access.write, by_rows(stage.split) && !gathered, tiled});
    }
    if (stage.kind == StageKind::Rotate || stage.kind == StageKind::Attention) {
        const AttendOp& attend = ops[size_t(stage.op)].attend;
        const int64_t bytes = attend.slots * attend.shape.num_kv_heads * attend.shape.head_dim * 2;
        for (const bf16* cache : {attend.k, attend.v}) {
            const Region region{Space::Address, bytes, int64_t(reinterpret_cast<intptr_t>(cache))};
            all.push_back({region, -1, stage.kind == StageKind::Rotate, false, false});
        }
    }
    return all;
}

bool meet(const Touched& a, const Touched& b) {
    if (a.region.space != b.region.space || !(a.write || b.write)) return false;
    // Each lane keeps to its rows, which lie in the same place in regions of one size and layout.
    const bool alike = a.region.at == b.region.at && a.region.bytes == b.region.bytes && a.tiled == b.tiled;
    if (a.number >= 0 && alike && a.by_rows && b.by_rows) return false;
    return a.region.at < b.region.at + b.region.bytes && b.region.at < a.region.at + a.region.bytes;
}

}  // namespace

// A barrier stands before the first stage that meets what another lane may have touched since the last
// one. Later is never better, so there are as few as can be.
void put_barriers(Schedule& schedule, const std::vector<Op>& ops, int lanes) {
    if (lanes == 1) return;
    std::vector<Touched> since;
    for (Stage& stage : schedule.stages) {
        const std::vector<Touched> now = touched(schedule, ops, stage);
        stage.barrier = std::any_of(now.begin(), now.end(), [&](const Touched& a) {
            return std::any_of(since.begin(), since.end(), [&](const Touched& b) { return meet(a, b); });
        });
        if (stage.barrier) since.clear();
        since.insert(since.end(), now.begin(), now.end());
    }
}

}  // namespace stolon
