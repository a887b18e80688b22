#!/usr/bin/env bash
# Run tests on an extension built with AddressSanitizer and UndefinedBehaviorSanitizer; the installed one is left
# alone. Usage: sanitize.sh [pytest arguments], default tests/kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$bin/python" -m pip install -q --no-deps --target "$folder/installed" ${PIP_FLAGS:-} \
    -C build-dir="$folder/build" -C cmake.define.STOLON_SANITIZE=ON -C install.strip=false .

# The interpreter isn't built with the sanitizers: their run time has to be there before anything else, and
# the C++ library with it, whose exceptions it looks for.
compiler=${CXX:-c++}
preload="$($compiler -print-file-name=libasan.so) $($compiler -print-file-name=libstdc++.so)"
native=("$folder"/installed/stolon/kernels/cpu/_native*.so)
[ $# -gt 0 ] || set -- tests/kernels
OMP_NUM_THREADS=1 LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=4:max_free_fill_size=0 UBSAN_OPTIONS=print_stacktrace=1 \
    "$bin/python" scripts/test_with_native.py "${native[0]}" "$@"
