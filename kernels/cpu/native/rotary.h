// Cosines and sines of rotary position embeddings (arXiv 2104.09864), worked out as positions come into use.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "memory.h"

namespace stolon {

// Tables of [positions, frequencies]. Their memory stays where it is; rows from `ready` on hold nothing yet. Any
// number of programs may use one.
class Rotary {
   public:
    // The angle of position p at frequency f is p * frequencies[f]. Throws std::bad_alloc, std::length_error.
    Rotary(std::vector<double> frequencies, int64_t positions);

    int64_t positions() const { return positions_; }
    int64_t frequencies() const { return int64_t(frequencies_.size()); }
    const float* cos() const { return reinterpret_cast<const float*>(cos_.get()); }
    const float* sin() const { return reinterpret_cast<const float*>(sin_.get()); }

    // Sees to it that rows [0, end) are there; end is at most positions().
    void reach(int64_t end);

   private:
    std::vector<double> frequencies_;
    int64_t positions_;
    Memory cos_, sin_;
    std::atomic<int64_t> ready_{0};
    std::mutex filling_;
};

}  // namespace stolon
