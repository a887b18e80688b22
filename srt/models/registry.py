"""Which class runs which architecture."""

from __future__ import annotations

from stolon.errors import UnsupportedModel
from stolon.kernels import Ops
from stolon.srt.models.gemma3 import Gemma3
from stolon.srt.models.llama import Llama
from stolon.srt.models.qwen2 import Qwen2
from stolon.srt.models.qwen3 import Qwen3
from stolon.srt.weights import WeightSource

MODELS: dict[str, type[Llama]] = {
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "gemma3": Gemma3,
}


def load_model(source: WeightSource, ops: Ops, *, max_context: int) -> Llama:
    """Build the model that `source.config` describes. Raises UnsupportedModel for another
    architecture."""
    kind = MODELS.get(source.config.architecture)
    if kind is None:
        raise UnsupportedModel(
            f"architecture {source.config.architecture!r} is not implemented",
            hint="known: " + ", ".join(sorted(MODELS)),
        )
    return kind(source, ops, max_context=max_context)
