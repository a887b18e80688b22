"""What is aimed at, and a run's results as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stolon.benchmarks.workload import BATCHES

# Bytes per parameter of the same weights in bfloat16, the yardstick of memory.
_BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number to reach. `against` says what it is a ratio to; None where it is absolute."""

    name: str
    sense: Literal["at least", "at most", "exactly"]
    value: float
    unit: str = "×"
    against: str | None = None

    def met(self, found: float) -> bool:
        if self.sense == "at least":
            return found >= self.value
        if self.sense == "at most":
            return found <= self.value
        return found == self.value


TARGETS = (
    Target(name="prefill", sense="at least", value=3.0, against="peer"),
    Target(name="decode_32", sense="at least", value=2.0, against="peer"),
    Target(name="decode_1", sense="at least", value=0.5, against="peer"),
    Target(name="cold_start", sense="at most", value=4.0, unit=" s"),
    Target(name="memory", sense="at most", value=3.0, against="bf16 weights"),
    Target(name="cached_prompt_computes", sense="exactly", value=1, unit=" token"),
    Target(name="overhead", sense="at most", value=0.10, unit=""),
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
    """Every target with what `measure` found."""
    found = _findings(results)
    return [Verdict(target, found.get(target.name)) for target in TARGETS]


def _findings(results: dict[str, Any]) -> dict[str, float]:
    engines = results["engines"]
    ours = engines["stolon"]
    batch = ours["decode_32"]
    busy = batch["forward_time"] + batch["sample_time"]
    found = {
        "cold_start": ours["cold_start_seconds"],
        # The KV cache grows with what is cached, up to the size that the user gave it.
        "memory": (ours["rss_peak"] - ours["kv_in_use"]) / (_BF16 * ours["parameters"]),
        "cached_prompt_computes": float(ours["cached_prompt"]["computed"]),
        # Everything between asking and having that is neither arithmetic of the model nor sampling.
        "overhead": 1 - busy / batch["seconds"],
    }
    peers = [engine for name, engine in engines.items() if name != "stolon"]
    if peers:
        for name in ("prefill", "decode_1", "decode_8", "decode_32"):
            found[name] = _rate(ours, name) / _rate(peers[0], name)
    return found


def _rate(engine: dict[str, Any], name: str) -> float:
    rate: float = engine[name]["tokens_per_second"]
    return rate


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    machine = results["machine"]
    engines: dict[str, dict[str, Any]] = results["engines"]
    names = list(engines)
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GiB, "
        f"Python {machine['python']}; {results['model']}, best of {results['repeats']}",
        *(f"{name}: {engines[name]['version']}, {_settings(engines[name])}" for name in names),
        "",
        "| | " + " | ".join(names) + (" | ratio |" if len(names) > 1 else " |"),
        "|---" * (len(names) + 1 + (len(names) > 1)) + "|",
    ]
    labels = [("prefill", f"prefill of {results['prefill_tokens']} tokens, tokens/s")]
    labels += [(f"decode_{n}", f"decode, {n} at once, tokens/s") for n in BATCHES]
    for label, title in labels:
        rates = [_rate(engines[name], label) for name in names]
        cells = [f"{rate:.0f}" for rate in rates]
        if len(names) > 1:
            cells.append(f"{rates[0] / rates[1]:.2f}×")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for label, title in (("rss_loaded", "memory, loaded"), ("rss_peak", "memory, after decoding")):
        cells = [f"{engines[name][label] / 2**20:.0f} MiB" for name in names]
        if len(names) > 1:
            cells.append(f"{engines[names[0]][label] / engines[names[1]][label]:.2f}×")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    program = engines["stolon"]["program"]
    lines += ["", f"program over engine.generate: {_over(program)}", ""]
    lines += ["| target | | found | |", "|---|---|---|---|"]
    for verdict in judge(results):
        target = verdict.target
        against = f" of the {target.against}" if target.against else ""
        found = "" if verdict.found is None else f"{verdict.found:.2f}{target.unit}"
        lines.append(
            f"| {target.name} | {target.sense} {target.value:g}{target.unit}{against} "
            f"| {found} | {verdict.word} |"
        )
    return "\n".join(lines)


def _settings(engine: dict[str, Any]) -> str:
    settings = dict(engine["settings"])
    per_measure = {
        label: engine[label]["settings"]
        for label in ("prefill", *(f"decode_{n}" for n in BATCHES))
        if "settings" in engine.get(label, {})
    }
    text = ", ".join(f"{key} {value}" for key, value in settings.items())
    for label, chosen in per_measure.items():
        text += f"; {label}: " + ", ".join(f"{key} {value}" for key, value in chosen.items())
    return text


def _over(program: dict[str, Any]) -> str:
    extra = program["seconds"] / program["engine_seconds"] - 1
    same = "same text" if program["same_text"] else "DIFFERENT TEXT"
    return f"{extra:+.1%} time, {same}"
