"""Runs pytest with another build of the C++ extension in place of the installed one.

Usage: test_with_native.py EXTENSION [PYTEST ARGUMENTS]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

import pytest

NAME = "stolon.kernels.cpu._native"


class Finder(MetaPathFinder):
    """Finds the extension in one file, and nothing else."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != NAME:
            return None
        return spec_from_file_location(name, self.path, loader=ExtensionFileLoader(name, self.path))


def main(argv: list[str]) -> int:
    sys.meta_path.insert(0, Finder(argv[0]))
    return int(pytest.main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
