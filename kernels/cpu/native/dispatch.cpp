#include <cstring>

#include "kernels.h"

namespace stolon {

#if defined(STOLON_X86)
static bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
           has_avx2();
}
#endif

const Kernels* choose_kernels(const char* name) {
    const bool any = name == nullptr || *name == '\0';
#if defined(STOLON_X86)
    if ((any || !std::strcmp(name, "avx512")) && has_avx512()) return kernels_avx512();
    if ((any || !std::strcmp(name, "avx2")) && has_avx2()) return kernels_avx2();
#endif
    if (any || !std::strcmp(name, "portable")) return kernels_portable();
    return nullptr;
}

}  // namespace stolon
