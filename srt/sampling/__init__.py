"""Choosing tokens: penalties, masks, filters, counter-based randomness, log-probs."""

from .logprobs import token_logprobs
from .params import Sampled, SamplerRow, TokenMask
from .rng import derive_seed, uniform
from .sampler import sample

__all__ = [
    "Sampled",
    "SamplerRow",
    "TokenMask",
    "derive_seed",
    "sample",
    "token_logprobs",
    "uniform",
]
