"""Reading the bytes of a GGUF file: every length, count, offset and product is checked first."""

from __future__ import annotations

import mmap
import struct
from array import array
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.loaders.ggml import GGMLType

MAGIC = b"GGUF"
MAX_METADATA = 65_536
MAX_TENSORS = 262_144
MAX_NAME_BYTES = 65_535
MAX_ELEMENTS = 1 << 48
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

HINT = "the file is damaged or incomplete: download it again"

# Metadata value types by their number in the file.
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    _BOOL: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# The fewest bytes that one metadata pair or tensor description can take; bounds their counts.
_LEAST_PAIR = 8 + 1 + 4 + 1
_LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` in torch order (rows first), `offset` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    nbytes: int


class StringArray:
    """An array of strings, decoded when asked for. Valid until the file is closed."""

    __slots__ = ("_data", "_starts", "_where")

    def __init__(self, data: mmap.mmap, starts: array[int], where: str) -> None:
        self._data = data
        self._starts = (
            starts  # offset of each string's u64 length; bounds were checked when it was read
        )
        self._where = where

    def __len__(self) -> int:
        return len(self._starts)

    def to_bytes(self) -> list[bytes]:
        """All strings as raw bytes."""
        data, length = self._data, _U64.unpack_from
        return [data[at + 8 : at + 8 + length(data, at)[0]] for at in self._starts]

    def to_list(self) -> list[str]:
        """All strings decoded. Raises ModelFileError if one is not UTF-8."""
        data, length = self._data, _U64.unpack_from
        try:
            return [data[at + 8 : at + 8 + length(data, at)[0]].decode() for at in self._starts]
        except UnicodeDecodeError as error:
            raise ModelFileError(
                "a string of a metadata array is not UTF-8", where=self._where, hint=HINT
            ) from error


NumberArray = npt.NDArray[Any]
MetadataValue = int | float | bool | str | StringArray | NumberArray


class Parser:
    """A cursor over the file. Invariant: 0 <= pos <= size, and no read goes past size."""

    def __init__(self, file_name: str, data: mmap.mmap) -> None:
        self.file_name = file_name
        self.data = data
        self.size = len(data)
        self.pos = 0
        self.version = 0
        self.metadata: dict[str, MetadataValue] = {}
        self.tensors: dict[str, TensorInfo] = {}

    def fail(self, message: str, *, at: int | None = None) -> NoReturn:
        where = f"{self.file_name}:byte {self.pos if at is None else at}"
        raise ModelFileError(message, where=where, hint=HINT)

    def parse(self) -> Parser:
        self.read_header()
        counts_at = self.pos
        tensor_count, pair_count = self.u64(), self.u64()
        left = self.size - self.pos
        if pair_count > min(MAX_METADATA, left // _LEAST_PAIR):
            self.fail(f"{pair_count} metadata entries can't fit in the file", at=counts_at + 8)
        if tensor_count > min(MAX_TENSORS, left // _LEAST_TENSOR):
            self.fail(f"{tensor_count} tensors can't fit in the file", at=counts_at)
        for _ in range(pair_count):
            self.read_pair()
        alignment = self.alignment()
        described = [self.read_tensor(alignment) for _ in range(tensor_count)]
        data_start = -(-self.pos // alignment) * alignment
        for info in described:
            offset = data_start + info.offset
            if offset + info.nbytes > self.size:
                self.fail(
                    f"tensor {info.name!r} needs {info.nbytes} bytes at {offset}, "
                    f"but the file ends at {self.size}",
                    at=offset,
                )
            if info.name in self.tensors:
                self.fail(f"tensor {info.name!r} is described twice")
            self.tensors[info.name] = TensorInfo(
                info.name, info.shape, info.type, offset, info.nbytes
            )
        self.check_overlaps()
        return self

    def check_overlaps(self) -> None:
        """No byte belongs to two tensors. A tied output head is one tensor, described once."""
        end, before = 0, ""
        for info in sorted(self.tensors.values(), key=lambda info: info.offset):
            if info.offset < end:
                self.fail(
                    f"tensors {before!r} and {info.name!r} overlap: the former ends at {end}",
                    at=info.offset,
                )
            end, before = info.offset + info.nbytes, info.name

    def read_header(self) -> None:
        if self.data[:4] != MAGIC:
            raise ModelFileError(
                "this is not a GGUF file: it does not begin with 'GGUF'",
                where=f"{self.file_name}:byte 0",
                hint="give a .gguf file, or the folder that holds config.json and safetensors files",
            )
        if self.size < 24:
            self.fail(f"{self.size} bytes are too few for a GGUF header")
        self.pos = 4
        self.version = self.u32()
        if self.version not in (2, 3):
            big_endian = self.version in (2 << 24, 3 << 24)
            what = (
                "big-endian GGUF files" if big_endian else f"GGUF files of version {self.version}"
            )
            raise UnsupportedModel(
                f"{what} are not supported",
                where=f"{self.file_name}:byte 4",
                hint="use a little-endian file of version 2 or 3",
            )

    def alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            self.fail(f"general.alignment must be a power of two, not {value!r}")
        return value

    def read_pair(self) -> None:
        at = self.pos
        key = self.name("metadata key")
        if key in self.metadata:
            self.fail(f"metadata key {key!r} appears twice", at=at)
        kind = self.u32()
        self.metadata[key] = self.read_array(key) if kind == _ARRAY else self.read_value(key, kind)

    def read_value(self, key: str, kind: int) -> MetadataValue:
        at = self.pos
        if kind == _STRING:
            length = self.u64()
            raw = self.take(length, f"the string {key!r}")
            try:
                return raw.decode()
            except UnicodeDecodeError:
                self.fail(f"the string {key!r} is not UTF-8", at=at)
        if kind not in _NUMBERS:
            self.fail(f"metadata key {key!r} has the unknown value type {kind}", at=at - 4)
        dtype = np.dtype(_NUMBERS[kind])
        raw = self.take(dtype.itemsize, f"the value of {key!r}")
        if kind == _BOOL and raw[0] > 1:
            self.fail(f"the boolean {key!r} is {raw[0]}", at=at)
        return cast(MetadataValue, np.frombuffer(raw, dtype)[0].item())

    def read_array(self, key: str) -> StringArray | NumberArray:
        kind_at = self.pos
        kind, count = self.u32(), self.u64()
        if kind == _STRING:
            return self.read_strings(key, count)
        if kind not in _NUMBERS:
            what = "arrays of arrays" if kind == _ARRAY else f"the unknown element type {kind}"
            self.fail(f"metadata key {key!r} holds {what}", at=kind_at)
        dtype = np.dtype(_NUMBERS[kind])
        start = self.pos
        self.skip(count * dtype.itemsize, f"the array {key!r}")
        stored = np.dtype("u1") if kind == _BOOL else dtype
        values = np.frombuffer(self.data, stored, count=count, offset=start)
        return values != 0 if kind == _BOOL else values

    def read_strings(self, key: str, count: int) -> StringArray:
        start = self.pos
        if count > (self.size - start) // 8:
            self.fail(f"the array {key!r} of {count} strings is longer than the file", at=start - 8)
        starts = array("Q")
        append, length, data = starts.append, _U64.unpack_from, self.data
        pos, last = start, self.size - 8
        for _ in range(count):
            if pos > last:
                self.fail(f"the array {key!r} is cut short", at=pos)
            append(pos)
            pos += 8 + length(data, pos)[0]
        # One check after the loop is enough for the last string; the loop's own covers all others.
        if pos > self.size:
            self.fail(f"a string of the array {key!r} is longer than the file", at=starts[-1])
        self.pos = pos
        return StringArray(data, starts, f"{self.file_name}:byte {start}")

    def read_tensor(self, alignment: int) -> TensorInfo:
        """Read one description; `offset` of the result is still relative to the data section."""
        at = self.pos
        name = self.name("tensor name")
        dims = self.u32()
        if not 1 <= dims <= 4:
            self.fail(f"tensor {name!r} has {dims} dimensions, not 1 to 4", at=at)
        shape = tuple(self.u64() for _ in range(dims))
        number, offset = self.u32(), self.u64()
        elements = 1
        for extent in shape:
            elements *= extent
            if not 0 < elements < MAX_ELEMENTS:
                self.fail(f"tensor {name!r} has the impossible shape {shape[::-1]}", at=at)
        try:
            kind = GGMLType(number)
        except ValueError:
            raise UnsupportedModel(
                f"tensor {name!r} has the unknown type {number}",
                where=f"{self.file_name}:byte {at}",
                hint="use a file in a common type, such as Q4_K_M or Q8_0",
            ) from None
        if shape[0] % kind.block_size:
            self.fail(
                f"tensor {name!r}: rows of {shape[0]} are not whole {kind.name} blocks", at=at
            )
        if offset % alignment:
            self.fail(f"tensor {name!r}: offset {offset} is not a multiple of {alignment}", at=at)
        nbytes = elements // kind.block_size * kind.block_bytes
        return TensorInfo(name, shape[::-1], kind, offset, nbytes)

    def name(self, what: str) -> str:
        at = self.pos
        length = self.u64()
        if not 0 < length <= MAX_NAME_BYTES:
            self.fail(f"a {what} of {length} bytes", at=at)
        try:
            return self.take(length, f"a {what}").decode()
        except UnicodeDecodeError:
            self.fail(f"a {what} is not UTF-8", at=at)

    def u32(self) -> int:
        return cast(int, _U32.unpack(self.take(4, "a number"))[0])

    def u64(self) -> int:
        return cast(int, _U64.unpack(self.take(8, "a number"))[0])

    def skip(self, length: int, what: str) -> None:
        if length > self.size - self.pos:
            self.fail(f"{what} needs {length} bytes, but {self.size - self.pos} are left")
        self.pos += length

    def take(self, length: int, what: str) -> bytes:
        start = self.pos
        self.skip(length, what)
        return self.data[start : self.pos]
