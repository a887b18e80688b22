"""Rotary frequencies, with the stretchings that long-context models use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stolon.srt.models.config import RopeScaling


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """By how much a position turns each pair of features: radians, float64 ``[head_dim // 2]`` (arXiv
    2104.09864)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = theta**-exponents
    return frequencies if scaling is None else _stretch(frequencies, scaling)


def _stretch(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """``linear`` slows every frequency (arXiv 2306.15595). ``llama3`` slows those whose wave is
    long against the original context, keeps the short ones, and blends in between (arXiv
    2407.21783)."""
    slowed = frequencies / scaling.factor
    if scaling.kind == "linear":
        return slowed
    turns = scaling.original_context * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * frequencies + (1 - keep) * slowed
