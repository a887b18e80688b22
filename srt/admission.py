"""From a request to what the loop can walk: validated, tokenised, grammars compiled. Runs off the loop.

A grammar that is not at hand is compiled after the request was queued: its prompt is computed meanwhile.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np

from stolon.constrained import ClosingTable, Grammar, GrammarCompiler, short_turns
from stolon.constrained.regular import longest_text
from stolon.errors import ContextLengthExceeded, InvalidRequest
from stolon.srt.boundary import Boundary
from stolon.srt.job import SHARED_TOKENS, GenStep, Job, Known, SelectStep, Step, Uncompiled
from stolon.srt.protocol import Event, Gen, GrammarSpec, Request, Text, Tokens
from stolon.srt.request_checks import RequestChecks, about_segment
from stolon.srt.stop_regex import StopRegex
from stolon.srt.tokenizer import Tokenizer

CONTEXT_HINT = (
    "shorten it; the limit is the smallest of context_length, kv_tokens and the model's own context"
)
QUICKLY_READ = 4096
"""Characters of a grammar whose longest text is worked out for a request that has a minimum."""


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
        self._checks = RequestChecks(tokenizer, context_length=context_length)
        self._closing: ClosingTable | None = None

    def prepare(self, request: Request, on_event: Callable[[Event], None], submitted: float) -> Job:
        """Raises a StolonError that names what is wrong with the request."""
        self._checks.check(request)
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
        with about_segment(missing.segment):
            return self._compiler.compile(missing.spec, prefix=missing.prefix)

    def close(self) -> None:
        """End what runs beside this process for it."""
        self._compiler.close()

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
                with about_segment(index):
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
