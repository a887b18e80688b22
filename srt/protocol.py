"""The typed messages between the language, the servers and the engine.

A *request* is one block of a program: the tokens and literals so far, then generations and selections up
to the point where the program needs a value. The engine walks the whole block and answers with *events*.
All of it is plain msgspec data: the same structs are passed in process and over a socket.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Literal
from uuid import UUID

import msgspec

from stolon.constrained import GrammarKind as GrammarKind
from stolon.constrained import GrammarSpec as GrammarSpec
from stolon.errors import InvalidRequest, StolonError, error_from_code

# Limits on what one request may ask for (docs/limits in the README table). They bound memory and time.
MAX_SAMPLES = 128
MAX_STOP_STRINGS = 32
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 64
MAX_LOGIT_BIAS = 1024
MAX_CHOICES = 4096
MAX_SEGMENTS = 4096

BLOCKS_VERSION = 1
"""Of the messages below, as they travel between a program and a server. Both sides must have the same."""

LogprobMode = Literal["raw", "tempered", "processed"]
JumpForward = Literal["inject", "verify", "off"]
Speculation = Literal["auto", "off"]
FinishKind = Literal["stop", "length", "abort"]
SelectMethod = Literal[
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
    "sum",
]


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
            or the output (CTRL, arXiv 1909.05858); 1 is off.
        logit_bias: added to the logits of these token ids.
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
        if self.repetition_penalty <= 0:
            raise InvalidRequest("repetition_penalty must be above 0", param="repetition_penalty")
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
            if not math.isfinite(bias):
                raise InvalidRequest("logit_bias values must be finite", param="logit_bias")


# Values of these types are no text, though msgspec writes them as text.
_NO_TEXT = (bytes, bytearray, UUID, Decimal)


def check_types(message: msgspec.Struct) -> None:
    """Raise InvalidRequest that names the first field of a wrong type, as one built in Python may have."""
    try:
        plain = msgspec.to_builtins(message, builtin_types=_NO_TEXT)
        msgspec.convert(plain, type(message), builtin_types=_NO_TEXT)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        fields = message.__struct_fields__
        odd = [name for name in fields if not _is_plain(getattr(message, name))]
        name = odd[0] if odd else type(message).__name__
        raise InvalidRequest(f"{name} can't be read: {error}", param=name) from error


def _is_plain(value: object) -> bool:
    """Whether a value consists of what JSON has."""
    try:
        msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError, RecursionError):
        return False
    except OverflowError:  # a number, however large
        pass
    return True


def _wrong_type(message: str) -> InvalidRequest:
    """What msgspec says about a value of a wrong type, with the field in front."""
    found = re.search(r"\$\.((\w+)[\w.]*)", message)
    if found is None:
        return InvalidRequest(message)
    path, field = found[1], found[2]
    types = re.match(r"Expected `(.+?)`, got `(.+?)`", message)
    if types is None:
        return InvalidRequest(f"{path}: {message.partition(' - at ')[0]}", param=field)
    return InvalidRequest(f"{path} must be {types[1]}, not {types[2]}", param=field)


_SURROGATE = re.compile("[\ud800-\udfff]")
_BIG = 2**31 - 1
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 0, _BIG),
    ("min_tokens", 0, _BIG),
    ("temperature", 0.0, 100.0),
    ("top_k", 0, _BIG),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -10.0, 10.0),
    ("frequency_penalty", -10.0, 10.0),
    ("repetition_penalty", 0.0, 100.0),
    ("seed", 0, 2**63 - 1),
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


class Text(msgspec.Struct, frozen=True, tag="text", forbid_unknown_fields=True):
    """Literal text. Only `special` text (from a chat template) may spell special tokens."""

    text: str
    special: bool = False


class Tokens(msgspec.Struct, frozen=True, tag="tokens", forbid_unknown_fields=True):
    """Known token ids, taken as they are."""

    ids: list[int]


class Gen(msgspec.Struct, frozen=True, kw_only=True, tag="gen", forbid_unknown_fields=True):
    """Generate until a stop, the end of the grammar, or max_tokens.

    Attributes:
        name: variable of the program, for traces; the engine does not interpret it.
        heal: the literal before this generation is user text: if it ends in the middle of a token
            (trailing blanks), that token is generated anew under the constraint that it begins with
            those bytes (token healing). The text of the generation never includes them.
        logprobs: None reports none.
    """

    name: str | None = None
    sampling: Sampling = Sampling()
    grammar: GrammarSpec | None = None
    logprobs: LogprobSpec | None = None
    heal: bool = False


class Select(msgspec.Struct, frozen=True, kw_only=True, tag="select", forbid_unknown_fields=True):
    """Score every choice after the text so far, and append the best one or one that is drawn.

    Attributes:
        method: what is compared. ``token_length_normalized``: the mean log-prob of a choice's tokens.
            ``sum``: the log-prob of the whole choice. ``unconditional_likelihood_normalized``: the mean
            by which the text before raises the log-prob of a token. ``greedy_token_selection``: the
            walk along the likeliest token at each fork of the choices.
        temperature: 0 takes the best; else a choice is drawn with a probability in proportion to
            exp(score / temperature). With ``sum`` and 1 that is the model's own distribution, given that
            the text is one of the choices. Not for the greedy walk, which has no scores.
        seed: of the draw; as in `Sampling`.
    """

    choices: tuple[str, ...]
    name: str | None = None
    method: SelectMethod = "token_length_normalized"
    heal: bool = False
    temperature: float = 0.0
    seed: int | None = None

    def validate(self) -> None:
        """Raise InvalidRequest that names the first field out of range."""
        if not 0.0 <= self.temperature <= 100.0:
            raise InvalidRequest(
                f"temperature must be between 0 and 100, not {self.temperature}",
                param="temperature",
            )
        if self.temperature and self.method == "greedy_token_selection":
            raise InvalidRequest(
                "greedy_token_selection draws nothing, so it takes no temperature",
                param="temperature",
                hint="draw with the method sum",
            )
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InvalidRequest("seed must be between 0 and 2**63 - 1", param="seed")


Segment = Text | Tokens | Gen | Select


class PromptLogprobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Report log-probs of the prompt (the leading Text and Tokens segments) from position `start` on."""

    start: int = 0
    top: int = 0


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One block of a program.

    Attributes:
        rid: unique id of the request.
        segments: what to append, in order. Leading Text/Tokens are the prompt.
        n: number of samples; each walks the whole block as its own branch after the shared prompt.
        stream: also send Delta events.
        salt: cache namespace; prefixes are only shared within the same salt.
        prompt_logprobs: None reports none.
        priority: larger is admitted earlier among equals in cache benefit.
    """

    rid: str
    segments: list[Segment]
    n: int = 1
    stream: bool = False
    salt: str = ""
    prompt_logprobs: PromptLogprobs | None = None
    priority: int = 0


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
