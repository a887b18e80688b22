"""A run's results as a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stolon.benchmarks.targets import (
    PATHS,
    TARGETS,
    Target,
    Verdict,
    bandwidth_share,
    best_peer,
    growth,
    judge,
    rate,
)
from stolon.benchmarks.workload import (
    BATCHES,
    PREFILL_TOKENS,
    RATES,
    SHARED_CONTEXT,
    SHARED_SEQUENCES,
    SHARED_TOKENS,
)

__all__ = ["TARGETS", "Target", "Verdict", "judge", "table"]

TITLES = {
    "prefill": f"prefill of {PREFILL_TOKENS} tokens, tokens/s",
    **{f"decode_{n}": f"decode, {n} at once, tokens/s" for n in BATCHES},
    "shared": f"decode, {SHARED_SEQUENCES} at {SHARED_CONTEXT} tokens, {SHARED_TOKENS} shared, tokens/s",
}
_NONE = "–"


def table(results: dict[str, Any]) -> str:
    """The results of one model as Markdown."""
    machine, engines = results["machine"], results["engines"]
    names = [*engines, *results["missing"]]
    peers = len(names) > 1
    lines = [
        f"{results['model']} on {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory'] / 2**30:.0f} GiB, {results['bandwidth'] / 1e9:.1f} GB/s read; "
        f"best of {results['repeats']}",
        "",
        *(f"{name}: {engine['version']}; {_settings(engine)}" for name, engine in engines.items()),
        *(f"{name}: not measured: {reason}" for name, reason in results["missing"].items()),
        *_failures(engines),
        "",
        "| | " + " | ".join(names) + (" | against the best peer |" if peers else " |"),
        "|---" * (len(names) + 1 + peers) + "|",
    ]

    def row(title: str, cell: Callable[[dict[str, Any]], str], ratio: str = "") -> None:
        cells = [cell(engines[name]) if name in engines else _NONE for name in names]
        lines.append(f"| {title} | " + " | ".join([*cells, ratio] if peers else cells) + " |")

    for label in RATES:
        mine, best = rate(engines["stolon"], label), best_peer(results, label)
        ratio = f"{mine / best:.2f}×" if mine and best else ""
        row(TITLES[label], partial(_rate, label=label), ratio)
    row("share of the memory limit, 1 at once", lambda e: _share(bandwidth_share(results, e)))
    row("time to load", lambda e: f"{e['load_seconds']:.2f} s")
    row("time to import", lambda e: f"{e['import_seconds']:.2f} s")
    row("memory, loaded", lambda e: f"{growth(e, 'rss_loaded') / 2**20:.0f} MiB")
    row("memory, after decoding", _peak)
    for path in PATHS:
        row(f"divergence from float32, {path}", partial(_divergence, path=path))
    lines += ["", f"program over engine.generate: {_over(engines['stolon']['program'])}", ""]
    lines += ["| target | | found | |", "|---|---|---|---|", *map(_verdict, judge(results))]
    return "\n".join(lines)


def _rate(engine: dict[str, Any], label: str) -> str:
    value = rate(engine, label)
    return _NONE if value is None else f"{value:.0f}"


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


def _peak(engine: dict[str, Any]) -> str:
    if "rss_peak" not in engine:
        return _NONE
    known = engine.get("kv_resident") is not None
    return f"{growth(engine, 'rss_peak') / 2**20:.0f} MiB" + ("" if known else " with KV")


def _divergence(engine: dict[str, Any], path: str) -> str:
    if path not in engine.get("quality", {}):
        return _NONE
    found = engine["quality"][path]
    return f"{found['mean']:.6f} ± {found['standard_error']:.6f}"


def _failures(engines: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{name}, {label}: not measured: {engine[label]['error']}"
        for name, engine in engines.items()
        for label in (*RATES, "memory", "quality")
        if "error" in engine.get(label, {})
    ]


def _verdict(verdict: Verdict) -> str:
    target = verdict.target
    against = f" of the {target.against}" if target.against else ""
    found = "" if verdict.found is None else f"{verdict.found:.3g}{target.unit}"
    return (
        f"| {target.name} | {target.sense} {target.value:g}{target.unit}{against} "
        f"| {found} | {verdict.word} |"
    )


def _settings(engine: dict[str, Any]) -> str:
    text = ", ".join(f"{key} {value}" for key, value in engine["settings"].items())
    if engine.get("tried_seconds"):
        tried = ", ".join(f"{m} {s:.2f} s" for m, s in engine["tried_seconds"].items())
        text += f"; tried: {tried}"
    for label in RATES:
        chosen = engine.get(label, {}).get("settings")
        if chosen:
            text += f"; {label}: " + ", ".join(f"{key} {value}" for key, value in chosen.items())
    return text


def _over(program: dict[str, Any]) -> str:
    extra = program["seconds"] / program["engine_seconds"] - 1
    same = "same text" if program["same_text"] else "DIFFERENT TEXT"
    return f"{extra:+.1%} time, {same}"
