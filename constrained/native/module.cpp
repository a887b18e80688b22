// The Python module stolon.constrained._fsm: the trie of a vocabulary and automata over it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>
#include <stdexcept>

#include "automaton.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace stolon;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

namespace {

void check(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

Program read_program(int64_t start, Table code, Ints targets, Table nodes, Table edges) {
    check(code.shape(1) == 9 && nodes.shape(1) == 3 && edges.shape(1) == 3, "a table has the wrong width");
    Program program;
    program.start = start;
    for (size_t i = 0; i < code.shape(0); i++) {
        const int64_t* v = code.data() + i * 9;
        program.code.push_back({v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]});
    }
    program.targets.assign(targets.data(), targets.data() + targets.shape(0));
    auto small = [](int64_t v, int64_t limit) {
        check(v >= 0 && v < limit, "a table holds a number out of range");
        return v;
    };
    constexpr int64_t kIndex = int64_t{1} << 31;
    for (size_t i = 0; i < nodes.shape(0); i++) {
        const int64_t* v = nodes.data() + i * 3;
        program.nodes.push_back({static_cast<uint32_t>(small(v[0], kIndex)), static_cast<uint32_t>(small(v[1], kIndex)),
                                 v[2] != 0, 0, 0});
    }
    for (size_t i = 0; i < edges.shape(0); i++) {
        const int64_t* v = edges.data() + i * 3;
        program.edges.push_back({static_cast<uint8_t>(small(v[0], 256)), static_cast<uint8_t>(small(v[1], 256)),
                                 static_cast<uint32_t>(small(v[2], kIndex))});
    }
    return program;
}

// The lock of an automaton, waited for without the interpreter's: a thread that computes a mask needs none.
std::unique_lock<std::mutex> lock(Automaton& automaton) {
    std::unique_lock<std::mutex> held(automaton.mutex, std::try_to_lock);
    if (!held.owns_lock()) {
        nb::gil_scoped_release release;
        held.lock();
    }
    return held;
}

void check_state(const Automaton& automaton, int32_t state) {
    check(state >= 0 && state < automaton.size(), "no such state");
}

}  // namespace

NB_MODULE(_fsm, m) {
    nb::class_<Trie>(m, "Trie")
        .def(
            "__init__",
            [](Trie* self, Bytes bytes, Ints offsets, Bytes use) {
                check(offsets.shape(0) == use.shape(0) + 1, "a vocabulary's tables differ in length");
                check(offsets.data()[use.shape(0)] <= static_cast<int64_t>(bytes.shape(0)), "bytes are missing");
                nb::gil_scoped_release release;
                new (self) Trie(bytes.data(), offsets.data(), use.data(), static_cast<int64_t>(use.shape(0)));
            },
            "bytes"_a, "offsets"_a, "use"_a)
        .def_ro("longest", &Trie::longest)
        .def("__len__", [](const Trie& t) { return t.nodes.size(); });

    nb::class_<Automaton>(m, "Automaton")
        .def(
            "__init__",
            [](Automaton* self, const Trie& trie, int64_t start, Table code, Ints targets, Table nodes, Table edges,
               int64_t memory, int64_t set_size, int64_t work) {
                nb::gil_scoped_release release;
                new (self) Automaton(read_program(start, code, targets, nodes, edges), &trie,
                                     Limits{memory, set_size, work});
            },
            nb::keep_alive<1, 2>(), "trie"_a, "start"_a, "code"_a, "targets"_a, "nodes"_a, "edges"_a, nb::kw_only(),
            "memory"_a, "set_size"_a, "work"_a)
        .def("start",
             [](Automaton& a) {
                 auto held = lock(a);
                 return a.start();
             })
        .def("advance",
             [](Automaton& a, int32_t state, int64_t token) {
                 auto held = lock(a);
                 check_state(a, state);
                 if (token < 0 || token >= a.vocabulary() || !a.trie().use[token]) return Automaton::kDead;
                 return a.advance(state, a.trie().bytes_of(token));
             })
        .def("advance_bytes",
             [](Automaton& a, int32_t state, nb::bytes text) {
                 auto held = lock(a);
                 check_state(a, state);
                 return a.advance(state, {text.c_str(), text.size()});
             })
        .def("accepting",
             [](Automaton& a, int32_t state) {
                 auto held = lock(a);
                 check_state(a, state);
                 return a.accepting(state);
             })
        .def("closed",
             [](Automaton& a, int32_t state) {
                 auto held = lock(a);
                 check_state(a, state);
                 return a.closed(state);
             })
        .def("coarse",
             [](Automaton& a, int32_t state) {
                 auto held = lock(a);
                 check_state(a, state);
                 return a.coarse(state);
             })
        .def("fill",
             [](Automaton& a, int32_t state, Row row) {
                 check(static_cast<int64_t>(row.shape(0)) * 32 >= a.vocabulary(), "the row is too short");
                 nb::gil_scoped_release release;
                 std::lock_guard<std::mutex> held(a.mutex);
                 check_state(a, state);
                 return a.fill(state, reinterpret_cast<uint32_t*>(row.data()));
             })
        .def("forced",
             [](Automaton& a, int32_t state, size_t limit) {
                 auto held = lock(a);
                 check_state(a, state);
                 auto [text, to] = a.forced(state, limit);
                 return std::make_pair(nb::bytes(text.data(), text.size()), to);
             })
        .def("mergeable",
             [](Automaton& a, int32_t state, nb::bytes tail, size_t count) {
                 auto held = lock(a);
                 check_state(a, state);
                 std::vector<std::string> more;
                 size_t at = a.mergeable(state, {tail.c_str(), tail.size()}, count, more);
                 nb::list list;
                 for (const std::string& text : more) list.append(nb::bytes(text.data(), text.size()));
                 return nb::make_tuple(at, list);
             })
        .def("shortest",
             [](Automaton& a, int32_t state, size_t limit) -> std::optional<std::vector<uint32_t>> {
                 auto held = lock(a);
                 check_state(a, state);
                 std::vector<uint32_t> tokens;
                 if (!a.shortest(state, limit, tokens)) return std::nullopt;
                 return tokens;
             })
        .def_prop_rw(
            "work",
            [](Automaton& a) {
                auto held = lock(a);
                return a.limits.work;
            },
            [](Automaton& a, int64_t work) {
                auto held = lock(a);
                a.limits.work = work;
            })
        .def_prop_ro("memory", [](Automaton& a) {
            auto held = lock(a);
            return a.memory();
        })
        .def("__len__", [](Automaton& a) {
            auto held = lock(a);
            return a.size();
        });
}
