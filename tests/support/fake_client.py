"""An EngineClient with a scripted answer: bytes for tokens, no model."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from stolon.errors import ContextLengthExceeded, EngineClosed, GrammarError
from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.protocol import (
    Delta,
    Event,
    Failed,
    Finish,
    Gen,
    GenResult,
    PromptDone,
    Request,
    SampleDone,
    SegmentDone,
    Text,
    TokenLogprob,
    Tokens,
    Usage,
)
from stolon.srt.tokenizer import ChatTemplate, Tokenizer

SPECIALS = ("<|im_start|>", "<|im_end|>")


class ByteTokenizer(Tokenizer):
    """Token i < 256 is the byte i; the special tokens follow. No BOS."""

    def __init__(self) -> None:
        self.token_bytes = [bytes([i]) for i in range(256)] + [s.encode() for s in SPECIALS]
        self.vocab_size = len(self.token_bytes)
        self.special_tokens = {text: 256 + i for i, text in enumerate(SPECIALS)}
        self.special_ids = frozenset(self.special_tokens.values())
        self.bos_id = None
        self.eos_ids = frozenset({257})
        self.add_bos = False
        self.fingerprint = "bytes"

    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], *, at_start: bool = False
    ) -> list[int]:
        ids: list[int] = []
        for text, special in parts:
            while text:
                found = next((s for s in SPECIALS if special and text.startswith(s)), None)
                ids += [self.special_tokens[found]] if found else list(text[0].encode())
                text = text[len(found) :] if found else text[1:]
        return ids


class FakeClient:
    """Answers every generation with `reply`, sample k > 0 with `reply` and k appended.

    Attributes:
        gate: while it is clear, a generation stops after its first character; set by default.
        start: while it is clear, a generation does not begin; set by default.
        requests, aborted: what was asked so far.
        dead: makes every call raise EngineClosed.
    """

    def __init__(
        self,
        reply: str = "Hello!",
        *,
        context_length: int = 4096,
        chat_template: ChatTemplate | None = None,
        delay: float = 0.0,
    ) -> None:
        self.reply = reply
        self.delay = delay
        self.tokenizer = ByteTokenizer()
        self.chat_template = chat_template
        self.info = ModelInfo(
            name="/secret/place/fake.gguf",
            architecture="fake",
            vocab_size=self.tokenizer.vocab_size,
            context_length=context_length,
            kv_slots=1000,
            dtype="float32",
            parameters=1,
        )
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.flushed = 0
        self.dead = False
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.start = threading.Event()
        self.start.set()
        self.counts = EngineStats(kv_slots=1000)
        self._pool = ThreadPoolExecutor(max_workers=8)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        if self.dead:
            raise EngineClosed("dead at /secret/place")
        self.requests.append(request)
        self._pool.submit(self._run, request, on_event)

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    def stats(self) -> EngineStats:
        if self.dead:
            raise EngineClosed("dead at /secret/place")
        return self.counts

    def flush_cache(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed = True
        self.start.set()
        self.gate.set()
        self._pool.shutdown(wait=True)

    def _run(self, request: Request, on_event: Callable[[Event], None]) -> None:
        self.start.wait(10)
        try:
            for event in self._events(request):
                if request.rid in self.aborted:
                    return
                on_event(event)
        except (ContextLengthExceeded, GrammarError) as error:
            on_event(Failed.of(request.rid, error))

    def _events(self, request: Request) -> Iterator[Event]:
        prompt = self._prompt(request)
        if len(prompt) > self.info.context_length:
            raise ContextLengthExceeded(f"the prompt has {len(prompt)} tokens", param="prompt")
        gen = request.segments[-1]
        assert isinstance(gen, Gen)
        if gen.grammar is not None and gen.grammar.text == "(":
            raise GrammarError("the pattern has an open group", where="offset 0")
        if request.prompt_logprobs is not None:
            entries = [self._logprob(token, request.prompt_logprobs.top) for token in prompt]
            if request.prompt_logprobs.start == 0 and entries:
                entries[0] = TokenLogprob(prompt[0], None)
            yield PromptDone(
                rid=request.rid, token_ids=prompt, logprobs=entries[request.prompt_logprobs.start :]
            )
        for sample in range(request.n):
            yield from self._sample(request, sample, gen, prompt)

    def _sample(
        self, request: Request, sample: int, gen: Gen, prompt: list[int]
    ) -> Iterator[Event]:
        text, finish = self.reply + (str(sample) if sample else ""), Finish(kind="stop")
        for stop in gen.sampling.stop:
            if stop in text:
                text, finish = text[: text.index(stop)], Finish(kind="stop", matched=stop)
        limit = gen.sampling.max_tokens
        if limit is not None and len(text.encode()) > limit:
            text, finish = text.encode()[:limit].decode("utf-8", "ignore"), Finish(kind="length")
        at = len(request.segments) - 1
        for i, char in enumerate(text):
            if i == 1:
                self.gate.wait(10)
            time.sleep(self.delay)
            if request.stream:
                yield Delta(
                    rid=request.rid,
                    sample=sample,
                    segment=at,
                    text=char,
                    token_ids=list(char.encode()),
                    logprobs=self._logprobs(char, gen),
                )
        ids = list(text.encode())
        result = GenResult(
            text=text,
            token_ids=ids,
            finish=finish,
            usage=Usage(
                prompt_tokens=len(prompt), sampled_tokens=len(ids), queue_time=0.1, decode_time=0.2
            ),
            logprobs=self._logprobs(text, gen),
        )
        yield SegmentDone(rid=request.rid, sample=sample, segment=at, result=result)
        yield SampleDone(
            rid=request.rid,
            sample=sample,
            token_ids=prompt + ids,
            prompt_tokens=len(prompt),
            cached_tokens=2,
        )

    def _logprobs(self, text: str, gen: Gen) -> list[TokenLogprob] | None:
        if gen.logprobs is None:
            return None
        return [self._logprob(token, gen.logprobs.top) for token in text.encode()]

    @staticmethod
    def _logprob(token: int, top: int) -> TokenLogprob:
        """-1 for the token, -inf for "!". The alternatives A, B, C ... never hold the token."""
        others = [i for i in range(65, 65 + 26) if i != token][:top]
        value = -math.inf if token == ord("!") else -1.0
        return TokenLogprob(token, value, [(i, -0.5 - n) for n, i in enumerate(others)])

    def _prompt(self, request: Request) -> list[int]:
        ids: list[int] = []
        for segment in request.segments:
            if isinstance(segment, Text):
                ids += self.tokenizer.encode(segment.text, special=segment.special)
            elif isinstance(segment, Tokens):
                ids += segment.ids
        return ids
