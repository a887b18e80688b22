"""Runs pytest with other builds of the C++ extensions in place of the installed ones.

Usage: test_with_native.py EXTENSION [EXTENSION] [PYTEST ARGUMENTS], extensions being files that end in .so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

NAMES = {"_native": "stolon.kernels.cpu._native", "_fsm": "stolon.constrained._fsm"}


class Finder(MetaPathFinder):
    """Finds some extensions, each in one file, and nothing else."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self.paths = paths

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.paths.get(name)
        if file is None:
            return None
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


def main(argv: list[str]) -> int:
    files = [argument for argument in argv[:2] if argument.endswith(".so")]
    sys.meta_path.insert(0, Finder({NAMES[Path(file).name.split(".")[0]]: file for file in files}))
    return int(pytest.main(argv[len(files) :]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
