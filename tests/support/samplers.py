"""The samplers that there are here, rows to try them on, and a float64 reference, slow and by definition."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from stolon.errors import StolonError
from stolon.srt import sampling
from stolon.srt.protocol import TokenLogprob
from stolon.srt.sampling import (
    Sampled,
    SamplerRow,
    draw_key,
    token_uniforms,
)

try:
    from stolon.kernels.cpu import _native
except ImportError:
    _native = None

VOCAB = 1_003
KINDS = ["numpy", *(_native.instruction_sets() if _native else ())]


@functools.cache
def _team(kind: str) -> Any:
    return None if kind == "numpy" else _native.Team(2, kind)


_computing: Any = None


def compute_with(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of KINDS computes `sample`, `token_logprobs` and `log_totals` until the test ends."""
    monkeypatch.setitem(globals(), "_computing", _team(kind))


def sample(
    logits: np.ndarray, rows: list[SamplerRow], **options: Any
) -> list[Sampled | StolonError]:
    return sampling.sample(logits, rows, team=_computing, **options)


def token_logprobs(logits: np.ndarray, tokens: list[int], **options: Any) -> list[TokenLogprob]:
    return sampling.token_logprobs(logits, tokens, team=_computing, **options)


def log_totals(logits: np.ndarray) -> list[float]:
    return sampling.log_totals(logits, team=_computing)


@dataclass(frozen=True)
class Mask:
    allow: np.ndarray | None = None
    deny: np.ndarray | None = None
    bits: np.ndarray | None = None
    count: int = 1


def masks(allowed: list[int], vocab: int = VOCAB) -> dict[str, Mask]:
    """The same set of ids in each of the three forms."""
    bits = np.zeros(vocab, dtype=np.bool_)
    bits[allowed] = True
    ids = np.array(sorted(allowed), dtype=np.int64)
    others = np.flatnonzero(~bits).astype(np.int64)
    return {"allow": Mask(allow=ids), "deny": Mask(deny=others), "bits": Mask(bits=bits)}


def random_logits(rows: int, seed: int = 0, spread: float = 3.0, vocab: int = VOCAB) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)


def one(logits: np.ndarray, row: SamplerRow) -> Sampled:
    (result,) = sample(logits.reshape(1, -1), [row])
    if isinstance(result, StolonError):
        raise result
    return result


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def reference_processed(logits: np.ndarray, row: SamplerRow) -> np.ndarray:
    """Log-probs ``[V]`` of the distribution that the row's token is drawn from."""
    s, x = row.sampling, logits.astype(np.float64)
    for i in set(row.seen if row.seen is not None else ()):
        x[i] = x[i] / s.repetition_penalty if x[i] > 0 else x[i] * s.repetition_penalty
    for i, count in row.output_counts.items():
        x[i] -= s.frequency_penalty * count + s.presence_penalty
    for i, bias in s.logit_bias.items():
        x[i] += bias
    if row.mask is not None:
        allowed = np.ones(len(x), dtype=bool)
        if row.mask.allow is not None:
            allowed[:] = False
            allowed[row.mask.allow] = True
        elif row.mask.deny is not None:
            allowed[row.mask.deny] = False
        elif row.mask.bits is not None:
            allowed = row.mask.bits
        x[~allowed] = -np.inf
    x[list(row.banned)] = -np.inf
    ranked = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if s.temperature == 0:
        ranked = ranked[:1]
    else:
        x = x / s.temperature
    if s.top_k:
        ranked = ranked[: s.top_k]
    p = np.exp(log_softmax(x[ranked]))
    keep = 1 + int(np.searchsorted(np.cumsum(p), s.top_p * p.sum())) if s.top_p < 1 else len(p)
    ranked, p = ranked[:keep], p[:keep]
    ranked = [i for i, w in zip(ranked, p, strict=True) if w >= s.min_p * p[0]]
    final = np.full(len(x), -np.inf)
    final[ranked] = log_softmax(x[ranked])
    return final


def reference_token(final: np.ndarray, row: SamplerRow) -> int:
    """The Gumbel-max trick, by definition."""
    key = draw_key(row.seed, row.sample, row.position)
    numbers = token_uniforms(key, np.arange(len(final), dtype=np.uint32)).astype(np.float64)
    return int(np.argmax(final - np.log(-np.log1p(-numbers))))


CASES = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in itertools.product(
        (0.0, 0.3, 1.0, 2.5), (0, 1, 7, 400), (1.0, 0.95, 0.3), (0.0, 0.02, 0.5)
    )
]
HISTORY = {
    "output_counts": {3: 1, 10: 4, 500: 2},
    "seen": np.array([1, 3, 10, 77, 500, 900], dtype=np.int64),
}
PENALTIES = {
    "presence_penalty": 0.7,
    "frequency_penalty": -0.4,
    "repetition_penalty": 1.3,
    "logit_bias": {2: 5.0, 10: -100.0},
}
