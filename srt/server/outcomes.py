"""The finished samples of a request, gathered from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stolon.errors import Aborted, InternalError
from stolon.srt.protocol import Event, GenResult, PromptDone, Request, SampleDone, SegmentDone


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: its generation, and where its tokens came from."""

    result: GenResult
    done: SampleDone

    @property
    def prompt_ids(self) -> list[int]:
        return self.done.token_ids[: self.done.prompt_tokens]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One engine request: its samples by index, and its prompt's log-probs if asked for."""

    samples: list[Sample]
    prompt: PromptDone | None


class Gathering:
    """Collects the events of `requests`, each of which ends with one Gen."""

    def __init__(self, requests: list[Request]) -> None:
        self._requests = requests
        self._results: dict[tuple[int, int], GenResult] = {}
        self._done: dict[tuple[int, int], SampleDone] = {}
        self._prompts: dict[int, PromptDone] = {}

    def add(self, events: Iterable[tuple[int, Event]]) -> None:
        for index, event in events:
            match event:
                case SegmentDone(result=GenResult() as result):
                    self._results[index, event.sample] = result
                case SampleDone():
                    self._done[index, event.sample] = event
                case PromptDone():
                    self._prompts[index] = event

    def outcomes(self) -> list[Outcome]:
        """Everything, in the order of the requests.

        Raises InternalError if the engine left a sample out.
        """
        try:
            return [
                Outcome(
                    [
                        Sample(self._results[index, sample], self._done[index, sample])
                        for sample in range(request.n)
                    ],
                    self._prompts.get(index),
                )
                for index, request in enumerate(self._requests)
            ]
        except KeyError:
            raise InternalError("the engine ended a request without all of its samples") from None


def openai_finish(result: GenResult) -> str:
    """`stop` or `length`. Raises Aborted: OpenAI's enum has no word for a cancelled sample."""
    if result.finish.kind == "abort":
        raise Aborted("the generation was cancelled")
    return result.finish.kind


class TokenCount:
    """The usage object of OpenAI, summed over samples.

    A prompt counts once, however many samples it has.
    """

    def __init__(self) -> None:
        self.prompt = 0
        self.cached = 0
        self.completion = 0
        self._prompts: set[int] = set()

    def add_result(self, result: GenResult) -> None:
        self.completion += result.usage.completion_tokens

    def add_done(self, index: int, done: SampleDone) -> None:
        if index not in self._prompts:
            self._prompts.add(index)
            self.prompt += done.prompt_tokens
            self.cached += done.cached_tokens

    def add(self, index: int, sample: Sample) -> None:
        self.add_result(sample.result)
        self.add_done(index, sample.done)

    def json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
