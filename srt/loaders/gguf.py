"""The GGUF container: a memory-mapped file in which every number is checked before it is used.

Format (version 2 and 3, little endian): ``GGUF``, u32 version, u64 tensor count, u64 metadata
count, metadata pairs, tensor descriptions, padding to the alignment, tensor data. Specification:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

A file is untrusted data. Whatever its bytes, opening it gives a GGUFFile or a ModelFileError
(UnsupportedModel for a version or tensor type that is not known).
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

import numpy as np
import numpy.typing as npt

from stolon.errors import ModelFileError, ModelNotFound
from stolon.srt.loaders.gguf_parser import (
    HINT,
    MetadataValue,
    NumberArray,
    Parser,
    StringArray,
    TensorInfo,
)


class GGUFFile:
    """An open GGUF file.

    Attributes:
        path: of the file.
        version: 2 or 3.
        metadata: key to value; arrays are StringArray or read-only numpy views.
        tensors: name to TensorInfo, in file order.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._data = data
        parsed = Parser(path.name, data).parse()
        self.version: int = parsed.version
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(parsed.metadata)
        self.tensors: dict[str, TensorInfo] = parsed.tensors

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Map and check a file. Raises ModelNotFound, ModelFileError or UnsupportedModel."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelNotFound(
                f"there is no file or folder {path}", hint="check the path, or see `stolon models`"
            ) from error
        except ValueError as error:  # an empty file can't be mapped
            raise ModelFileError("the file is empty", where=str(path), hint=HINT) from error
        except OSError as error:
            raise ModelFileError(
                f"the file can't be read: {error.strerror}", where=str(path)
            ) from error
        return cls(path, data)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Stored bytes of a tensor as a read-only view. Raises ModelFileError if it is absent."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(
                f"tensor {name!r} is missing", where=self.path.name, hint="the file is incomplete"
            )
        return np.frombuffer(self._data, dtype=np.uint8, count=info.nbytes, offset=info.offset)

    def get_int(self, key: str, *, default: int | None = None) -> int:
        """An integer of the metadata.

        Raises ModelFileError if it is of another type, or absent without a default.
        """
        return cast(int, self._get(key, int, default))

    def get_float(self, key: str, *, default: float | None = None) -> float:
        """A float of the metadata (an integer is taken too). Errors as `get_int`."""
        value = self._get(key, (float, int), default)
        return float(cast(float, value))

    def get_str(self, key: str, *, default: str | None = None) -> str:
        """A string of the metadata. Errors as `get_int`."""
        return cast(str, self._get(key, str, default))

    def get_bool(self, key: str, *, default: bool | None = None) -> bool:
        """A boolean of the metadata. Errors as `get_int`."""
        return cast(bool, self._get(key, bool, default))

    def get_array(self, key: str) -> NumberArray:
        """A numeric array of the metadata as a read-only view. Errors as `get_int`."""
        return cast(NumberArray, self._get(key, np.ndarray, None))

    def get_strings(self, key: str) -> StringArray:
        """A string array of the metadata. Errors as `get_int`."""
        return cast(StringArray, self._get(key, StringArray, None))

    def close(self) -> None:
        """Unmap the file, once the last view of it is gone."""
        try:
            self._data.close()
        except BufferError:  # views are alive; the mapping goes with the last of them
            return

    def _get(self, key: str, kind: type | tuple[type, ...], default: object) -> object:
        value = self.metadata.get(key)
        if value is None:
            if default is None:
                raise ModelFileError(f"metadata key {key!r} is missing", where=self.path.name)
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            raise ModelFileError(
                f"metadata key {key!r} must be {wanted}, not {type(value).__name__}",
                where=self.path.name,
            )
        return value
