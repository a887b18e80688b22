// The module `stolon.kernels.cpu._native`; described by _native.pyi.
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>

#include "binding.h"
#include "pack.h"

using namespace nanobind::literals;

namespace stolon {

namespace {

constexpr size_t kScratch = size_t(1) << 20;  // a lane's; pages that nobody touches cost nothing

constexpr const char* kKinds[] = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const char* name : {"amx", "avx512", "avx2", "portable"}) {
        if (choose_kernels(name)) names.emplace_back(name);
    }
    return names;
}

void make_team(TeamObject* self, int threads, const std::string& isa) {
    const Kernels* kernels = choose_kernels(isa.c_str());
    if (!kernels) {
        std::string known;
        for (const std::string& name : instruction_sets()) known += (known.empty() ? "" : ", ") + name;
        wrong("Team", "isa is '" + isa + "'; this processor has " + known);
    }
    new (self) TeamObject{Team(threads, kScratch), kernels, Arena()};
}

std::unique_ptr<Matrix> pack(TeamObject& team, const std::string& kind, nb::handle data, int64_t columns, int64_t inputs) {
    int type = -1;
    for (int i = 0; i < int(std::size(kKinds)); ++i) {
        if (kind == kKinds[i]) type = i;
    }
    if (type < 0) wrong("pack", "kind is '" + kind + "', which is not known");
    const Array stored = take_array("pack", "data", data, Element::U8, 1);
    // No type has more than two numbers a byte: behind this nothing overflows.
    if (columns < 1 || inputs < 1 || checked_product(columns, inputs) > 2 * stored.size) {
        wrong("pack", "columns is " + std::to_string(columns) + " and inputs " + std::to_string(inputs) + ", data has " +
                          std::to_string(stored.size) + " bytes");
    }
    const WeightType weight_type = WeightType(type);
    const int64_t want = stored_bytes(weight_type, columns, inputs);
    if (want < 0) wrong("pack", "inputs is " + std::to_string(inputs) + ", not a multiple of the block of " + kind);
    if (want != stored.size) {
        wrong("pack", "data has " + std::to_string(stored.size) + " bytes, [" + std::to_string(columns) + ", " +
                          std::to_string(inputs) + "] in " + kind + " takes " + std::to_string(want));
    }
    nb::gil_scoped_release release;
    const PackedShape shape = packed_shape(weight_type, columns, inputs);
    auto matrix = std::make_unique<Matrix>();
    {
        const auto turn = team.team.hold();
        matrix->memory = team.weights.take(shape.bytes());
    }
    matrix->bytes = shape.bytes();
    matrix->weight = packed_weight(weight_type, columns, inputs, matrix->memory.get());
    Counter counter{0};
    team.team.run([&](const Lane&) {
        pack_tiles(weight_type, stored.as<const std::byte>(), columns, inputs, matrix->memory.get(), counter);
    });
    return matrix;
}

nb::object column(const Matrix& matrix, int64_t n) {
    if (n < 0 || n >= matrix.weight.columns) {
        wrong("column", "n is " + std::to_string(n) + ", outside [0, " + std::to_string(matrix.weight.columns) + ")");
    }
    float* out;
    nb::object array = new_floats({size_t(matrix.weight.k)}, &out);
    unpack_column(matrix.weight, n, out);
    return array;
}

// Gigabytes a second that all lanes together read, one after the other, from memory of their own: the best
// of `repeats`.
double bandwidth(TeamObject& team, int64_t bytes, int repeats) {
    if (bytes < 4096) wrong("bandwidth", "bytes is less than 4096");
    if (repeats < 1) wrong("bandwidth", "repeats is less than 1");
    nb::gil_scoped_release release;
    const int64_t each = round_up(bytes / team.team.size(), 256);
    const Memory memory(checked_product(each, team.team.size()));
    team.team.run([&](const Lane& lane) { std::memset(memory.get() + each * lane.index, lane.index, size_t(each)); });
    std::atomic<uint64_t> total{0};
    double best = 0.0;
    for (int i = 0; i < repeats; ++i) {
        const auto start = std::chrono::steady_clock::now();
        team.team.run([&](const Lane& lane) {
            const auto* words = reinterpret_cast<const uint64_t*>(memory.get() + each * lane.index);
            uint64_t sums[32] = {};
            for (int64_t at = 0; at < each / 8; at += 32) {
                for (int j = 0; j < 32; ++j) sums[j] += words[at + j];
            }
            uint64_t sum = 0;
            for (const uint64_t s : sums) sum += s;
            total.fetch_add(sum, std::memory_order_relaxed);
        });
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::max(best, double(memory.bytes()) / seconds.count() * 1e-9);
    }
    return best;
}

}  // namespace

}  // namespace stolon

NB_MODULE(_native, m) {
    using namespace stolon;
#if !defined(STOLON_LEAK_WARNINGS)
    nb::set_leak_warnings(false);
#endif
    m.doc() = "CPU kernels and the program that runs them";
    m.def("instruction_sets", &instruction_sets);

    nb::class_<TeamObject>(m, "Team")
        .def("__init__", &make_team, "threads"_a, "isa"_a = "")
        .def_prop_ro("threads", [](const TeamObject& t) { return t.team.size(); })
        .def_prop_ro("isa", [](const TeamObject& t) { return std::string(t.kernels->name); });

    nb::class_<Matrix>(m, "Matrix")
        .def_prop_ro("kind", [](const Matrix& w) { return std::string(kKinds[int(w.weight.type)]); })
        .def_prop_ro("columns", [](const Matrix& w) { return w.weight.columns; })
        .def_prop_ro("inputs", [](const Matrix& w) { return w.weight.k; })
        .def_prop_ro("nbytes", [](const Matrix& w) { return w.bytes; })
        .def("column", &column, "n"_a);

    m.def("pack", &pack, "team"_a, "kind"_a, "data"_a, "columns"_a, "inputs"_a);
    m.def("bandwidth", &bandwidth, "team"_a, "bytes"_a, "repeats"_a = 3);

    bind_step(m);
    bind_program(m);
    bind_sample(m);
}
