"""What a request must keep to before any of it is tokenised: its types, its limits, its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from stolon.errors import ContextLengthExceeded, InvalidRequest, StolonError
from stolon.srt.protocol import (
    MAX_CHOICES,
    MAX_SAMPLES,
    MAX_SEGMENTS,
    MAX_TOP_LOGPROBS,
    Gen,
    Request,
    Sampling,
    Segment,
    Select,
    Text,
    Tokens,
    check_types,
)
from stolon.srt.tokenizer import Tokenizer

_PLAIN = Sampling()


class RequestChecks:
    """The checks of one engine.

    Args:
        tokenizer: of the served model.
        context_length: the longest sequence the engine accepts, in tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, context_length: int) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._context_length = context_length
        self._longest_token = max(len(data) for data in tokenizer.token_bytes)

    def check(self, request: Request) -> None:
        """Raises a StolonError that names the field, and the segment if it is about one."""
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
            with about_segment(index):
                self._check_segment(segment)
        asked = request.prompt_logprobs
        if asked and (asked.start < 0 or not 0 <= asked.top <= MAX_TOP_LOGPROBS):
            raise InvalidRequest(
                f"prompt log-probs start at 0 or later and have at most {MAX_TOP_LOGPROBS} alternatives",
                param="prompt_logprobs",
            )

    def _check_segment(self, segment: Segment) -> None:
        vocab = self._vocab_size
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
            if not isinstance(segment.ids, list) or not set(map(type, segment.ids)) <= {int}:
                raise InvalidRequest("token ids must be a list of integers", param="input_ids")
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
            _check_select(segment)


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


@contextmanager
def about_segment(segment: int) -> Iterator[None]:
    """Errors raised inside say which segment they are about."""
    try:
        yield
    except StolonError as error:
        # A new one each time: a compiler may raise the same cached refusal for several requests.
        placed = type(error)(error.message, param=error.param, where=error.where, hint=error.hint)
        placed.segment = segment
        raise placed from error
