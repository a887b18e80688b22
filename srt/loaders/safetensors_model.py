"""A Hugging Face folder (config.json and safetensors files) as a model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stolon.errors import ModelFileError, ModelNotFound, UnsupportedModel
from stolon.kernels import StoredWeight
from stolon.srt.loaders import hf_config
from stolon.srt.loaders.folder import CONFIG, INDEX, WEIGHTS, check_folder
from stolon.srt.loaders.layout import check_tensor, check_values, tensor_shapes
from stolon.srt.models.config import ModelConfig

_DTYPES = ("F32", "F16", "BF16")
_MAX_JSON_BYTES = 64 << 20
_MAX_SHARDS = 1024

# What the name of the language model's tensors begins with, alone or inside a model with vision.
_PREFIXES = {"model.": "", "language_model.model.": "language_model.", "model.language_model.": ""}


class SafetensorsModel:
    """WeightSource over a Hugging Face folder of a Llama, Mistral, Qwen2, Qwen3 or Gemma3 model.

    All tensors are present with the right shapes once the constructor returns. Raises
    ModelNotFound, ModelFileError or UnsupportedModel.

    Attributes:
        folder: of the model, for the tokenizer's files.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ModelNotFound(f"there is no folder {self.folder}", hint="check the path")
        check_folder(self.folder, needs=(CONFIG, WEIGHTS))
        data = read_json(self.folder / CONFIG)
        where = f"{self.folder.name}/{CONFIG}"
        self._config = hf_config.read_config(data, where=where)
        self._shapes = tensor_shapes(self._config)
        self._resources = ExitStack()
        try:
            self._shards = self._open_shards()
            self._prefix, self._head_prefix = self._find_prefix()
            self._check_tensors(vision=hf_config.is_vision_config(data))
        except BaseException:
            self.close()
            raise

    @property
    def config(self) -> ModelConfig:
        """Sizes and constants of the model."""
        return self._config

    @property
    def names(self) -> frozenset[str]:
        """Canonical names of all tensors."""
        return frozenset(self._shapes)

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """A fresh, contiguous copy of one tensor. Raises ModelFileError if it is absent, or
        a vector that is not finite."""
        value = self._value(name)
        if self._config.architecture == "gemma3" and name.endswith("norm.weight"):
            value = value.float() + 1.0  # stored as the distance from one
        copy = torch.empty(value.shape, dtype=dtype).copy_(value)
        return check_values(self._stored_name(name), copy, where=self.folder.name)

    def stored(self, name: str) -> StoredWeight:
        """A matrix as the file holds it, a view of the mapped file where its bytes are aligned."""
        return StoredWeight.of(self._value(name))

    def _value(self, name: str) -> Tensor:
        if name not in self._shapes:
            raise ModelFileError(f"the model has no tensor {name!r}", where=self.folder.name)
        stored = self._stored_name(name)
        try:
            value: Tensor = self._shards[stored].get_tensor(stored)
        except SafetensorError as error:
            raise ModelFileError(
                f"tensor {stored!r} can't be read: {error}", where=self.folder.name
            ) from error
        return value

    def close(self) -> None:
        """Release the files."""
        self._shards = {}
        self._resources.close()

    def _open_shards(self) -> dict[str, Any]:
        """Stored tensor name to the opened file that holds it."""
        if (self.folder / WEIGHTS).is_file():
            shard = self._open(WEIGHTS)
            return dict.fromkeys(shard.keys(), shard)
        files = read_index(self.folder / INDEX)
        shards = {file: self._open(file) for file in sorted(set(files.values()))}
        held = {file: frozenset(shard.keys()) for file, shard in shards.items()}
        for name, file in files.items():
            if name not in held[file]:
                raise ModelFileError(
                    f"tensor {name!r} is not in {file}, where the index puts it",
                    where=f"{self.folder.name}/{INDEX}",
                    hint="download the model again",
                )
        return {name: shards[file] for name, file in files.items()}

    def _open(self, file: str) -> Any:
        where = f"{self.folder.name}/{file}"
        try:
            return self._resources.enter_context(safe_open(self.folder / file, framework="pt"))
        except FileNotFoundError as error:
            raise ModelFileError(
                "a file of the model is missing", where=where, hint="download the model again"
            ) from error
        except (SafetensorError, OSError) as error:
            raise ModelFileError(
                f"the file is not valid safetensors: {error}",
                where=where,
                hint="download the model again",
            ) from error

    def _find_prefix(self) -> tuple[str, str]:
        for prefix, head_prefix in _PREFIXES.items():
            if f"{prefix}embed_tokens.weight" in self._shards:
                return prefix, head_prefix
        raise ModelFileError(
            "tensor 'model.embed_tokens.weight' is missing",
            where=self.folder.name,
            hint="download the model again",
        )

    def _stored_name(self, name: str) -> str:
        if name == "lm_head.weight":
            return self._head_prefix + name
        return self._prefix + name.removeprefix("model.")

    def _check_tensors(self, *, vision: bool) -> None:
        where = self.folder.name
        for name, shape in self._shapes.items():
            stored = self._stored_name(name)
            found = None
            if stored in self._shards:
                view = self._shards[stored].get_slice(stored)
                found = tuple(view.get_shape())
                if view.get_dtype() not in _DTYPES:
                    raise UnsupportedModel(
                        f"tensor {stored!r} has the unsupported type {view.get_dtype()}",
                        where=where,
                        hint="supported: " + ", ".join(_DTYPES),
                    )
            check_tensor(stored, found, shape, where=where)
        # A tied head is often stored all the same; old files carry the rotary frequencies.
        expected = {self._stored_name(name) for name in (*self._shapes, "lm_head.weight")}
        for name in sorted(self._shards.keys() - expected):
            in_language_model = not vision or name.startswith(self._prefix + "layers.")
            if in_language_model and not name.endswith("rotary_emb.inv_freq"):
                raise UnsupportedModel(
                    f"tensor {name!r} has no place in a {self._config.architecture} model",
                    where=where,
                    hint="the folder holds a variant of the architecture that is not implemented",
                )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of bounded size. Raises ModelFileError."""
    where = f"{path.parent.name}/{path.name}"
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelFileError(f"the file is over {_MAX_JSON_BYTES} bytes", where=where)
        data = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"the file can't be read: {error.strerror}", where=where) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ModelFileError(f"the file is not valid JSON: {error}", where=where) from error
    if not isinstance(data, dict):
        raise ModelFileError("the file must hold a JSON object", where=where)
    return data


def read_index(path: Path) -> dict[str, str]:
    """Tensor name to file name of a sharded model. No file name leads out of the folder."""
    where = f"{path.parent.name}/{path.name}"
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelFileError("'weight_map' must map tensor names to files", where=where)
    for name, file in files.items():
        if (
            not isinstance(file, str)
            or not file.endswith(".safetensors")
            or any(bad in file for bad in ("/", "\\", "..", "\0", ":"))
        ):
            raise ModelFileError(
                f"tensor {name!r} is in a file with the unsafe name {str(file)[:80]!r}",
                where=where,
            )
    if len(set(files.values())) > _MAX_SHARDS:
        raise ModelFileError(f"the model has over {_MAX_SHARDS} files", where=where)
    return files
