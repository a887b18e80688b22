#!/usr/bin/env bash
# Run tests on extensions built with AddressSanitizer and UndefinedBehaviorSanitizer; the installed ones are left
# alone. Usage: sanitize.sh [pytest arguments], default the tests of the ops, of programs, of the team and of automata.
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
native=("$folder"/installed/stolon/kernels/cpu/_native*.so "$folder"/installed/stolon/constrained/_fsm*.so)
if [ $# -eq 0 ]; then
    set -- -k native tests/kernels/test_op_tables.py tests/kernels/test_attention.py \
        tests/kernels/test_native_program.py tests/kernels/test_native_team.py \
        tests/constrained/test_fsm_automaton.py tests/constrained/test_fsm_grammar.py
fi
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=4
export UBSAN_OPTIONS=print_stacktrace=1
export OMP_NUM_THREADS=1  # torch's threads would spin on the cores that the kernels need
LD_PRELOAD=$preload "$bin/python" scripts/test_with_native.py "${native[@]}" "$@"
