"""Whether what a server says of a block can be true. A server is not trusted to keep the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from stolon.errors import BackendError
from stolon.srt.client import ModelInfo
from stolon.srt.protocol import (
    Delta,
    Event,
    Gen,
    GenResult,
    PromptDone,
    Request,
    SampleDone,
    SegmentDone,
    Select,
    SelectResult,
)

_TOKEN_BYTES = 512  # of JSON for one token in all places of an answer, generously
_TOP_BYTES = 64
_SLACK_BYTES = 8 << 20


class WalkCheck:
    """Follows the events of one request. Every rejection is a BackendError that names the server.

    Attributes:
        finished: every sample has walked its block.
    """

    def __init__(self, request: Request, info: ModelInfo, *, server: str) -> None:
        self.finished = False
        self._request = request
        self._server = server
        self._vocab_size = info.vocab_size
        self._context = info.context_length
        self._expected = {
            index
            for index, segment in enumerate(request.segments)
            if isinstance(segment, Gen | Select)
        }
        self._missing = {sample: set(self._expected) for sample in range(request.n)}
        self._bytes = _SLACK_BYTES + self._most_bytes()

    async def counted(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same chunks, as long as they are not more than any true answer has."""
        async for chunk in chunks:
            self._bytes -= len(chunk)
            if self._bytes < 0:
                raise BackendError(
                    f"{self._server} sends more than this request can have as answer"
                )
            yield chunk

    def take(self, event: Event, *, rid: str) -> None:
        """Look at the next event of the answer to the request that was sent as `rid`."""
        if event.rid != rid:
            raise self._wrong("an event of another request")
        match event:
            case PromptDone(token_ids=ids):
                if self._request.prompt_logprobs is None:
                    raise self._wrong("log-probs that were not asked for")
                self._check_ids(ids)
            case Delta(sample=sample, segment=segment):
                self._check_open(sample, segment, Gen)
                self._check_ids(event.token_ids)
            case SegmentDone(sample=sample, segment=segment, result=result):
                self._check_open(sample, segment, Gen if isinstance(result, GenResult) else Select)
                self._check_ids(result.token_ids)
                if isinstance(result, SelectResult):
                    self._check_choices(segment, result)
                elif self._lacks_logprobs(segment, result):
                    raise self._wrong("a generation without the log-probs it was asked for")
                self._missing[sample].remove(segment)
            case SampleDone(sample=sample):
                if self._missing.get(sample, True):
                    raise self._wrong("the end of a sample that is not at its end")
                self._check_ids(event.token_ids)
                del self._missing[sample]
                self.finished = not self._missing
            case _:
                raise self._wrong("an event that belongs nowhere")

    def _check_open(self, sample: int, segment: int, kind: type[Gen] | type[Select]) -> None:
        if segment not in self._missing.get(sample, ()) or not isinstance(
            self._request.segments[segment], kind
        ):
            raise self._wrong("an event about a place where nothing is open")

    def _check_ids(self, ids: Sequence[int]) -> None:
        if len(ids) > self._context + 1 or (
            ids and not 0 <= min(ids) <= max(ids) < self._vocab_size
        ):
            raise self._wrong("tokens that its model does not have")

    def _check_choices(self, segment: int, result: SelectResult) -> None:
        select = self._request.segments[segment]
        assert isinstance(select, Select)
        same = [score.text for score in result.scores] == list(select.choices)
        if not same or not 0 <= result.index < len(select.choices):
            raise self._wrong("scores of other choices")
        if result.text != select.choices[result.index]:
            raise self._wrong("a choice that was not one")

    def _lacks_logprobs(self, segment: int, result: GenResult) -> bool:
        gen = self._request.segments[segment]
        assert isinstance(gen, Gen)
        return gen.logprobs is not None and result.logprobs is None

    def _most_bytes(self) -> int:
        """An upper bound of the JSON of a true answer."""
        asked = self._request.prompt_logprobs
        tops = 1 + (asked.top if asked else 0)
        choices = 0
        for segment in self._request.segments:
            if isinstance(segment, Gen) and segment.logprobs is not None:
                tops += segment.logprobs.top
            elif isinstance(segment, Select):
                choices += sum(len(choice) + 8 for choice in segment.choices)
        sample = self._context * (_TOKEN_BYTES + tops * _TOP_BYTES) + choices * _TOKEN_BYTES
        return self._request.n * sample

    def _wrong(self, what: str) -> BackendError:
        return BackendError(f"{self._server} does not keep to the protocol: it sent {what}")
