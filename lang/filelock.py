"""A lock on an open file, held until it is closed or its process is gone."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import msvcrt

    # A byte far behind the content: what is locked there can't be read either.
    _AT = 1 << 40

    def lock(file: int) -> bool:
        """Take the lock without waiting; whether it was free."""
        import os

        os.lseek(file, _AT, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def lock(file: int) -> bool:
        """Take the lock without waiting; whether it was free."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
