"""The eight programs' results as tables."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from stolon.benchmarks.targets import Target, Verdict

__all__ = ["PROGRAM_TARGETS", "judge_programs", "programs_table", "ratios"]

PROGRAM_TARGETS = (
    Target(name="programs_mean", sense="at least", value=3.0, against="best peer"),
    Target(name="programs_least", sense="at least", value=1.3, against="best peer"),
)
_NONE = "–"


def ratios(results: dict[str, Any], measure: str = "seconds") -> dict[str, float]:
    """Time of the best peer over this engine's, by program; none where no peer has a time."""
    found = {}
    for program in results["items"]:
        rows = {name: engine["programs"][program] for name, engine in results["engines"].items()}
        ours = rows.pop("stolon")
        peers = [row[measure] for row in rows.values() if measure in row]
        if peers:
            found[program] = min(peers) / ours[measure]
    return found


def judge_programs(results: dict[str, Any]) -> list[Verdict]:
    """Every target with what `measure_programs` found."""
    found = list(ratios(results).values())
    values = {"programs_mean": geometric_mean(found), "programs_least": min(found)} if found else {}
    return [Verdict(target, values.get(target.name)) for target in PROGRAM_TARGETS]


def programs_table(results: dict[str, Any]) -> str:
    """The results of one model as Markdown."""
    machine, engines = results["machine"], results["engines"]
    lines = [
        f"{results['model']} on {machine['cpu']}, {machine['cores']} cores; "
        f"best of {results['repeats']}",
        "",
        *(f"{name}: {engine['version']}; {_settings(engine)}" for name, engine in engines.items()),
        *(f"{name}: not measured: {reason}" for name, reason in results["missing"].items()),
        *(
            f"{name}, {program}: not measured: {row['error']}"
            for name, engine in engines.items()
            for program, row in engine["programs"].items()
            if "error" in row
        ),
        "",
        *_times(results, "seconds", "seconds for the batch"),
        "",
        *_times(results, "alone_seconds", "seconds for one item alone"),
        "",
        *_work(results),
        "",
        "| target | | found | |",
        "|---|---|---|---|",
    ]
    for verdict in judge_programs(results):
        target = verdict.target
        found = "" if verdict.found is None else f"{verdict.found:.3g}{target.unit}"
        lines.append(
            f"| {target.name} | {target.sense} {target.value:g}{target.unit} of the {target.against} "
            f"| {found} | {verdict.word} |"
        )
    return "\n".join(lines)


def _times(results: dict[str, Any], measure: str, title: str) -> list[str]:
    """A row of times for each program, and what this engine is against the best peer."""
    engines = results["engines"]
    found = ratios(results, measure)
    lines = [
        f"| {title} | " + " | ".join(engines) + " | against the best peer |",
        "|---" * (len(engines) + 2) + "|",
    ]
    for program in results["items"]:
        rows = [engine["programs"][program] for engine in engines.values()]
        cells = [f"{row[measure]:.2f}" if measure in row else _NONE for row in rows]
        ratio = f"{found[program]:.2f}×" if program in found else _NONE
        lines.append(f"| {program} | " + " | ".join([*cells, ratio]) + " |")
    if found:
        mean = f"{geometric_mean(found.values()):.2f}×"
        lines.append("| geometric mean " + "| " * len(engines) + f"| {mean} |")
    return lines


def _work(results: dict[str, Any]) -> list[str]:
    """What was done: items and texts alike for all; tokens and valid constrained texts of each."""
    engines = results["engines"]
    lines = [
        "| tokens, valid | items | texts | " + " | ".join(engines) + " | cached here |",
        "|---" * (len(engines) + 4) + "|",
    ]
    for program, items in results["items"].items():
        rows = [engine["programs"][program] for engine in engines.values()]
        ours = engines["stolon"]["programs"][program]
        share = ours["cached"] / max(1, ours["cached"] + ours["computed"])
        cells = [str(items), str(ours["texts"]), *map(_done, rows), f"{share:.0%}"]
        lines.append(f"| {program} | " + " | ".join(cells) + " |")
    return lines


def _done(row: dict[str, Any]) -> str:
    if "error" in row:
        return _NONE
    if not row["constrained"]:
        return f"{row['tokens']}"
    return f"{row['tokens']}, {row['valid']} of {row['constrained']}"


def _settings(engine: dict[str, Any]) -> str:
    text = ", ".join(f"{key} {value}" for key, value in engine["settings"].items())
    chosen: dict[str, list[str]] = {}
    for program, row in engine["programs"].items():
        words = ", ".join(f"{key} {value}" for key, value in row.get("settings", {}).items())
        if words:
            chosen.setdefault(words, []).append(program)
    won = [f"{words} ({', '.join(where)})" for words, where in chosen.items()]
    return "; ".join([text, *won] if text else won)
