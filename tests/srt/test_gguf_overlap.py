"""No byte of a GGUF file belongs to two tensors."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from support.gguf_files import (
    Stored,
    gguf_bytes,
    random_weights,
    string,
    tiny_config,
    write_gguf_model,
)

from stolon.errors import ModelFileError
from stolon.srt.loaders import GGUFFile, GGUFModel

# 64 bytes each, so that they lie next to each other.
TENSORS = {name: Stored.f32(np.full(16, at, "<f4")) for at, name in enumerate("abc")}


def with_offsets(tmp_path: Path, **offsets: int) -> Path:
    """A file of TENSORS some of which lie elsewhere in the data section."""
    data = bytearray(gguf_bytes({}, TENSORS))
    for name, offset in offsets.items():
        description = string(name) + struct.pack("<IQI", 1, 16, 0)
        at = data.index(description) + len(description)
        data[at : at + 8] = struct.pack("<Q", offset)
    path = tmp_path / "offsets.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("offsets", "pair"),
    [
        ({"b": 0}, ("a", "b")),  # the very same bytes
        ({"b": 32}, ("a", "b")),
        ({"a": 96, "b": 0}, ("a", "c")),  # whatever the order of the descriptions
        ({"a": 32, "b": 0}, ("b", "a")),
    ],
)
def test_tensors_that_overlap_are_refused(
    tmp_path: Path, offsets: dict[str, int], pair: tuple[str, str]
) -> None:
    with pytest.raises(ModelFileError) as caught:
        GGUFFile.open(with_offsets(tmp_path, **offsets))
    assert "overlap" in caught.value.message
    assert f"{pair[0]!r} and {pair[1]!r}" in caught.value.message
    assert (caught.value.where or "").startswith("offsets.gguf:byte ")


def test_tensors_that_touch_or_come_in_another_order_are_not(tmp_path: Path) -> None:
    file = GGUFFile.open(with_offsets(tmp_path, a=64, b=0))
    assert file.raw("a").view("<f4")[0] == 1.0
    file.close()


def test_a_tied_head_is_one_tensor(tmp_path: Path) -> None:
    config = tiny_config("llama", tie_embeddings=True)
    model = GGUFModel(write_gguf_model(tmp_path / "m.gguf", config, random_weights(config)))
    assert model.config.tie_embeddings
    assert "output.weight" not in model.file.tensors
    model.close()
