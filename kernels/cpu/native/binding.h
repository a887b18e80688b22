// What the Python side of the extension is made of: objects, and arrays checked at the door.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "team.h"

namespace stolon {

namespace nb = nanobind;

// A team and the kernels that it runs.
struct TeamObject {
    Team team;
    const Kernels* kernels;
    Arena weights;
};

// A packed weight and its memory.
struct Matrix {
    Weight weight;
    Arena::Piece memory;
    int64_t bytes;
};

enum class Element { F32, F64, I64, U8, BF16 };  // BF16: or uint16 that hold the bits

// A contiguous, aligned array in main memory. Holding it keeps the memory.
struct Array {
    nb::ndarray<nb::ro> held;
    void* data = nullptr;
    std::vector<int64_t> shape;
    int64_t size = 0;

    template <typename T>
    T* as() const {
        return static_cast<T*>(data);
    }
};

// Throws TypeError or ValueError that names `op` and `argument`. `dimensions`: -1 for any.
Array take_array(const char* op, const std::string& argument, nb::handle value, Element element, int dimensions,
                 bool writable = false);

// A new NumPy array of float32.
nb::object new_floats(std::vector<size_t> shape, float** data);

// Throws ValueError that says `op`: `text`.
[[noreturn]] void wrong(const char* op, const std::string& text);

// step_bind.cpp, program_bind.cpp, sample_bind.cpp
void bind_step(nb::module_& module);
void bind_program(nb::module_& module);
void bind_sample(nb::module_& module);

}  // namespace stolon
