#include <cstring>

#include "kernels.h"

#if defined(STOLON_X86)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

// The matrix unit: its tiles are state that a process has to ask the system for.
static bool has_amx() {
    unsigned a, b, c, d;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // of leaf 7, EDX
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, the number of the state
    static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return permitted;
#else
    return false;
#endif
}
#endif

const Kernels* choose_kernels(const char* name) {
    const bool any = name == nullptr || *name == '\0';
#if defined(STOLON_X86)
    if ((any || !std::strcmp(name, "amx")) && has_amx()) return kernels_amx();
    if ((any || !std::strcmp(name, "avx512")) && has_avx512()) return kernels_avx512();
    if ((any || !std::strcmp(name, "avx2")) && has_avx2()) return kernels_avx2();
#endif
    if (any || !std::strcmp(name, "portable")) return kernels_portable();
    return nullptr;
}

}  // namespace stolon
