"""Decoder-only transformers over the op table, one short file an architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stolon.srt.models.config import Architecture, ModelConfig, RopeScaling

if TYPE_CHECKING:
    from stolon.srt.models.registry import load_model

__all__ = ["Architecture", "ModelConfig", "RopeScaling", "load_model"]


def __getattr__(name: str) -> Any:
    # Loaders import the config while the models import the loaders' protocol; resolved on first
    # use.
    if name == "load_model":
        from stolon.srt.models.registry import load_model

        return load_model
    raise AttributeError(name)
