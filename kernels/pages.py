"""Arrays straight from the system's pages."""

from __future__ import annotations

import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def mapped_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros of which only the pages that are written take memory, all given back when the array goes.

    numpy asks for huge pages for a large array, so that the first number in one takes 2 MiB, and the
    allocator keeps for itself what an array freed.
    """
    if sys.platform == "win32":
        return np.zeros(shape, dtype)
    count = math.prod(shape)
    size = max(count * np.dtype(dtype).itemsize, 1)
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype, count=count).reshape(shape)
