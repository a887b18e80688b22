"""Model files: GGUF files and Hugging Face folders as sources of weights, and names as paths."""

from __future__ import annotations

from pathlib import Path

from stolon.srt.loaders.catalog import DEFAULT_MODEL
from stolon.srt.loaders.folder import check_folder
from stolon.srt.loaders.ggml import GGMLType
from stolon.srt.loaders.gguf import GGUFFile
from stolon.srt.loaders.gguf_model import GGUFModel
from stolon.srt.loaders.gguf_parser import StringArray, TensorInfo
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
    "check_folder",
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
    return SafetensorsModel(path) if path.is_dir() else GGUFModel(path)
