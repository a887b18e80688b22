"""The text of one generation: incremental decoding, stop conditions, and what may be streamed already."""

from __future__ import annotations

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
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        stop_regexes: Sequence[StopRegex],
        *,
        prefix: bytes = b"",
        logprobs: bool = False,
    ) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = [] if logprobs else None
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._searches = [regex.search() for regex in stop_regexes]
        self._decoder = IncrementalDecoder(tokenizer, skip_special=sampling.skip_special_tokens)
        self._text = ""
        self._skip = len(prefix.decode("utf-8", "replace"))
        self._byte_ends: list[int] = []
        self._bytes = 0
        self._released = self._skip
        self._taken = self._skip
        self._taken_tokens = 0
        self._text_ends: list[int] = []
        self._longest_stop = max((len(stop) for stop in sampling.stop), default=0)

    @property
    def text(self) -> str:
        """All certain text so far, healed prefix left out."""
        return self._text[self._skip :]

    def push(self, token: int, logprob: TokenLogprob | None) -> Finish | None:
        """Append a token. Returns why the generation ends, if a stop string or regex now matches."""
        self.token_ids.append(token)
        if self.logprobs is not None and logprob is not None:
            self.logprobs.append(logprob)
        special = token in self._tokenizer.special_ids
        if not (special and self._sampling.skip_special_tokens):
            self._bytes += len(self._tokenizer.token_bytes[token])
        self._byte_ends.append(self._bytes)
        before = len(self._text)
        self._text += self._decoder.push(token)
        self._text_ends.append(len(self._text))
        armed = len(self.token_ids) >= self._sampling.min_tokens
        return self._scan(before, armed)

    def _scan(self, before: int, armed: bool) -> Finish | None:
        """Look for a stop in text that became certain since `before`, and move the release point."""
        found: tuple[int, int, str] | None = None
        hold = len(self._text)
        if armed and self._longest_stop:
            start = max(self._skip, before - self._longest_stop + 1)
            for stop in self._sampling.stop:
                at = self._text.find(stop, start)
                if at >= 0 and (found is None or at < found[0]):
                    found = (at, at + len(stop), stop)
        if self._longest_stop:
            hold = min(hold, self._partial_stop())
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
        for length in range(min(self._longest_stop - 1, len(text) - self._skip), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._sampling.stop):
                return len(text) - length
        return len(text)

    def _cut(self, at: int) -> None:
        """End the text at character `at`: drop the tokens beyond, re-encode only the part of a token.

        The dropped tokens were never anybody's prefix; what is kept stays as it was generated.
        """
        byte_at = len(self._text[:at].encode("utf-8", "surrogatepass"))
        keep = 0
        while keep < len(self._byte_ends) and self._byte_ends[keep] <= byte_at:
            keep += 1
        kept_bytes = self._byte_ends[keep - 1] if keep else 0
        remainder = self._text[:at].encode("utf-8", "surrogatepass")[kept_bytes:byte_at]
        self._text = self._text[:at]
        del self.token_ids[keep:]
        if self.logprobs is not None:
            del self.logprobs[keep:]
        del self._byte_ends[keep:]
        self._text_ends = [min(end, at) for end in self._text_ends[:keep]]
        if remainder:
            extra = self._tokenizer.encode(remainder.decode("utf-8", "replace"))
            self.token_ids.extend(extra)
            self._text_ends.extend([at] * len(extra))
            if self.logprobs is not None:
                self.logprobs.extend(TokenLogprob(token, None) for token in extra)
        self._released = len(self._text)

    def finish(self, *, cut: bool) -> None:
        """No token follows: everything is released. Unless a stop cut the text, incomplete UTF-8 at its
        end becomes U+FFFD."""
        if not cut:
            self._text += self._decoder.flush()
            if self._text_ends:
                self._text_ends[-1] = len(self._text)
        self._released = max(len(self._text), self._skip)

    def take(self) -> Piece | None:
        """Released text not taken yet, with its tokens; None if there is none."""
        if self._released <= self._taken and not (
            self._taken_tokens < len(self.token_ids)
            and self._text_ends[self._taken_tokens] <= self._released
        ):
            return None
        text = self._text[self._taken : self._released]
        self._taken = max(self._taken, self._released)
        first = self._taken_tokens
        last = first
        while last < len(self.token_ids) and self._text_ends[last] <= self._taken:
            last += 1
        self._taken_tokens = last
        return Piece(
            text,
            self.token_ids[first:last],
            None if self.logprobs is None else self.logprobs[first:last],
        )
