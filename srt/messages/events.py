"""What the engine answers: pieces of text, outcomes of segments, the end of a sample, an error."""

from __future__ import annotations

from typing import Literal

import msgspec

from stolon.errors import StolonError, error_from_code

FinishKind = Literal["stop", "length", "abort"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-prob (natural log) of one token, with alternatives as (token id, log-prob), best first."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]] = []


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tokens of a segment came from, and where its time went.

    For a segment: prompt_tokens = tokens before it; of the tokens newly appended since the segment before,
    `cached_tokens` were found in the prefix tree and `computed_tokens` were prefilled; `forced_tokens` and
    `sampled_tokens` add up to the generation's own tokens. Of the tokens that were drafted (guessed, or
    forced and to be verified), those that the draws agreed with are `accepted_tokens`: each saved a step.
    Times in seconds.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    forced_tokens: int = 0
    sampled_tokens: int = 0
    queue_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0
    retractions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        return self.forced_tokens + self.sampled_tokens


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """Why a generation ended. `matched` is the stop string, pattern or token id that ended it, if any."""

    kind: FinishKind
    matched: str | int | None = None


class GenResult(msgspec.Struct, frozen=True, kw_only=True, tag="gen_result"):
    """The outcome of a Gen segment. `token_ids` are what the sequence keeps, in order."""

    text: str
    token_ids: list[int]
    finish: Finish
    usage: Usage = Usage()
    logprobs: list[TokenLogprob] | None = None


class ChoiceScore(msgspec.Struct, frozen=True, kw_only=True):
    """Exact log-probs of one choice of a Select.

    Attributes:
        token_ids: the tokens of the choice from the safe boundary on.
        token_logprobs: log-prob of each of them given the text before.
        logprob: their sum.
        normalized: the score that the selection method compares.
        unconditional: sum of log-probs without the text before (unconditional method only).
    """

    text: str
    token_ids: list[int]
    token_logprobs: list[float]
    logprob: float
    normalized: float
    unconditional: float | None = None


class SelectResult(msgspec.Struct, frozen=True, kw_only=True, tag="select_result"):
    """The outcome of a Select segment."""

    text: str
    index: int
    token_ids: list[int]
    scores: list[ChoiceScore]
    usage: Usage = Usage()


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag="delta"):
    """New text of a running Gen. Deltas of a segment concatenate to its GenResult.text exactly."""

    rid: str
    sample: int
    segment: int
    text: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None


class PromptDone(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_done"):
    """The leading known tokens are computed. Sent once per request when prompt log-probs were asked for."""

    rid: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]


class SegmentDone(msgspec.Struct, frozen=True, kw_only=True, tag="segment_done"):
    """A Gen or Select is finished. `segment` is its index in Request.segments."""

    rid: str
    sample: int
    segment: int
    result: GenResult | SelectResult


class SampleDone(msgspec.Struct, frozen=True, kw_only=True, tag="sample_done"):
    """A sample walked the whole block. `token_ids` are all its tokens: the branch's new prefix."""

    rid: str
    sample: int
    token_ids: list[int]
    prompt_tokens: int
    cached_tokens: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The request is over with an error; no further event follows. `segment` is the index of the segment
    that it is about, if it is about one."""

    rid: str
    code: str
    message: str
    param: str | None = None
    where: str | None = None
    hint: str | None = None
    segment: int | None = None

    @classmethod
    def of(cls, rid: str, error: StolonError) -> Failed:
        return cls(
            rid=rid,
            code=error.code,
            message=error.message,
            param=error.param,
            where=error.where,
            hint=error.hint,
            segment=error.segment,
        )

    def error(self) -> StolonError:
        error = error_from_code(
            self.code, self.message, param=self.param, where=self.where, hint=self.hint
        )
        error.segment = self.segment
        return error


Event = Delta | PromptDone | SegmentDone | SampleDone | Failed
