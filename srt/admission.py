"""From a request to what the loop can walk: validated, tokenised, grammars compiled. Runs off the loop.

A grammar that is not at hand is compiled after the request was queued: its prompt is computed meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from stolon.constrained import ClosingTable, Grammar, GrammarCompiler, short_turns
from stolon.constrained.regular import longest_text
from stolon.errors import ContextLengthExceeded, InvalidRequest, StolonError
from stolon.srt.boundary import AllowList, Boundary
from stolon.srt.protocol import (
    MAX_CHOICES,
    MAX_SAMPLES,
    MAX_SEGMENTS,
    MAX_TOP_LOGPROBS,
    Event,
    Gen,
    GrammarSpec,
    Request,
    Sampling,
    Segment,
    Select,
    Text,
    Tokens,
    check_types,
)
from stolon.srt.stop_regex import StopRegex
from stolon.srt.tokenizer import Tokenizer

CONTEXT_HINT = (
    "shorten it; the limit is the smallest of context_length, kv_tokens and the model's own context"
)
_PLAIN = Sampling()
QUICKLY_READ = 4096
"""Characters of a grammar whose longest text is worked out for a request that has a minimum."""
SHARED_TOKENS = 16
"""A sibling is held back if waiting saves at least this many tokens of prefill."""


@dataclass(slots=True, frozen=True)
class Known:
    """Append these tokens."""

    ids: list[int]


@dataclass(slots=True, frozen=True)
class Uncompiled:
    """A grammar that a queued job waits for: of which segment, and the healed bytes before it."""

    segment: int
    spec: GrammarSpec
    prefix: bytes


@dataclass(slots=True, frozen=True)
class GenStep:
    """Generate; `prefix` are healed bytes the first tokens must repeat, `first_mask` enforces them where
    no grammar does; with `closing` the text is to end valid within the budget. While `compiling`, the
    grammar is still to come, and nothing may be generated."""

    segment: int
    gen: Gen
    grammar: Grammar | None
    stop_regexes: tuple[StopRegex, ...]
    seed: int
    prefix: bytes = b""
    first_mask: AllowList | None = None
    closing: ClosingTable | None = None
    compiling: Uncompiled | None = None


@dataclass(slots=True, frozen=True)
class SelectStep:
    """Score the choices (token ids, never empty) and append the winner."""

    segment: int
    select: Select
    choices: list[list[int]]
    seed: int


Step = Known | GenStep | SelectStep


@dataclass(slots=True)
class Job:
    """An admitted request: the steps that each of its samples walks. `on_event` is the way out.

    Attributes:
        prompt: int64, the leading known tokens.
        head: the first SHARED_TOKENS of them as bytes: jobs that differ here share nothing worth waiting for.
    """

    request: Request
    steps: list[Step]
    on_event: Callable[[Event], None]
    submitted: float
    prompt: NDArray[np.int64]
    head: bytes
    aborted: bool = False
    over: bool = False
    prompt_reported: bool = False

    @property
    def uncompiled(self) -> list[Uncompiled]:
        """What its steps wait for, in their order."""
        steps = (step for step in self.steps if isinstance(step, GenStep))
        return [step.compiling for step in steps if step.compiling is not None]

    def use_grammar(self, segment: int, grammar: Grammar) -> None:
        """A grammar is there: the step of that segment has it from now on."""
        for index, step in enumerate(self.steps):
            if isinstance(step, GenStep) and step.segment == segment:
                self.steps[index] = replace(step, grammar=grammar, compiling=None)


class Admission:
    """Checks requests and prepares them.

    Args:
        tokenizer: of the served model.
        compiler: of grammars over its vocabulary.
        context_length: the longest sequence the engine accepts, in tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, compiler: GrammarCompiler, *, context_length: int
    ) -> None:
        self._tokenizer = tokenizer
        self._compiler = compiler
        self._context_length = context_length
        self._boundary = Boundary(tokenizer)
        self._closing: ClosingTable | None = None
        self._longest_token = max(len(data) for data in tokenizer.token_bytes)

    def prepare(self, request: Request, on_event: Callable[[Event], None], submitted: float) -> Job:
        """Raises a StolonError that names what is wrong with the request."""
        self._check(request)
        with short_turns():
            steps = self._steps(request)
        first = steps[0]
        if not isinstance(first, Known) or not first.ids:
            raise InvalidRequest(
                "the prompt is empty, and a generation needs at least one token before it",
                param="prompt",
                hint="give a prompt, or a tokenizer with a beginning-of-sequence token",
            )
        known = sum(len(step.ids) for step in steps if isinstance(step, Known))
        if known > self._context_length or (known == self._context_length and len(steps) > 1):
            raise ContextLengthExceeded(
                f"the prompt has {known} tokens; this engine's context is {self._context_length}",
                param="prompt",
                hint=CONTEXT_HINT,
            )
        asked = request.prompt_logprobs
        if asked is not None and asked.start > len(first.ids):
            raise InvalidRequest(
                f"the log-probs of the prompt are asked for from token {asked.start} on, "
                f"and it has {len(first.ids)}",
                param="prompt_logprobs",
                hint="prompt_logprobs is the first position reported, and no number of alternatives",
            )
        prompt = np.array(first.ids, np.int64)
        return Job(
            request,
            steps,
            on_event,
            submitted,
            prompt,
            head=prompt[:SHARED_TOKENS].tobytes(),
        )

    def compile(self, missing: Uncompiled) -> Grammar:
        """Compile what a queued job waits for, in this thread. Raises as `prepare` does."""
        with _about(missing.segment):
            return self._compiler.compile(missing.spec, prefix=missing.prefix)

    def close(self) -> None:
        """End what runs beside this process for it."""
        self._compiler.close()

    def _check(self, request: Request) -> None:
        check_types(msgspec.structs.replace(request, segments=[]))
        if not 1 <= request.n <= MAX_SAMPLES:
            raise InvalidRequest(
                f"n must be between 1 and {MAX_SAMPLES}, not {request.n}", param="n"
            )
        if not 1 <= len(request.segments) <= MAX_SEGMENTS:
            raise InvalidRequest(
                f"a request has 1 to {MAX_SEGMENTS} segments, not {len(request.segments)}",
                param="segments",
            )
        for index, segment in enumerate(request.segments):
            with _about(index):
                self._check_segment(segment)
        asked = request.prompt_logprobs
        if asked and (asked.start < 0 or not 0 <= asked.top <= MAX_TOP_LOGPROBS):
            raise InvalidRequest(
                f"prompt log-probs start at 0 or later and have at most {MAX_TOP_LOGPROBS} alternatives",
                param="prompt_logprobs",
            )

    def _check_segment(self, segment: Segment) -> None:
        vocab = self._tokenizer.vocab_size
        if isinstance(segment, Text):
            check_types(segment)
            # Checked before tokenising: a text this long can't fit whatever its tokens are.
            if len(segment.text) > self._context_length * self._longest_token:
                raise ContextLengthExceeded(
                    f"the prompt has {len(segment.text)} characters, more than any prompt of "
                    f"{self._context_length} tokens",
                    param="prompt",
                )
        elif isinstance(segment, Tokens):
            if segment.ids and not 0 <= min(segment.ids) <= max(segment.ids) < vocab:
                token = next(token for token in segment.ids if not 0 <= token < vocab)
                raise InvalidRequest(
                    f"token id {token} is outside the vocabulary of {vocab}", param="input_ids"
                )
        elif isinstance(segment, Gen):
            check_types(msgspec.structs.replace(segment, sampling=_PLAIN))
            segment.sampling.validate(vocab)
            if segment.logprobs and not 0 <= segment.logprobs.top <= MAX_TOP_LOGPROBS:
                raise InvalidRequest(
                    f"at most {MAX_TOP_LOGPROBS} top log-probs can be reported",
                    param="top_logprobs",
                )
        else:
            self._check_select(segment)

    @staticmethod
    def _check_select(select: Select) -> None:
        check_types(select)
        select.validate()
        if not 1 <= len(select.choices) <= MAX_CHOICES:
            raise InvalidRequest(
                f"select takes 1 to {MAX_CHOICES} choices, not {len(select.choices)}",
                param="choices",
            )
        if "" in select.choices:
            raise InvalidRequest("a choice can't be the empty string", param="choices")
        if len(set(select.choices)) != len(select.choices):
            raise InvalidRequest("the same choice is listed twice", param="choices")

    def _steps(self, request: Request) -> list[Step]:
        steps: list[Step] = []
        ids: list[int] = []
        parts: list[tuple[str, bool]] = []
        fresh = True  # nothing stands before these parts
        index = 0
        for index, segment in enumerate(request.segments):
            if isinstance(segment, Text):
                parts.append((segment.text, segment.special))
                continue
            if parts:
                ids += self._encode(parts, at_start=fresh and not ids)
                parts = []
            if isinstance(segment, Tokens):
                ids += segment.ids
                continue
            # A whole sequence needs one known token to predict from; a block in the middle does not.
            keep = 1 if fresh else 0
            after_text = index > 0 and isinstance(request.segments[index - 1], Text)
            heal = segment.heal and after_text
            step: Step
            if isinstance(segment, Gen):
                with _about(index):
                    ids, step = self._gen(index, segment, ids, heal=heal, keep=keep)
            else:
                ids, choices = self._boundary.join_choices(
                    ids, segment.choices, heal=heal, keep=keep
                )
                step = SelectStep(index, segment, choices, _seed(segment.seed))
            if ids or fresh:
                steps.append(Known(ids))
            steps.append(step)
            ids, fresh = [], False
        if parts:
            ids += self._encode(parts, at_start=fresh and not ids)
        if ids or not steps:
            steps.append(Known(ids))
        return steps

    def _encode(self, parts: list[tuple[str, bool]], *, at_start: bool) -> list[int]:
        ids = self._tokenizer.encode_parts(parts, at_start=at_start)
        bos = self._tokenizer.bos_id
        if at_start and self._tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _gen(
        self, index: int, gen: Gen, ids: list[int], *, heal: bool, keep: int
    ) -> tuple[list[int], GenStep]:
        rest, healed = self._boundary.heal(ids, keep=keep) if heal else (ids, b"")
        # A generation of no tokens leaves the prompt whole; its grammar is prepared for one that has.
        ids, prefix = (ids, b"") if gen.sampling.max_tokens == 0 else (rest, healed)
        grammar = compiling = None
        if gen.grammar is not None:
            _check_minimum(gen.grammar, gen.sampling.min_tokens, prefix)
            grammar = self._compiler.compiled(gen.grammar, prefix=healed)
            if grammar is None:
                compiling = Uncompiled(index, gen.grammar, healed)
        first_mask = None
        if prefix and gen.grammar is None:
            first_mask = self._boundary.starting_with(prefix)
        step = GenStep(
            index,
            gen,
            grammar,
            tuple(StopRegex(pattern) for pattern in gen.sampling.stop_regex),
            _seed(gen.sampling.seed),
            prefix,
            first_mask,
            self._closing_table() if gen.grammar and gen.sampling.close_at_budget else None,
            compiling=compiling,
        )
        return ids, step

    def _closing_table(self) -> ClosingTable:
        if self._closing is None:
            self._closing = ClosingTable(self._compiler.vocabulary)
        return self._closing


