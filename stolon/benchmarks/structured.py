"""One run of the structured benchmark: extraction beside peers, and what constraints cost here."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from stolon.benchmarks.documents import DOCUMENTS, MAX_TOKENS, SCHEMA, prompts, record
from stolon.benchmarks.machine import machine
from stolon.benchmarks.measure import Plan, Say
from stolon.benchmarks.peers import Starter, check_peers
from stolon.benchmarks.process import Worker, reason
from stolon.benchmarks.rows import MAX_SECONDS
from stolon.benchmarks.workload import PROMPT_TOKENS, passage, token_prompts
from stolon.errors import InternalError

__all__ = ["measure_structured"]

BATCH = 16
"""Sequences at once where constrained text is compared with free text."""


def measure_structured(plan: Plan, say: Say) -> dict[str, Any]:
    """Run the plan; returns plain data. A peer that can't be had is under ``missing`` with the reason."""
    check_peers(plan.peers)
    engines: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="stolon-bench-") as name:
        starter = Starter(plan.model, plan.threads, Path(name), plan.pythons)
        try:
            say("stolon: loading")
            ours, engines["stolon"] = starter.stolon()
            probe = token_prompts(lambda text: tokens(ours, text), 8, PROMPT_TOKENS)
            peers, missing = starter.all_peers(plan.peers, probe, engines, say)
            _extract(plan, [ours, *peers], engines, say)
            for peer in peers:
                starter.close(peer)
            _own_rows(plan, ours, engines["stolon"], say)
        finally:
            starter.close_all()
    return {
        "machine": machine(),
        "model": plan.model.name,
        "repeats": plan.repeats,
        "documents": DOCUMENTS,
        "engines": engines,
        "missing": missing,
    }


def tokens(worker: Worker, text: str) -> list[int]:
    ids: list[int] = worker.ask("tokenize", text=text)["ids"]
    return ids


def _extract(
    plan: Plan, workers: list[Worker], engines: dict[str, dict[str, Any]], say: Say
) -> None:
    """All documents at once, from an empty cache; the engines take turns and the best counts."""
    ids = [tokens(workers[0], text) for text in prompts()]
    spent = dict.fromkeys((worker.name for worker in workers), 0.0)
    for repeat in range(plan.repeats):
        for worker in workers:
            engine = engines[worker.name]
            if "error" in engine.get("extract", {}) or spent[worker.name] > MAX_SECONDS:
                continue
            say(f"extraction: {worker.name} {repeat + 1}/{plan.repeats}")
            start = time.perf_counter()
            try:
                answer = worker.ask(
                    "extract", prompts=ids, schema=json.dumps(SCHEMA), max_tokens=MAX_TOKENS
                )
            except InternalError as error:
                if worker is workers[0]:
                    raise
                engine["extract"] = {"error": reason(error)}
                continue
            spent[worker.name] += time.perf_counter() - start
            texts = answer.pop("texts")
            answer["valid"], answer["right"] = _judge(texts)
            answer["documents_per_second"] = len(texts) / answer["seconds"]
            best = engine.get("extract", {"seconds": float("inf")})
            if answer["seconds"] < best["seconds"]:
                engine["extract"] = answer


def _judge(texts: list[str]) -> tuple[int, int]:
    """How many texts are records of the schema, and how many are the right ones."""
    valid = right = 0
    for number, text in enumerate(texts):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        valid += isinstance(found, dict) and list(found) == SCHEMA["required"]
        right += found == record(number)[1]
    return valid, right


def _own_rows(plan: Plan, ours: Worker, engine: dict[str, Any], say: Say) -> None:
    """What only this engine is asked: constrained against free text, and drafts from the prompt."""
    ids = [tokens(ours, text) for text in prompts(BATCH)]
    schema = json.dumps(SCHEMA)
    say("constrained against free text")
    engine["constrained"] = ours.ask(
        "constrained", prompts=ids, schema=schema, max_tokens=MAX_TOKENS, repeats=plan.repeats
    )
    say("drafts from the prompt")
    copying = [
        f"{passage(number, 24)}\n\nThe same entry once more, word for word:\n\nEntry"
        for number in range(4)
    ]
    writing = [f"{passage(number, 3)}\n\nWhat happened the day after:" for number in range(4)]
    for name, texts in (("copying", copying), ("writing", writing)):
        engine[f"drafts_{name}"] = ours.ask(
            "drafts",
            prompts=[tokens(ours, text) for text in texts],
            new_tokens=2 * plan.new_tokens,
            repeats=plan.repeats,
        )
