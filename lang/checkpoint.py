"""The file of a batch that can be resumed: one JSON line for each item that has ended.

The first line says which batch it is. Lines are only ever appended, each with one write, so a killed
process leaves at most a cut last line, which the next one drops. They reach the operating system at
once, and the disk at most `_SYNC_INTERVAL` seconds later.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from stolon.errors import InvalidRequest
from stolon.lang.checkpoint_lines import FORMAT, Header, Identity, Key, Line, fault_of
from stolon.lang.filelock import lock
from stolon.lang.restored import RestoredState, SavedState
from stolon.lang.state import ProgramState

_SYNC_INTERVAL = 2.0
_BEGIN = b'{"stolon_batch":'


class Checkpoint:
    """An open and locked checkpoint. `append` may be called from several threads.

    Attributes:
        seed: of the batch: that of the file, the given one, or `draw` in a new file without one.
        finished: number of items in the file that ended well.

    Raises:
        InvalidRequest: the file is used by another process, is no checkpoint, or belongs to another
            batch; the message names the first difference.
    """

    def __init__(self, path: Path, identity: Identity, *, seed: int | None, draw: int) -> None:
        self._path = path
        self._identity = identity
        self._offsets: dict[int, int] = {}
        self._writing = threading.Lock()
        self._synced_at = time.monotonic()
        try:
            # O_APPEND: a write is whole, at the end, whatever was read before.
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise self._refusal(f"can't be opened: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise self._refusal("is no regular file", hint="name another file")
            if not lock(self._file):
                raise self._refusal(
                    "is in use by another batch", hint="wait for its end, or name another file"
                )
            self.seed = self._read(seed, draw)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def finished(self) -> int:
        return len(self._offsets)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, seed: int | None, draw: int) -> int:
        with open(self._path, "rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                if not (first.startswith(_BEGIN) or _BEGIN.startswith(first)):
                    raise self._foreign(1)
                os.ftruncate(self._file, 0)
                return self._begin(draw if seed is None else seed)
            header = self._header(first)
            if seed is not None and seed != header.seed:
                raise self._other("seed", header.seed, seed)
            self._scan(file)
            return header.seed

    def _begin(self, seed: int) -> int:
        names = Identity.__struct_fields__
        fields = {name: getattr(self._identity, name) for name in names}
        self._write(msgspec.json.encode({"stolon_batch": FORMAT} | fields | {"seed": seed}))
        return seed

    def _header(self, line: bytes) -> Header:
        if not line.startswith(_BEGIN):
            raise self._foreign(1)
        try:
            header = msgspec.json.decode(line, type=Header)
        except (msgspec.MsgspecError, RecursionError):
            raise self._foreign(1) from None
        if header.stolon_batch != FORMAT:
            raise self._other("format", header.stolon_batch, FORMAT)
        mine = msgspec.json.decode(msgspec.json.encode(self._identity), type=Identity)
        for name in ("program", "signature", "model"):
            if getattr(header, name) != getattr(mine, name):
                raise self._other(name, getattr(header, name), getattr(mine, name))
        for name in sorted({*header.sampling, *mine.sampling}):
            then, now = header.sampling.get(name), mine.sampling.get(name)
            if then != now:
                raise self._other(name, then, now)
        return header

    def _scan(self, file: Any) -> None:
        """Find the items that ended well; the last line of an item counts."""
        decode = msgspec.json.Decoder(Key).decode
        number, offset = 1, file.tell()
        for line in file:
            number += 1
            if not line.endswith(b"\n"):
                os.ftruncate(self._file, offset)
                return
            try:
                key = decode(line)
            except (msgspec.MsgspecError, RecursionError):
                raise self._foreign(number) from None
            if bytes(key.state):
                self._offsets[key.item] = offset
            offset += len(line)

    def restore(self, index: int, digest: str) -> RestoredState | None:
        """The result of an item that ended well, None if it must run.

        Raises InvalidRequest if the item had other arguments then.
        """
        offset = self._offsets.get(index)
        if offset is None:
            return None
        with open(self._path, "rb") as file:
            file.seek(offset)
            content = file.readline()
        try:
            line = msgspec.json.decode(content, type=Line)
        except (msgspec.MsgspecError, RecursionError):
            raise self._refusal(f"has changed: item {index} can't be read") from None
        if line.digest != digest:
            raise self._refusal(
                f"belongs to another batch: item {index} had other arguments",
                hint="name another file, or give the same items in the same order",
            )
        if line.state is None:
            raise self._refusal(f"has changed: item {index} can't be read")
        return RestoredState(self._identity.program, line.state)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, index: int, digest: str, outcome: ProgramState | BaseException) -> None:
        """Write how an item ended. Does nothing once the file is closed."""
        line = Line(item=index, digest=digest)
        if isinstance(outcome, ProgramState):
            line.state = SavedState.of(outcome)
        else:
            line.error = fault_of(outcome)
        self._write(msgspec.json.encode(line))

    def _write(self, line: bytes) -> None:
        data = memoryview(line + b"\n")
        with self._writing:
            if self._file < 0:
                return
            end = os.fstat(self._file).st_size
            try:
                while data:
                    data = data[os.write(self._file, data) :]
                now = time.monotonic()
                if now - self._synced_at >= _SYNC_INTERVAL:
                    self._synced_at = now
                    os.fsync(self._file)
            except OSError as error:
                if data:
                    # Half a line would spoil the file for what is written after it.
                    with suppress(OSError):
                        os.ftruncate(self._file, end)
                error.filename = str(self._path)
                error.add_note("writing the checkpoint; the same call goes on from what is in it")
                raise

    def close(self) -> None:
        """Everything is on the disk, and another process may use the file."""
        with self._writing:
            if self._file >= 0:
                try:
                    os.fsync(self._file)
                finally:
                    os.close(self._file)
                    self._file = -1

    # -- errors ----------------------------------------------------------------------------------

    def _foreign(self, number: int) -> InvalidRequest:
        return self._refusal(
            "is no checkpoint of a batch", where=f"line {number}", hint="name another file"
        )

    def _other(self, name: str, then: Any, now: Any) -> InvalidRequest:
        return self._refusal(
            f"belongs to another batch: its {name} is {_short(then)}, not {_short(now)}",
            hint="name another file for this one",
        )

    def _refusal(
        self, what: str, *, where: str | None = None, hint: str | None = None
    ) -> InvalidRequest:
        return InvalidRequest(
            f"the checkpoint {self._path} {what}", param="checkpoint", where=where, hint=hint
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
