"""Separate calls on OpenVINO GenAI (see programs/driver.py): its pipeline is stepped here, calls join as they
come.

Prefix caching is on, chat prompts go through the template in the model file, constraints through
StructuredOutputConfig; choices are a regular expression there.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Hashable
from typing import Any

genai: Any = importlib.import_module("openvino_genai")

VARIANTS = ("bf16", "f32", "bf16 primed", "f32 primed")


class Caller:
    concurrency = 0

    def __init__(self, worker: Any, variant: str) -> None:
        precision, _, primed = variant.partition(" ")
        self.primed = bool(primed)
        self._pipeline = worker.pipeline(precision, prefix_caching=True)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._number = 0
        self._running: dict[int, Any] = {}
        self.settings = {"precision": precision, "prefix_caching": True, "primed": self.primed}

    def submit(self, call: Any) -> Hashable:
        config = genai.GenerationConfig()
        config.max_new_tokens = call.max_tokens
        config.do_sample = call.temperature > 0
        if config.do_sample:
            config.temperature = call.temperature
            config.num_return_sequences = call.n
            config.rng_seed = self._number
        if call.like is None:
            config.ignore_eos = True
        else:
            config.structured_output_config = _constraint(call.like)
            config.set_eos_token_id(self._tokenizer.get_eos_token_id())
        prompt = call.prompt
        if not isinstance(prompt, str):
            prompt = self._tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
        self._number += 1
        handle = self._pipeline.add_request(self._number, prompt, config)
        self._running[self._number] = handle
        return self._number

    def step(self) -> list[tuple[Hashable, list[str], int]]:
        self._pipeline.step()
        done: list[tuple[Hashable, list[str], int]] = []
        for key, handle in list(self._running.items()):
            if handle.get_status() == genai.GenerationStatus.RUNNING:
                continue
            del self._running[key]
            ids = [output.generated_ids for output in handle.read_all()]
            texts = [self._tokenizer.decode(one) for one in ids]
            done.append((key, texts, sum(map(len, ids))))
        return done


def _constraint(like: dict[str, Any]) -> Any:
    if "schema" in like:
        return genai.StructuredOutputConfig(json_schema=json.dumps(like["schema"]))
    pattern = like.get("regex") or "|".join(map(re.escape, like["choices"]))
    return genai.StructuredOutputConfig(regex=pattern)
