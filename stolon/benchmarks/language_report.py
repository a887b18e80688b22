"""The language benchmark's results as a table."""

from __future__ import annotations

from typing import Any

from stolon.benchmarks.targets import Target, Verdict

__all__ = ["LANGUAGE_TARGETS", "judge_language", "language_table"]

LANGUAGE_TARGETS = (
    Target(name="block", sense="at most", value=100, unit=" µs"),
    Target(name="async_block", sense="at most", value=100, unit=" µs"),
    Target(name="turn", sense="at most", value=150, unit=" µs"),
    Target(name="fork", sense="at most", value=20, unit=" µs"),
    Target(name="step", sense="at most", value=1.05, against="the same requests alone"),
    Target(name="prefix", sense="at most", value=1.001, against="its tokens"),
    Target(name="compile", sense="at most", value=0.2, against="the time that it takes alone"),
)


def judge_language(results: dict[str, Any]) -> list[Verdict]:
    """Every target with what `measure_language` found."""
    own = results["language"]
    found = {
        "block": own["block_seconds"] * 1e6,
        "async_block": own["async_block_seconds"] * 1e6,
        "turn": own["turn_seconds"] * 1e6,
        "fork": own["fork_seconds"] * 1e6,
        "step": own["step_with"] / own["step_bare"],
        "prefix": own["prefix_computed"],
        "compile": max(own["compile_added"], 0.0) / own["compile_seconds"],
    }
    return [Verdict(target, found[target.name]) for target in LANGUAGE_TARGETS]


def language_table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    machine, own = results["machine"], results["language"]
    states, branches = results["states"], results["branches"]
    titles = {
        "block": "a block: literal, generation, read; engine's time left out",
        "async_block": "the same in an async program",
        "turn": "a turn of a chat, the 60th: two messages, generation, read",
        "fork": f"a branch of fork({branches}) after 200 items and 100 variables",
        "step": f"an engine step while {states} states generate: {own['step_with'] * 1e3:.1f} ms",
        "prefix": f"{own['prefix_tokens']} tokens before fork({branches}): computed "
        f"({own['prefix_seconds']:.1f} s in all)",
        "compile": f"what a grammar that takes {own['compile_seconds'] * 1e3:.0f} ms to compile adds to "
        "the first text behind 1,000 tokens",
    }
    lines = [
        f"{results['model']} on {machine['cpu']}, {machine['cores']} cores; "
        f"best of {results['repeats']}",
        "",
        "| what | found | target | |",
        "|---|---|---|---|",
    ]
    for verdict in judge_language(results):
        target = verdict.target
        against = f" of {target.against}" if target.against else ""
        lines.append(
            f"| {titles[target.name]} | {verdict.found:.4g}{target.unit} "
            f"| {target.sense} {target.value:g}{target.unit}{against} | {verdict.word} |"
        )
    wall = own["wall_with"] / own["wall_bare"]
    lines.append(
        f"| all of the {states} states, from start to end: {own['wall_with']:.1f} s "
        f"| {wall:.4g}× | of the same requests alone | |"
    )
    return "\n".join(lines)