def _check_minimum(spec: GrammarSpec, least: int, prefix: bytes) -> None:
    """Refuse a minimum of tokens that no text of a grammar can have: each token has a byte."""
    if least <= 0 or len(spec.text) > QUICKLY_READ:
        return
    longest = longest_text(spec)
    if longest is not None and longest + len(prefix) < least:
        raise InvalidRequest(
            f"min_tokens is {least}, and no text of the {spec.kind} has more than {longest} bytes",
            param="min_tokens",
            hint="a generation ends where its grammar ends",
        )


def _seed(given: int | None) -> int:
    return secrets.randbits(63) if given is None else given


def is_quick(request: Request) -> bool:
    """Whether preparing a request takes microseconds: nothing to tokenise, heal or compile."""
    return all(
        isinstance(segment, Tokens)
        or (
            isinstance(segment, Gen) and segment.grammar is None and not segment.sampling.stop_regex
        )
        for segment in request.segments
    )


@contextmanager
def _about(segment: int) -> Iterator[None]:
    """Errors raised inside say which segment they are about."""
    try:
        yield
    except StolonError as error:
        # A new one each time: a compiler may raise the same cached refusal for several requests.
        placed = type(error)(error.message, param=error.param, where=error.where, hint=error.hint)
        placed.segment = segment
        raise placed from error
