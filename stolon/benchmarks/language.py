"""What the language costs beside the engine: per block, turn, fork and engine step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stolon.benchmarks.language_alone import costs_alone
from stolon.benchmarks.language_beside import (
    PREFIX_TOKENS,
    costs_of_compiling,
    costs_of_prefix,
    costs_of_steps,
)
from stolon.benchmarks.machine import machine
from stolon.errors import InvalidRequest
from stolon.srt import Engine

__all__ = ["LanguagePlan", "measure_language"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguagePlan:
    """What to measure.

    Attributes:
        model: path of the model file.
        peers, pythons: must be empty; there is nothing to compare with.
        threads: CPU threads of the engine.
        states: programs that generate at the same time.
        branches: of the wide fork.
        new_tokens: tokens that each state generates.
        repeats: the best of this many counts.
    """

    model: Path
    peers: tuple[str, ...] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    states: int = 1000
    branches: int = 1000
    new_tokens: int = 24
    repeats: int = 3

    def __post_init__(self) -> None:
        if self.peers:
            raise InvalidRequest("the language benchmark compares with no peers", param="peers")

    @classmethod
    def quick(cls, **fields: Any) -> LanguagePlan:
        """A short run: fewer tokens, measured once. For a look, not for a claim."""
        return cls(states=200, repeats=1, **fields)


def measure_language(plan: LanguagePlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the plan; returns plain data."""
    tokens = plan.states * (plan.new_tokens + 16)
    with Engine(
        plan.model,
        threads=plan.threads,
        max_running=plan.states,
        step_tokens=max(512, 8 * plan.states),  # so that all states are soon under way
        kv_tokens=max(tokens, 4 * PREFIX_TOKENS + 16 * plan.branches),
    ) as engine:
        return measured_on(engine, plan, say)


def measured_on(engine: Engine, plan: LanguagePlan, say: Callable[[str], None]) -> dict[str, Any]:
    """`measure_language` on an engine that is there."""
    say("blocks and forks")
    found = costs_alone(
        engine.tokenizer, engine.chat_template, branches=plan.branches, repeats=plan.repeats
    )
    say(f"{plan.states} states")
    found |= costs_of_steps(engine, plan)
    say(f"{plan.branches} branches of one prefix")
    found |= costs_of_prefix(engine, plan)
    say("a grammar beside a prompt")
    found |= costs_of_compiling(engine, plan)
    return {
        "machine": machine(),
        "model": plan.model.stem,
        "states": plan.states,
        "branches": plan.branches,
        "repeats": plan.repeats,
        "language": found,
    }
