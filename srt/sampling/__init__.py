"""Choosing tokens: penalties, masks, filters, counter-based randomness, log-probs."""

from .logprobs import log_totals, token_logprobs
from .params import BrokenLogits, Floats, Sampled, SamplerRow, TokenMask
from .rng import draw_key, token_uniforms
from .sampler import sample

__all__ = [
    "BrokenLogits",
    "Floats",
    "Sampled",
    "SamplerRow",
    "TokenMask",
    "draw_key",
    "log_totals",
    "sample",
    "token_logprobs",
    "token_uniforms",
]
