"""The in-process engine: a model, its cache and its loop behind one object."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from stolon.errors import EngineClosed, InvalidRequest
from stolon.kernels import Ops, ops_by_name
from stolon.srt.build import (
    DEFAULT_RUNNING,
    DEFAULT_STEP_TOKENS,
    assemble,
    choose_ops,
    load_runner,
)
from stolon.srt.client import EngineStats
from stolon.srt.collecting import Collector, Output, shaped
from stolon.srt.compute_thread import ComputeThread
from stolon.srt.engine_options import check_options
from stolon.srt.generate import GenerateOptions, build_requests
from stolon.srt.heap import no_collection
from stolon.srt.intake import Intake
from stolon.srt.load_tokenizer import tokenizer_of
from stolon.srt.loaders import DEFAULT_MODEL, check_folder, open_model, resolve
from stolon.srt.model_runner import Runner
from stolon.srt.protocol import Event, Request, Speculation
from stolon.srt.tokenizer import ChatTemplate, Tokenizer
from stolon.srt.weights import WeightSource

MAX_UNDER_WAY = 1_024
"""Prompts of one `generate` call that are queued at a time; the others follow as these finish."""


class Engine:
    """A model served in this process. Implements EngineClient; use it as a context manager or `close` it.

    In a fork of the process everything but `close` raises EngineClosed: such a process makes its own engine.

    Args:
        model: a name (`stolon models` lists them), a .gguf file, a Hugging Face folder, or ``hf:org/name``.
        dtype: of the KV cache. ``float32`` computes exactly, as the reference does; ``auto`` and
            ``bfloat16`` are the fast path.
        kernels: op table that computes: ``native`` (C++; ``native:avx2`` or ``native:portable`` for less
            than the best instructions), ``torch_cpu`` or ``reference``. Default what `dtype` says, native
            where it was built.
        kv_tokens: size of the KV cache in tokens, at least 16; default about 1 GiB, at
            most twice the context.
        context_length: longest sequence accepted, at least 16; default the model's own, as far as the
            cache allows.
        max_running: most sequences in one step; more wait.
        step_tokens: most tokens computed in one step; longer prompts are prefilled in chunks.
        threads: CPU threads for the arithmetic; default one for each usable physical core. If given, torch
            is told the same, which holds for the process.
        speculation: ``off`` never guesses tokens from what a sequence repeats; ``auto`` does where it pays,
            for requests that do not say ``off``. The output is the same, so kernels whose rows depend
            on the shape of the batch (torch) never do.

    Raises:
        ModelError: the model can't be found, fetched, read or is not supported.
        InvalidRequest: an option is out of range.
    """

    def __init__(
        self,
        model: str | Path = DEFAULT_MODEL,
        *,
        dtype: str = "auto",
        kernels: str | None = None,
        kv_tokens: int | None = None,
        context_length: int | None = None,
        max_running: int | None = None,
        step_tokens: int | None = None,
        threads: int | None = None,
        speculation: Speculation = "auto",
    ) -> None:
        if not isinstance(model, str | Path):
            raise InvalidRequest(
                f"model must be a name or a path, not {type(model).__name__}", param="model"
            )
        check_options(
            kv_tokens=kv_tokens,
            context_length=context_length,
            max_running=max_running,
            step_tokens=step_tokens,
            threads=threads,
            speculation=speculation,
        )
        thread = ComputeThread()
        try:
            ops = thread.run(partial(choose_ops, dtype, kernels, threads))
            path = resolve(model)
            check_folder(path)
            source = open_model(path)
            try:
                load = partial(
                    load_runner,
                    source,
                    ops,
                    kv_tokens=kv_tokens,
                    context_length=context_length,
                    max_running=max_running or DEFAULT_RUNNING,
                )
                runner = thread.run(load)
                with no_collection():
                    tokenizer, template = tokenizer_of(source)
            finally:
                source.close()
        except BaseException:
            thread.stop()
            raise
        self._assemble(
            runner,
            tokenizer,
            template,
            thread,
            name=path.stem if isinstance(model, Path) or path == Path(model) else model,
            step_tokens=step_tokens or DEFAULT_STEP_TOKENS,
            speculation=speculation,
            file=path.name,
        )

    @classmethod
    def from_parts(
        cls,
        source: WeightSource,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None = None,
        ops: Ops | None = None,
        name: str = "model",
        kv_tokens: int | None = None,
        context_length: int | None = None,
        max_running: int = DEFAULT_RUNNING,
        step_tokens: int = DEFAULT_STEP_TOKENS,
        speculation: Speculation = "auto",
    ) -> Engine:
        """An engine over weights and a tokenizer that are in hand already; float32 unless `ops` says else."""
        thread = ComputeThread()
        runner = thread.run(
            lambda: load_runner(
                source,
                ops or ops_by_name("reference"),
                kv_tokens=kv_tokens,
                context_length=context_length,
                max_running=max_running,
            )
        )
        engine = cls.__new__(cls)
        engine._assemble(
            runner,
            tokenizer,
            template,
            thread,
            name=name,
            step_tokens=step_tokens,
            speculation=speculation,
        )
        return engine

    @classmethod
    def from_runner(
        cls,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None = None,
        name: str = "model",
        step_tokens: int = DEFAULT_STEP_TOKENS,
        speculation: Speculation = "auto",
    ) -> Engine:
        """An engine over anything that turns a ragged batch into logits."""
        engine = cls.__new__(cls)
        thread = ComputeThread()
        engine._assemble(
            runner,
            tokenizer,
            template,
            thread,
            name=name,
            step_tokens=step_tokens,
            speculation=speculation,
        )
        return engine

    def _assemble(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        thread: ComputeThread,
        *,
        name: str,
        step_tokens: int,
        speculation: Speculation,
        file: str | None = None,
    ) -> None:
        try:
            parts = assemble(
                runner,
                tokenizer,
                thread,
                name=name,
                file=file,
                step_tokens=step_tokens,
                speculation=speculation,
            )
        except BaseException:
            thread.stop()
            raise
        self.tokenizer = tokenizer
        self.chat_template = template
        self.info = parts.info
        self._loop = parts.loop
        self._intake = Intake(parts.admission, parts.loop)

    # EngineClient

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Queue a request; see EngineClient. Thread-safe."""
        self._intake.submit(request, on_event)

    def abort(self, rid: str) -> None:
        """Cancel a request; unknown ids are ignored. Thread-safe."""
        self._intake.abort(rid)

    def stats(self) -> EngineStats:
        """Counters since start and gauges of now."""
        return self._intake.stats()

    def flush_cache(self) -> None:
        """Drop every cached prefix that no running request uses."""
        self._loop.call(self._loop.flush_cache)

    def check_integrity(self) -> None:
        """Raise InternalError unless every KV slot is accounted for. For tests and idle moments."""
        self._loop.call(self._loop.check_integrity)

    def close(self) -> None:
        """Stop. Requests that are not finished fail with EngineClosed. Closing twice is fine."""
        self._intake.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Generating

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Generate after a prompt, or after each of several.

        Args:
            prompt: text, or a list of texts. Special tokens in it are ordinary text; BOS is added where
                the model wants one.
            input_ids: token ids instead of text, taken as they are.
            options: see GenerateOptions.

        Returns:
            One Output; a list of `n` with ``n > 1``; for several prompts a list of these, in order. (The
            shape depends on values, so the static type is Any.)

        Raises:
            StolonError: of the first prompt that fails.
        """
        requests, several = build_requests(prompt, input_ids, options)
        waiting: deque[Collector] = deque()
        answers: list[list[Output]] = []
        try:
            for request in requests:
                if len(waiting) == MAX_UNDER_WAY:
                    answers.append(waiting.popleft().future.result())
                waiting.append(self._collect(request))
            answers += [collector.future.result() for collector in waiting]
        except BaseException:
            self._abort_all(requests)
            raise
        return shaped(answers, several=several, lists=options.get("n", 1) > 1)

    async def agenerate(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """`generate` for asyncio. Cancelling it frees the work at once."""
        requests, several = build_requests(prompt, input_ids, options)
        waiting: deque[Collector] = deque()
        answers: list[list[Output]] = []
        try:
            for request in requests:
                if len(waiting) == MAX_UNDER_WAY:
                    answers.append(await asyncio.wrap_future(waiting.popleft().future))
                waiting.append(self._collect(request))
            for collector in waiting:
                answers.append(await asyncio.wrap_future(collector.future))
        except BaseException:
            self._abort_all(requests)
            raise
        return shaped(answers, several=several, lists=options.get("n", 1) > 1)

    def _abort_all(self, requests: list[Request]) -> None:
        with suppress(EngineClosed):  # in another process, where none of them runs
            for request in requests:
                self.abort(request.rid)

    def _collect(self, request: Request) -> Collector:
        collector = Collector(request.n, weights_version=self.info.weights_version)
        self.submit(request, collector)
        return collector
