#!/usr/bin/env bash
# Static checks. mypy needs the code under its installed names (stolon.lang is the folder lang), so it is shown a
# folder of links that has the installed layout.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-.venv/bin}

"$bin/ruff" check .
"$bin/ruff" format --check .

tree=build/typecheck
rm -rf "$tree" && mkdir -p "$tree/stolon"
for file in stolon/*; do ln -s "../../../$file" "$tree/stolon/"; done
for part in lang srt constrained radix kernels; do ln -s "../../../$part" "$tree/stolon/$part"; done
MYPYPATH=$tree "$bin/mypy" --config-file pyproject.toml -p stolon

"$bin/python" scripts/import_direction.py
