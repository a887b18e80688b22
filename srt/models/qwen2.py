"""Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115)."""

from __future__ import annotations

from stolon.srt.models.llama import Llama


class Qwen2(Llama):
    """Llama with a bias on queries, keys and values, which `ModelConfig.attention_bias` says."""
