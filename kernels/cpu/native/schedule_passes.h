// What a schedule goes through once its stages are known.
#pragma once

#include <vector>

#include "schedule.h"

namespace stolon {

struct Access {
    int region;
    bool write;
};

// What a stage reads and writes, without the caches.
std::vector<Access> accesses(const Stage& stage);

// From which stage to which each region is alive.
void find_lifetimes(Schedule& schedule);

// Give every region its place. Lifetimes are known.
void place_regions(Schedule& schedule);

// Regions have their places.
void put_barriers(Schedule& schedule, const std::vector<Op>& ops, int lanes);

}  // namespace stolon
