"""The results of `Engine.generate`, gathered from events."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from stolon.srt.protocol import (
    Event,
    Failed,
    Finish,
    GenResult,
    PromptDone,
    SampleDone,
    SegmentDone,
    TokenLogprob,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One generated sample.

    Attributes:
        text: the text, without stop strings.
        token_ids: its tokens.
        prompt_token_ids: tokens of the prompt.
        finish: why it ended.
        usage: where its tokens came from.
        logprobs: one entry per token, if asked for.
        prompt_logprobs: one entry per prompt token, if asked for.
        weights_version: of the weights that computed it.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish: Finish
    usage: Usage
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    weights_version: str = "0"


class Collector:
    """Gathers the events of a one-generation request into a future of its Outputs, one per sample.

    Called from the engine's thread; wait on `future` from any other.
    """

    def __init__(self, samples: int, *, weights_version: str) -> None:
        self.future: Future[list[Output]] = Future()
        self._open = samples
        self._version = weights_version
        self._results: dict[int, GenResult] = {}
        self._prompts: dict[int, list[int]] = {}
        self._prompt_logprobs: list[TokenLogprob] | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Failed):
            if not self.future.done():
                self.future.set_exception(event.error())
        elif isinstance(event, PromptDone):
            self._prompt_logprobs = event.logprobs
        elif isinstance(event, SegmentDone) and isinstance(event.result, GenResult):
            self._results[event.sample] = event.result
        elif isinstance(event, SampleDone):
            self._prompts[event.sample] = event.token_ids[: event.prompt_tokens]
            self._open -= 1
            if not self._open and not self.future.done():
                self.future.set_result([self._output(i) for i in sorted(self._prompts)])

    def _output(self, sample: int) -> Output:
        result = self._results[sample]
        return Output(
            text=result.text,
            token_ids=result.token_ids,
            prompt_token_ids=self._prompts[sample],
            finish=result.finish,
            usage=result.usage,
            logprobs=result.logprobs,
            prompt_logprobs=self._prompt_logprobs,
            weights_version=self._version,
        )


def shaped(
    answers: list[list[Output]], *, several: bool, lists: bool
) -> Output | list[Output] | list[list[Output]]:
    """The samples of each prompt in the shape of the question: `several` prompts, `lists` of samples."""
    if several:
        return answers if lists else [samples[0] for samples in answers]
    return answers[0] if lists else answers[0][0]
