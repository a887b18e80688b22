"""How tokens are chosen, and which log-probs are reported."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from stolon.errors import InvalidRequest
from stolon.srt.messages.types import check_types

# Limits on what one request may ask for. They bound memory and time.
MAX_STOP_STRINGS = 32
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 64
MAX_LOGIT_BIAS = 1024
MAX_BIAS = 1e6

LogprobMode = Literal["raw", "tempered", "processed"]
JumpForward = Literal["inject", "verify", "off"]
Speculation = Literal["auto", "off"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_BIG = 2**31 - 1
# Logits, which are float32, stay finite whatever is asked for within these and `MAX_BIAS`.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 0, _BIG),
    ("min_tokens", 0, _BIG),
    ("temperature", 0.0, 100.0),
    ("top_k", 0, _BIG),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -10.0, 10.0),
    ("frequency_penalty", -10.0, 10.0),
    ("repetition_penalty", 0.01, 100.0),
    ("seed", 0, 2**63 - 1),
)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next tokens are chosen. Defaults sample from the model's own distribution.

    Attributes:
        max_tokens: at most this many tokens; None means up to the end of the context; 0 generates nothing.
        min_tokens: end-of-sequence and stops are ignored before this many tokens.
        temperature: 0 is greedy.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose mass reaches p.
        min_p: drop tokens less likely than min_p times the most likely one.
        presence_penalty, frequency_penalty: subtracted once, or per occurrence, for generated tokens
            (OpenAI semantics: the prompt does not count).
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in the prompt
            or the output (CTRL, arXiv 1909.05858); 0.01 to 100, 1 is off.
        logit_bias: added to the logits of these token ids; up to a million either way.
        stop: the text ends before the first of these strings.
        stop_token_ids: the text ends before any of these tokens.
        stop_regex: the text ends before the first match of any of these patterns.
        ignore_eos: do not end at the model's end-of-sequence tokens.
        include_stop: keep the matched stop string in the text.
        seed: non-negative; samples of one request derive distinct streams from it. None draws one.
        skip_special_tokens: leave special tokens out of the text.
        jump_forward: what becomes of text that a grammar leaves no choice about. ``inject`` appends its
            canonical tokens without sampling; ``verify`` drafts them, and every token is drawn from
            the masked distribution; ``off`` only masks. The output of verify and off is the same.
        speculation: ``auto`` also drafts what followed the same tokens earlier in the sequence, where
            that pays. It never changes the output.
        close_at_budget: text under a grammar ends valid within `max_tokens`, if a completion fits: near
            the budget, tokens that could not be completed in time are replaced by those of a completion.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    seed: int | None = None
    skip_special_tokens: bool = True
    jump_forward: JumpForward = "inject"
    speculation: Speculation = "auto"
    close_at_budget: bool = False

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidRequest that names the first field of a wrong type or out of range."""
        check_types(self)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidRequest(f"{name} must be a finite number, not {value}", param=name)
            if not low <= value <= high:
                raise InvalidRequest(
                    f"{name} must be between {low} and {high}, not {value}", param=name
                )
        if self.top_p <= 0:
            raise InvalidRequest("top_p must be above 0", param="top_p")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})",
                param="min_tokens",
            )
        for name in ("stop", "stop_regex"):
            values = getattr(self, name)
            if len(values) > MAX_STOP_STRINGS:
                raise InvalidRequest(f"{name} takes at most {MAX_STOP_STRINGS} entries", param=name)
            for value in values:
                if not 0 < len(value) <= MAX_STOP_CHARS:
                    raise InvalidRequest(
                        f"each {name} must have 1 to {MAX_STOP_CHARS} characters", param=name
                    )
                if _SURROGATE.search(value):
                    raise InvalidRequest(
                        f"{name} holds half of a surrogate pair, which no text does", param=name
                    )
        if len(self.stop_token_ids) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"stop_token_ids takes at most {MAX_LOGIT_BIAS} entries", param="stop_token_ids"
            )
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias takes at most {MAX_LOGIT_BIAS} entries", param="logit_bias"
            )
        for name in ("logit_bias", "stop_token_ids"):
            for token in getattr(self, name):
                if not 0 <= token < vocab_size:
                    raise InvalidRequest(
                        f"{name} names token {token}; the vocabulary has {vocab_size}", param=name
                    )
        for bias in self.logit_bias.values():
            if not abs(bias) <= MAX_BIAS:
                raise InvalidRequest(
                    f"logit_bias values must be between {-MAX_BIAS:.0f} and {MAX_BIAS:.0f}, not {bias}",
                    param="logit_bias",
                )


class LogprobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which log-probabilities a generation reports.

    Attributes:
        top: also report this many most likely alternatives per position.
        mode: ``raw``: log-softmax of the model's logits. ``tempered``: after division by the temperature.
            ``processed``: of the distribution that was sampled from (penalties, bias, mask, temperature,
            top-k, top-p, min-p).
    """

    top: int = 0
    mode: LogprobMode = "raw"
