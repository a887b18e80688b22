"""Separate calls on vLLM (see programs/driver.py): its engine is stepped here, calls join as they come.

Chat prompts go through the model's template as vLLM's own tokenizer applies it. Prefix caching is
on; structured output is xgrammar's.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable
from typing import Any

vllm: Any = importlib.import_module("vllm")

VARIANTS = ("at once", "primed")


class Caller:
    concurrency = 0

    def __init__(self, worker: Any, variant: str) -> None:
        self._engine = worker.engine.llm_engine
        self._tokenizer = worker.engine.get_tokenizer()
        self._number = 0
        self.primed = variant == "primed"
        self.settings = {"primed": self.primed}

    def submit(self, call: Any) -> Hashable:
        constraint = None
        if call.like is not None:
            form = {
                key: call.like[key] for key in ("choices", "regex", "schema") if key in call.like
            }
            constraint = vllm.sampling_params.StructuredOutputsParams(
                choice=form.get("choices"), regex=form.get("regex"), json=form.get("schema")
            )
        sampling = vllm.SamplingParams(
            n=call.n,
            max_tokens=call.max_tokens,
            temperature=call.temperature,
            ignore_eos=constraint is None,
            structured_outputs=constraint,
            output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )
        prompt = call.prompt
        if not isinstance(prompt, str):
            prompt = self._tokenizer.apply_chat_template(
                prompt, tokenize=False, add_generation_prompt=True
            )
        self._number += 1
        key = f"call-{self._number}"
        self._engine.add_request(key, {"prompt": prompt}, sampling)
        return key

    def step(self) -> list[tuple[Hashable, list[str], int]]:
        return [
            (
                done.request_id,
                [output.text for output in done.outputs],
                sum(len(output.token_ids) for output in done.outputs),
            )
            for done in self._engine.step()
            if done.finished
        ]
