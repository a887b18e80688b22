"""The text of one generation: incremental decoding, stop conditions, and what may be streamed already."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stolon.srt.protocol import Finish, Sampling, TokenLogprob
from stolon.srt.stop_regex import StopRegex
from stolon.srt.tokenizer import Tokenizer
from stolon.srt.tokenizer.detok import IncrementalDecoder


@dataclass(slots=True)
class Piece:
    """Text that is certain and was not yet taken, with the tokens that end inside it."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None


class GenOutput:
    """Tokens and text of a running generation.

    Text is *certain* once it can't change any more: no incomplete UTF-8 at its end. It may be *released*
    once no stop condition can begin inside it. Invariant: what `take` returned so far is a prefix of the
    final text.

    Args:
        prefix: bytes that the first tokens repeat from the literal before them (token healing); they are
            not part of the text.
        streamed: pieces are taken while the text grows. Otherwise, unless a stop condition has to read
            it, tokens are only collected, and the text is decoded at the end: for `take` nothing is
            certain before.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        stop_regexes: Sequence[StopRegex],
        *,
        prefix: bytes = b"",
        logprobs: bool = False,
        streamed: bool = True,
    ) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = [] if logprobs else None
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._searches = [regex.search() for regex in stop_regexes]
        self._decoder = IncrementalDecoder(tokenizer, skip_special=sampling.skip_special_tokens)
        self._text = ""
        self._skip = len(prefix.decode("utf-8", "replace"))
        self._released = self._skip
        self._taken = self._skip
        self._taken_tokens = 0
        self._text_ends: list[
            int
        ] = []  # of each token; short while its last character is incomplete
        self._incremental = streamed or bool(sampling.stop or stop_regexes)

    @property
    def text(self) -> str:
        """All certain text so far, healed prefix left out."""
        return self._text[self._skip :]

    def push(self, token: int, logprob: TokenLogprob | None) -> Finish | None:
        """Append a token. Returns why the generation ends, if a stop string or regex now matches."""
        self.token_ids.append(token)
        if self.logprobs is not None and logprob is not None:
            self.logprobs.append(logprob)
        if not self._incremental:
            return None
        before = len(self._text)
        self._text += self._decoder.push(token)
        if not self._decoder.holding:
            self._end_tokens()
        return self._scan(before)

    def _end_tokens(self) -> None:
        """All bytes so far are decoded: tokens without an end yet end here."""
        missing = len(self.token_ids) - len(self._text_ends)
        self._text_ends.extend([len(self._text)] * missing)

    def _scan(self, before: int) -> Finish | None:
        """Look for a stop in text that became certain since `before`, and move the release point."""
        armed = len(self.token_ids) >= self._sampling.min_tokens
        found: tuple[int, int, str] | None = None
        hold = len(self._text)
        if armed:
            for stop in self._sampling.stop:
                at = self._text.find(stop, max(self._skip, before - len(stop) + 1))
                if at >= 0 and (found is None or at < found[0]):
                    found = (at, at + len(stop), stop)
        if self._sampling.stop:
            hold = self._partial_stop()
        for search in self._searches:
            match = search.feed(self._text, max(before, self._skip))
            if match and armed and (found is None or match[0] < found[0]):
                found = (*match, search.pattern)
            hold = min(hold, search.earliest_start(len(self._text)))
        if found is None:
            self._released = max(self._released, min(hold, len(self._text)))
            return None
        start, end, matched = found
        self._cut(end if self._sampling.include_stop else start)
        return Finish(kind="stop", matched=matched)

    def _partial_stop(self) -> int:
        """Where the longest suffix of the text that could still become a stop string begins."""
        text = self._text
        earliest = len(text)
        for stop in self._sampling.stop:
            at = text.find(stop[0], max(self._skip, len(text) - len(stop) + 1))
            while 0 <= at < earliest and not stop.startswith(text[at:]):
                at = text.find(stop[0], at + 1)
            if 0 <= at < earliest:
                earliest = at
        return earliest

    def _cut(self, at: int) -> None:
        """End the text at character `at`: drop the tokens beyond, re-encode only the part of a token.

        The dropped tokens were never anybody's prefix; what is kept stays as it was generated.
        """
        self._end_tokens()
        keep = bisect_right(self._text_ends, at)
        remainder = self._text[self._text_ends[keep - 1] if keep else 0 : at]
        self._text = self._text[:at]
        del self.token_ids[keep:], self._text_ends[keep:]
        if self.logprobs is not None:
            del self.logprobs[keep:]
        if remainder:
            extra = self._tokenizer.encode(remainder)
            self.token_ids.extend(extra)
            if self.logprobs is not None:
                self.logprobs.extend(TokenLogprob(token, None) for token in extra)
        self._end_tokens()
        self._released = len(self._text)

    def finish(self, finish: Finish) -> Finish:
        """No token follows: everything is released.

        Incomplete UTF-8 at the end becomes U+FFFD, unless a stop cut the text; that may itself complete
        a stop, so the reason for the end is returned.
        """
        if not self._incremental:
            skip_special = self._sampling.skip_special_tokens
            self._text = self._tokenizer.decode(self.token_ids, skip_special=skip_special)
            self._end_tokens()
        elif not (finish.kind == "stop" and isinstance(finish.matched, str)):
            before = len(self._text)
            self._text += self._decoder.flush()
            self._end_tokens()
            if len(self._text) > before:
                finish = self._scan(before) or finish
        self._released = max(len(self._text), self._skip)
        return finish

    def take(self) -> Piece | None:
        """Released text not taken yet, with the tokens that end in it; None if there is none."""
        last = bisect_right(self._text_ends, self._released)
        if self._released <= self._taken and last <= self._taken_tokens:
            return None
        text = self._text[self._taken : self._released]
        self._taken = max(self._taken, self._released)
        first, self._taken_tokens = self._taken_tokens, max(last, self._taken_tokens)
        return Piece(
            text,
            self.token_ids[first : self._taken_tokens],
            None if self.logprobs is None else self.logprobs[first : self._taken_tokens],
        )
