"""A folder that is no model is told so in one message, whichever of its files is wanted first."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from stolon.errors import ModelFileError
from stolon.srt.engine import Engine
from stolon.srt.load_tokenizer import load_tokenizer
from stolon.srt.loaders import check_folder, open_model
from stolon.srt.server.options import EngineOptions
from stolon.srt.server.zmq_client import ZmqEngineClient

FILES = ("config.json", "tokenizer.json", "model.safetensors")
LACKS = {
    "config.json": "no config.json",
    "tokenizer.json": "no tokenizer.json",
    "model.safetensors": "no model.safetensors",
}
SOME = [set(names) for count in range(3) for names in combinations(FILES, count)]


def folder(tmp_path: Path, names: set[str]) -> Path:
    path = tmp_path / "m"
    path.mkdir()
    for name in names:
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize("present", SOME, ids=lambda names: " ".join(sorted(names)) or "empty")
def test_every_missing_file_is_listed(tmp_path: Path, present: set[str]) -> None:
    path = folder(tmp_path, present)
    told: set[str] = set()
    for use in (
        check_folder,
        Engine,
        lambda path: ZmqEngineClient.launch(EngineOptions(model=str(path))),
    ):
        with pytest.raises(ModelFileError) as caught:
            use(path)
        told.add(str(caught.value))
    (message,) = told
    for name in FILES:
        assert (LACKS[name] in message) == (name not in present)
        assert name in message  # the hint has them all
    assert str(path) in message


def test_who_needs_less_is_content_with_it(tmp_path: Path) -> None:
    path = folder(tmp_path, set())
    for use in (open_model, load_tokenizer):
        with pytest.raises(ModelFileError, match=r"no config.* no tokenizer.* no model\."):
            use(path)
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match="malformed"):
        load_tokenizer(path)


def test_an_index_stands_for_the_weights(tmp_path: Path) -> None:
    index = "model.safetensors.index.json"
    check_folder(folder(tmp_path, {"config.json", "tokenizer.json", index}))


def test_a_model_file_in_a_folder_is_pointed_at(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"give tiny\.gguf itself"):
        check_folder(folder(tmp_path, {"tiny.gguf"}))
