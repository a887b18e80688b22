"""What is aimed at, and what a run found of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stolon.benchmarks.workload import BATCHES, RATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number to reach.

    Attributes:
        against: what it is a ratio to; None where it is absolute.
        parameters: sizes of model that it is for, from the first up to below the second.
    """

    name: str
    sense: Literal["at least", "at most", "exactly"]
    value: float
    unit: str = "×"
    against: str | None = None
    parameters: tuple[float, float] = (0.0, float("inf"))

    def met(self, found: float) -> bool:
        if self.sense == "at least":
            return found >= self.value
        if self.sense == "at most":
            return found <= self.value
        return found == self.value


PATHS = ("prompt", "decode")
"""The two ways an engine computes logits: many tokens of a sequence at once, or one."""

_PEER = "best peer"
TARGETS = (
    Target(name="prefill", sense="at least", value=1.5, against=_PEER),
    Target(name="decode_1", sense="at least", value=1.8, against=_PEER),
    Target(name="decode_8", sense="at least", value=1.6, against=_PEER),
    Target(name="decode_32", sense="at least", value=1.6, against=_PEER),
    Target(name="shared", sense="at least", value=3.0, against=_PEER),
    Target(name="bandwidth_share", sense="at least", value=0.8, unit="", against="memory limit"),
    Target(name="outside_kernels", sense="at most", value=0.03, unit="", against="step"),
    Target(name="overhead", sense="at most", value=0.10, unit="", against="decode_32"),
    Target(name="load", sense="at most", value=0.5, unit=" s", parameters=(0.0, 2e8)),
    Target(name="load", sense="at most", value=1.5, unit=" s", parameters=(2e8, 8e8)),
    Target(name="memory", sense="at most", value=1.3, against="model file"),
    Target(name="divergence", sense="at most", value=1.0, against="llama.cpp"),
    Target(name="cold_start", sense="at most", value=4.0, unit=" s"),
    Target(name="cached_prompt_computes", sense="exactly", value=1, unit=" token"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was found; `found` is None where it was not measured."""

    target: Target
    found: float | None

    @property
    def word(self) -> str:
        if self.found is None:
            return "not measured"
        return "PASS" if self.target.met(self.found) else "FAIL"


def judge(results: dict[str, Any]) -> list[Verdict]:
    """Every target for a model of this size with what `measure` found."""
    found = findings(results)
    size = results["engines"]["stolon"]["parameters"]
    fitting = [t for t in TARGETS if t.parameters[0] <= size < t.parameters[1]]
    return [Verdict(target, found.get(target.name)) for target in fitting]


def rate(engine: dict[str, Any], label: str) -> float | None:
    """Tokens per second of an engine in a row, None where there is none."""
    found: float | None = engine.get(label, {}).get("tokens_per_second")
    return found


def best_peer(results: dict[str, Any], label: str) -> float | None:
    """The highest rate of a peer in a row, None where no peer has one."""
    peers = (engine for name, engine in results["engines"].items() if name != "stolon")
    return max((found for peer in peers if (found := rate(peer, label)) is not None), default=None)


def growth(engine: dict[str, Any], label: str) -> float:
    """Resident bytes since the imports, without the KV cache where its size is known."""
    kv = engine.get("kv_resident") if label == "rss_peak" else None
    bytes_: float = engine[label] - engine["rss_imported"] - (kv or 0)
    return bytes_


def bandwidth_share(results: dict[str, Any], engine: dict[str, Any]) -> float | None:
    """Rate of one sequence over the rate at which memory could deliver the file's weights at that time."""
    one = rate(engine, "decode_1")
    if one is None:
        return None
    share: float = one * results["bytes_per_token"] / engine["decode_1"]["bandwidth"]
    return share


def outside_kernels(row: dict[str, Any]) -> float:
    """Share of the steps of a row that is neither the model's arithmetic nor sampling."""
    share: float = 1 - (row["forward_time"] + row["sample_time"]) / row["step_time"]
    return share


def findings(results: dict[str, Any]) -> dict[str, float]:
    """What was found, by the names of the targets."""
    engines = results["engines"]
    ours = engines["stolon"]
    batch = ours["decode_32"]
    busy = batch["forward_time"] + batch["sample_time"]
    found = {
        "cold_start": ours["cold_start_seconds"],
        "load": ours["load_seconds"],
        "memory": growth(ours, "rss_peak") / results["model_bytes"],
        "cached_prompt_computes": float(ours["cached_prompt"]["computed"]),
        # Everything between asking and having that is neither arithmetic of the model nor sampling.
        "overhead": 1 - busy / batch["seconds"],
        "outside_kernels": max(outside_kernels(ours[f"decode_{n}"]) for n in BATCHES),
    }
    share = bandwidth_share(results, ours)
    if share is not None:
        found["bandwidth_share"] = share
    for label in RATES:
        mine, best = rate(ours, label), best_peer(results, label)
        if mine is not None and best is not None:
            found[label] = mine / best
    yardstick = engines.get("llama.cpp", {})
    if "quality" in ours and "error" not in yardstick.get("quality", {"error": None}):
        # The worse of the two paths: a sequence is computed by both.
        pairs = [(ours["quality"][p]["mean"], yardstick["quality"][p]["mean"]) for p in PATHS]
        if all(theirs > 0 for _, theirs in pairs):
            found["divergence"] = max(mine / theirs for mine, theirs in pairs)
    return found
