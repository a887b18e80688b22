"""An engine without a model: it walks the blocks of a program and answers from a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from queue import SimpleQueue

from support.byte_tokenizer import ByteTokenizer

from stolon.errors import EngineClosed, InternalError, StolonError
from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.protocol import (
    ChoiceScore,
    Delta,
    Event,
    Failed,
    Finish,
    FinishKind,
    Gen,
    GenResult,
    PromptDone,
    Request,
    SampleDone,
    SegmentDone,
    Select,
    SelectResult,
    Text,
    TokenLogprob,
    Tokens,
    Usage,
)
from stolon.srt.tokenizer import ChatTemplate

Answer = str | list[str] | Callable[[str, Gen], str] | StolonError
CHUNK = 3
"""Characters per Delta."""


@dataclass(eq=False)
class Received:
    """A request and what became of it."""

    request: Request
    prompt: str = ""
    aborted: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def segments(self) -> list[Text | Tokens | Gen | Select]:
        return self.request.segments

    @property
    def names(self) -> list[str | None]:
        return [s.name for s in self.segments if isinstance(s, Gen | Select)]


class FakeEngine:
    """Implements EngineClient.

    Args:
        answers: by variable name: a text; a list with one text per sample; a function of (text
            before, segment); an error that fails the request there. Selections take the choice of
            that text, or their first one.
        default: answer of generations without one.
        delay: seconds before every answer.
        together: answer nothing before this many requests are in flight at once; fails after a
            second.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer] | None = None,
        *,
        default: Answer = "ok",
        delay: float = 0.0,
        together: int = 0,
        chat_template: ChatTemplate | None = None,
        add_bos: bool = False,
    ) -> None:
        self.answers = dict(answers or {})
        self.default = default
        self.delay = delay
        self.together = together
        self.tokenizer = ByteTokenizer(add_bos=add_bos)
        self.chat_template = chat_template
        self.info = ModelInfo(
            name="fake",
            architecture="fake",
            vocab_size=self.tokenizer.vocab_size,
            context_length=1 << 20,
            kv_slots=1 << 20,
            dtype="float32",
            parameters=0,
        )
        self.received: list[Received] = []
        self.flushes = 0
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self._queue: SimpleQueue[tuple[Received, Callable[[Event], None]] | None] = SimpleQueue()
        self._arrived = threading.Condition()
        threading.Thread(target=self._main, name="fake-engine", daemon=True).start()

    # -- EngineClient ----------------------------------------------------------------------------

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        if self.closed:
            raise EngineClosed("the engine is closed")
        entry = Received(request)
        with self._arrived:
            self.received.append(entry)
            self._arrived.notify_all()
        self._queue.put((entry, on_event))

    def abort(self, rid: str) -> None:
        for entry in self.received:
            if entry.request.rid == rid:
                entry.aborted.set()

    def stats(self) -> EngineStats:
        return EngineStats(requests=len(self.received))

    def flush_cache(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.closed = True
        self._queue.put(None)

    # -- for tests -------------------------------------------------------------------------------

    @property
    def requests(self) -> list[Request]:
        return [entry.request for entry in self.received]

    def received_by(self, name: str) -> Received:
        """The request that asks for a variable."""
        return next(entry for entry in self.received if name in entry.names)

    def gen(self, name: str) -> Gen:
        """The first Gen segment of that name."""
        return next(
            s
            for entry in self.received
            for s in entry.segments
            if isinstance(s, Gen) and s.name == name
        )

    # -- the walk --------------------------------------------------------------------------------

    def _main(self) -> None:
        while (job := self._queue.get()) is not None:
            entry, on_event = job
            try:
                self.gate.wait()
                self._meet()
                self._walk(entry, on_event)
            except StolonError as error:
                on_event(Failed.of(entry.request.rid, error))
            except Exception as error:
                on_event(Failed.of(entry.request.rid, InternalError(repr(error))))
            finally:
                entry.ended.set()

    def _meet(self) -> None:
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.received) >= self.together, 1.0):
                raise InternalError(f"only {len(self.received)} requests in flight")

    def _walk(self, entry: Received, on_event: Callable[[Event], None]) -> None:
        request = entry.request
        for sample in range(request.n):
            ids: list[int] = []
            parts: list[tuple[str, bool]] = []

            def literals(ids: list[int] = ids, parts: list[tuple[str, bool]] = parts) -> int:
                if not ids and self.tokenizer.add_bos and self.tokenizer.bos_id is not None:
                    ids.append(self.tokenizer.bos_id)
                new = self.tokenizer.encode_parts(parts)
                ids += new
                parts.clear()
                return len(new)

            for index, segment in enumerate(request.segments):
                if isinstance(segment, Text):
                    parts.append((segment.text, segment.special))
                    continue
                if isinstance(segment, Tokens):
                    ids += segment.ids
                    continue
                computed = literals()
                before = self.tokenizer.decode(ids, skip_special=False)
                entry.prompt = entry.prompt or before
                asked = request.prompt_logprobs
                if asked is not None and index == len(_leading(request)) and sample == 0:
                    scored = [TokenLogprob(i, -0.25 if at else None) for at, i in enumerate(ids)]
                    on_event(
                        PromptDone(rid=request.rid, token_ids=ids, logprobs=scored[asked.start :])
                    )
                self._pause(entry)
                usage = Usage(prompt_tokens=len(ids), computed_tokens=computed)
                result: GenResult | SelectResult
                if isinstance(segment, Select):
                    result = self._select(segment, usage, before)
                else:
                    result = self._generate(segment, usage, before, sample)
                    if request.stream:
                        self._deltas(request, sample, index, result, on_event)
                ids += result.token_ids
                on_event(SegmentDone(rid=request.rid, sample=sample, segment=index, result=result))
            literals()
            on_event(
                SampleDone(
                    rid=request.rid,
                    sample=sample,
                    token_ids=ids,
                    prompt_tokens=0,
                    cached_tokens=0,
                )
            )

    def _pause(self, entry: Received) -> None:
        if self.delay and entry.aborted.wait(self.delay):
            raise InternalError("aborted")
        if self.delay == 0.0:
            time.sleep(0)

    def _text(self, segment: Gen | Select, before: str, sample: int) -> str:
        answer = self.answers.get(segment.name or "", self.default)
        if isinstance(answer, StolonError):
            raise answer
        if isinstance(answer, list):
            return answer[sample % len(answer)]
        if isinstance(answer, str):
            return answer
        if isinstance(segment, Select):
            return segment.choices[0]
        return answer(before, segment)

    def _generate(self, segment: Gen, usage: Usage, before: str, sample: int) -> GenResult:
        text = self._text(segment, before, sample)
        kind: FinishKind = "stop"
        matched = None
        for stop in segment.sampling.stop:
            if stop in text:
                text = text[: text.index(stop)]
                matched = stop
        ids = self.tokenizer.encode(text)
        limit = segment.sampling.max_tokens
        if limit is not None and len(ids) > limit:
            ids, kind, matched = ids[:limit], "length", None
            text = self.tokenizer.decode(ids)
        logprobs = None
        if segment.logprobs is not None:
            top = segment.logprobs.top
            logprobs = [TokenLogprob(i, -0.5, [(i, -0.5)][:top]) for i in ids]
        return GenResult(
            text=text,
            token_ids=ids,
            finish=Finish(kind=kind, matched=matched),
            usage=Usage(
                prompt_tokens=usage.prompt_tokens,
                computed_tokens=usage.computed_tokens,
                sampled_tokens=len(ids),
            ),
            logprobs=logprobs,
        )

    def _select(self, segment: Select, usage: Usage, before: str) -> SelectResult:
        wanted = self._text(segment, before, 0)
        index = segment.choices.index(wanted) if wanted in segment.choices else 0
        scores = []
        for place, choice in enumerate(segment.choices):
            ids = self.tokenizer.encode(choice)
            each = -0.25 if place == index else -1.0
            scores.append(
                ChoiceScore(
                    text=choice,
                    token_ids=ids,
                    token_logprobs=[each] * len(ids),
                    logprob=each * len(ids),
                    normalized=each,
                )
            )
        return SelectResult(
            text=segment.choices[index],
            index=index,
            token_ids=scores[index].token_ids,
            scores=scores,
            usage=usage,
        )

    def _deltas(
        self,
        request: Request,
        sample: int,
        index: int,
        result: GenResult,
        on_event: Callable[[Event], None],
    ) -> None:
        """Pieces of CHUNK tokens; a character that a cut splits waits for its last token."""
        sent = 0
        at = 0
        while at < len(result.token_ids):
            end = min(at + CHUNK, len(result.token_ids))
            text = self.tokenizer.decode_bytes(result.token_ids[:end]).decode("utf-8", "ignore")
            on_event(
                Delta(
                    rid=request.rid,
                    sample=sample,
                    segment=index,
                    text=text[sent:],
                    token_ids=result.token_ids[at:end],
                    logprobs=None if result.logprobs is None else result.logprobs[at:end],
                )
            )
            sent = len(text)
            at = end


def _leading(request: Request) -> list[Text | Tokens]:
    """The segments before the first generation or selection."""
    return list(takewhile(lambda s: isinstance(s, Text | Tokens), request.segments))


def tiny_chat_template(default_system: str = "") -> ChatTemplate:
    """ChatML over the byte tokenizer's special tokens, with a default system prompt if given."""
    default = ""
    if default_system:
        content = json.dumps(default_system)
        default = (
            "{%- if messages[0]['role'] != 'system' -%}"
            "{{ '<|im_start|>system\\n' + " + content + " + '<|im_end|>\\n' }}{%- endif -%}"
        )
    body = (
        "{%- for m in messages -%}"
        "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
    )
    return ChatTemplate(default + body, special_tokens=["<|im_start|>", "<|im_end|>", "<|bos|>"])
