"""How the examples end: an error in one line and exit code 2, Ctrl-C with 130, no traceback for either."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import stolon as sl


@contextlib.contextmanager
def frame() -> Iterator[None]:
    try:
        yield
    except (sl.StolonError, OSError) as error:
        print(f"{Path(sys.argv[0]).stem}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
