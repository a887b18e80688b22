// Where the regions of a schedule lie: what is alive at the same time lies apart, what comes later takes the place of
// what is done with.
#include <algorithm>

#include "schedule_passes.h"

namespace stolon {

namespace {

bool per_row(Space space) { return space <= Space::OwnOutRows; }

bool may_replace(const Schedule& schedule, const Stage& stage, int index) {
    if (stage.kind != StageKind::Linear || stage.y < 0 || stage.y == stage.x) return false;
    const Region& residual = schedule.regions[size_t(stage.y)];
    const Region& out = schedule.regions[size_t(stage.out)];
    return residual.space == out.space && residual.bytes == out.bytes && residual.last == index;
}

int64_t find_gap(const Schedule& schedule, const std::vector<int>& alive, int64_t bytes) {
    std::vector<const Region*> taken;
    for (const int region : alive) taken.push_back(&schedule.regions[size_t(region)]);
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

}  // namespace

std::vector<Access> accesses(const Stage& stage) {
    std::vector<Access> all;
    const auto add = [&](int region, bool write) {
        if (region >= 0) all.push_back({region, write});
    };
    add(stage.x, false);
    add(stage.y, false);
    add(stage.out, true);
    add(stage.q8, stage.kind == StageKind::Prepare);
    add(stage.half, stage.kind == StageKind::Prepare);
    add(stage.tiles, stage.kind == StageKind::Prepare);
    add(stage.out_tiles, true);
    add(stage.queries, stage.kind == StageKind::Rotate);
    return all;
}

void find_lifetimes(Schedule& schedule) {
    for (size_t i = 0; i < schedule.stages.size(); ++i) {
        for (const Access& access : accesses(schedule.stages[i])) {
            Region& region = schedule.regions[size_t(access.region)];
            if (region.first < 0) region.first = int(i);
            region.last = int(i);
        }
    }
}

// Best fit among the gaps between what is alive. A linear may write over its residual.
void place_regions(Schedule& schedule) {
    std::vector<int> alive[4];
    for (size_t i = 0; i < schedule.stages.size(); ++i) {
        const Stage& stage = schedule.stages[i];
        const std::vector<Access> all = accesses(stage);
        int replaced = -1;
        for (const Access& access : all) {
            Region& region = schedule.regions[size_t(access.region)];
            if (!access.write || !per_row(region.space) || region.first != int(i)) continue;
            std::vector<int>& others = alive[int(region.space)];
            if (access.region == stage.out && may_replace(schedule, stage, int(i))) {
                replaced = stage.y;
                region.at = schedule.regions[size_t(replaced)].at;
                std::replace(others.begin(), others.end(), replaced, access.region);
                continue;
            }
            region.at = find_gap(schedule, others, region.bytes);
            others.push_back(access.region);
            int64_t& high = schedule.row_bytes[int(region.space)];
            high = std::max(high, region.at + region.bytes);
        }
        for (const Access& access : all) {
            const Region& region = schedule.regions[size_t(access.region)];
            if (!per_row(region.space) || region.last != int(i) || access.region == replaced) continue;
            std::erase(alive[int(region.space)], access.region);
        }
    }
}

}  // namespace stolon
