#include "binding.h"

#include <stdexcept>

namespace stolon {

namespace {

struct ElementInfo {
    const char* name;
    int bits;
    nb::dlpack::dtype_code codes[2];
};

ElementInfo info(Element element) {
    using Code = nb::dlpack::dtype_code;
    switch (element) {
        case Element::F32: return {"float32", 32, {Code::Float, Code::Float}};
        case Element::F64: return {"float64", 64, {Code::Float, Code::Float}};
        case Element::I64: return {"int64", 64, {Code::Int, Code::Int}};
        case Element::U8: return {"uint8", 8, {Code::UInt, Code::UInt}};
        case Element::BF16: return {"bfloat16 or uint16", 16, {Code::Bfloat, Code::UInt}};
    }
    throw std::logic_error("unknown element");
}

}  // namespace

void wrong(const char* op, const std::string& text) { throw std::invalid_argument(std::string(op) + ": " + text); }

Array take_array(const char* op, const std::string& argument, nb::handle value, Element element, int dimensions,
                 bool writable) {
    const std::string name = std::string(op) + ": " + argument;
    Array array;
    if (!nb::try_cast(value, array.held, false)) {
        throw nb::type_error((name + " is not an array").c_str());
    }
    const nb::ndarray<nb::ro>& held = array.held;
    if (held.device_type() != nb::device::cpu::value) {
        throw nb::value_error((name + " is not in main memory").c_str());
    }
    const ElementInfo want = info(element);
    const nb::dlpack::dtype got = held.dtype();
    if (got.lanes != 1 || got.bits != want.bits ||
        (got.code != uint8_t(want.codes[0]) && got.code != uint8_t(want.codes[1]))) {
        throw nb::type_error((name + " is not of " + want.name).c_str());
    }
    if (dimensions >= 0 && held.ndim() != size_t(dimensions)) {
        throw nb::value_error((name + " has " + std::to_string(held.ndim()) + " dimensions, not " +
                               std::to_string(dimensions)).c_str());
    }
    array.size = 1;
    for (size_t i = 0; i < held.ndim(); ++i) {
        array.shape.push_back(int64_t(held.shape(i)));
        array.size = checked_product(array.size, array.shape.back());
    }
    int64_t step = 1;
    for (size_t i = held.ndim(); i-- > 0;) {
        if (held.stride_ptr() && array.size > 0 && array.shape[i] > 1 && held.stride(i) != step) {
            throw nb::value_error((name + " is not contiguous").c_str());
        }
        step *= array.shape[i];
    }
    array.data = const_cast<void*>(held.data());
    if (array.size > 0 && reinterpret_cast<uintptr_t>(array.data) % size_t(want.bits / 8)) {
        throw nb::value_error((name + " is not aligned").c_str());
    }
    if (writable) {
        nb::ndarray<> written;
        if (!nb::try_cast(value, written, false)) throw nb::value_error((name + " is read-only").c_str());
    }
    return array;
}

nb::object new_floats(std::vector<size_t> shape, float** data) {
    size_t size = 1;
    for (const size_t n : shape) size *= n;
    float* values = new float[size ? size : 1];
    *data = values;
    nb::capsule owner(values, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, float>(values, shape.size(), shape.data(), owner));
}

}  // namespace stolon
