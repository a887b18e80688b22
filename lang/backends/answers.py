"""What a server answers for one sample, put together from one piece or from many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stolon.errors import BackendError
from stolon.lang.backends.transcript import TranscriptTokenizer
from stolon.srt.protocol import Finish, GenResult, LogprobSpec, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class ReportedToken:
    """A generated token as the server reports it: its bytes, log-prob, and alternatives, best first."""

    data: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens by the server's count."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0


MAX_CHARS = 8 << 20
NO_COUNTS = Counts()
_STOPPED = Finish(kind="stop")


def incomplete(server: str, lacks: str) -> BackendError:
    """The error of what came as an answer, and is no completion or not all of one."""
    return BackendError(
        f"{server} sent an answer without {lacks}",
        hint="is the address right, and does the server speak this API?",
    )


def total(answers: Sequence[Answer]) -> Counts:
    """What a call for these answers has used: its prompt counts once."""
    first = answers[0].counts
    return Counts(
        prompt=first.prompt,
        completion=sum(answer.counts.completion for answer in answers),
        cached=first.cached,
    )


@dataclass(slots=True)
class Answer:
    """The answer for one sample so far.

    Attributes:
        tokens: as reported; the last ones may lie beyond the text, which ends before a stop.
        ended: whether the server said why it ended.
        counts: of the call; the prompt counts for the first sample alone.
    """

    text: str = ""
    tokens: list[ReportedToken] = field(default_factory=list)
    finish: Finish = _STOPPED
    ended: bool = False
    counts: Counts = NO_COUNTS
    _covered: int = 0
    _covered_bytes: int = 0

    def add(self, text: str, tokens: Iterable[ReportedToken] = ()) -> None:
        """Append what came. Raises BackendError for a server that does not come to an end."""
        self.text += text
        self.tokens += tokens
        if len(self.text) > MAX_CHARS or len(self.tokens) > MAX_CHARS:
            raise BackendError(f"a server sent more than {MAX_CHARS:,} characters for one answer")

    def covered(self) -> int:
        """How many of the tokens lie within the text."""
        data = self.text.encode()
        while self._covered < len(self.tokens):
            token = self.tokens[self._covered].data
            end = self._covered_bytes + len(token)
            if not token or data[self._covered_bytes : end] != token:
                break
            self._covered += 1
            self._covered_bytes = end
        return self._covered

    def check_logprobs(self, spec: LogprobSpec | None, server: str) -> None:
        """Raise BackendError if log-probs were asked for and none came. No text has none."""
        if spec is None or not self.text:
            return
        if all(token.logprob is None for token in self.tokens):
            raise BackendError(
                f"{server} sent a text without the log-probs that were asked for",
                param="return_logprob",
                hint="leave return_logprob out for this server",
            )
        if spec.top and not any(token.top for token in self.tokens):
            raise BackendError(
                f"{server} sent log-probs without the alternatives that were asked for",
                param="top_logprobs_num",
                hint="leave top_logprobs_num out for this server",
            )

    def logprobs(
        self, tokenizer: TranscriptTokenizer, spec: LogprobSpec, start: int, end: int
    ) -> list[TokenLogprob]:
        """Of the tokens from `start` to `end`."""
        return [
            TokenLogprob(
                tokenizer.piece(token.data),
                token.logprob,
                [(tokenizer.piece(other), value) for other, value in token.top[: spec.top]],
            )
            for token in self.tokens[start:end]
        ]

    def result(self, tokenizer: TranscriptTokenizer, spec: LogprobSpec | None) -> GenResult:
        count = self.covered()
        within = [token.data for token in self.tokens[:count]]
        rest = self.text.encode()[self._covered_bytes :]
        return GenResult(
            text=self.text,
            token_ids=[*map(tokenizer.piece, within), *rest],
            finish=self.finish,
            usage=Usage(
                prompt_tokens=self.counts.prompt,
                cached_tokens=self.counts.cached,
                computed_tokens=self.counts.prompt - self.counts.cached,
                sampled_tokens=self.counts.completion,
            ),
            logprobs=None if spec is None else self.logprobs(tokenizer, spec, 0, count),
        )
