"""Model files: GGUF files and Hugging Face folders as sources of weights, and names as paths."""

from __future__ import annotations

from pathlib import Path

from stolon.errors import ModelFileError, ModelNotFound
from stolon.srt.loaders.catalog import DEFAULT_MODEL
from stolon.srt.loaders.ggml import GGMLType
from stolon.srt.loaders.gguf import GGUFFile
from stolon.srt.loaders.gguf_model import GGUFModel
from stolon.srt.loaders.gguf_parser import MAGIC, StringArray, TensorInfo
from stolon.srt.loaders.safetensors_model import SafetensorsModel
from stolon.srt.loaders.sources import (
    ModelEntry,
    default_cache_dir,
    list_models,
    pull,
    resolve,
)

__all__ = [
    "DEFAULT_MODEL",
    "GGMLType",
    "GGUFFile",
    "GGUFModel",
    "ModelEntry",
    "SafetensorsModel",
    "StringArray",
    "TensorInfo",
    "default_cache_dir",
    "list_models",
    "open_model",
    "pull",
    "resolve",
]


def open_model(path: str | Path) -> GGUFModel | SafetensorsModel:
    """Open a GGUF file or a Hugging Face folder as a WeightSource.

    Raises ModelNotFound, ModelFileError or UnsupportedModel. A name must be resolved first.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return SafetensorsModel(path)
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError as error:
        raise ModelNotFound(
            f"there is no file or folder {path}", hint="check the path, or see `stolon models`"
        ) from error
    except OSError as error:
        raise ModelFileError(
            f"the file can't be read: {error.strerror}", where=str(path)
        ) from error
    if magic != MAGIC:
        raise ModelFileError(
            "this is not a GGUF file: it does not begin with 'GGUF'",
            where=f"{path.name}:byte 0",
            hint="give a .gguf file, or the folder that holds config.json and safetensors files",
        )
    return GGUFModel(path)
