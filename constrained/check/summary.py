"""Counts, shares and percentiles over all replies, as a text and as plain data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from stolon.constrained.check.cases import Case, Outcome, Reply, outcome_of

__all__ = ["Result", "as_data", "as_text"]

_ORDER: tuple[Outcome, ...] = (
    *("exact", "untested", "incomplete", "refused", "unsound", "error", "timeout", "crash"),
)
_CLEAN: tuple[Outcome, ...] = ("exact", "untested")


@dataclass(frozen=True, slots=True)
class Result:
    """A case and what came of it."""

    case: Case
    reply: Reply

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.reply)


def as_data(results: list[Result]) -> dict[str, Any]:
    """Everything that was found out, with one entry per case."""
    outcomes = Counter(r.outcome for r in results)
    both = [r for r in results if len({i.valid for i in r.case.instances}) == 2]
    data: dict[str, Any] = {
        "cases": len(results),
        "outcomes": {name: outcomes[name] for name in _ORDER if outcomes[name]},
        "clean": sum(outcomes[name] for name in _CLEAN),
        "with both kinds": len(both),
        "exact with both kinds": sum(r.outcome == "exact" for r in both),
        "instances": dict(Counter(_instance_verdicts(results))),
        "reasons": dict(Counter(_reason(r) for r in results if r.outcome == "refused")),
        "walks": {
            "ended": sum(r.reply.walked for r in results),
            "invalid": sum(len(r.reply.invalid) for r in results),
            "unjudged": sum(r.reply.unjudged for r in results),
        },
        "times": _times([r.reply for r in results]),
        "forced": _forced([r.reply for r in results]),
        "details": [_detail(r) for r in results],
    }
    return data


def as_text(data: dict[str, Any], *, listed: int = 20) -> str:
    """The report. `listed` bounds the lists of reasons and of wrong cases."""
    return "\n".join(_lines(data, listed))


def _lines(data: dict[str, Any], listed: int) -> Iterator[str]:
    total = data["cases"]
    for name, count in data["outcomes"].items():
        yield f"{name:>12} {count:6,}  {_percent(count, total)}"
    yield f"{'clean':>12} {data['clean']:6,}  {_percent(data['clean'], total)}   (exact or untested)"
    both = data["with both kinds"]
    if both:
        exact = data["exact with both kinds"]
        yield f"{'exact rate':>12} {exact:6,}  {_percent(exact, both)}   of {both:,} with both kinds"
    instances = data["instances"]
    shown = ", ".join(f"{count:,} {name}" for name, count in sorted(instances.items()))
    yield f"   instances {sum(instances.values()):6,}: {shown}"
    if data["walks"]["ended"]:
        walks = data["walks"]
        yield (
            f"       walks {walks['ended']:6,}: {walks['invalid']} invalid, "
            f"{walks['unjudged']} not judged"
        )
    yield from _time_lines(data)
    if data["reasons"]:
        yield "refused because"
        reasons = sorted(data["reasons"].items(), key=lambda e: (-e[1], e[0]))
        yield from (f"{count:6,}  {reason}" for reason, count in reasons[:listed])
        if len(reasons) > listed:
            yield f"        and {len(reasons) - listed:,} other reasons"
    for outcome in ("unsound", "incomplete", "error", "timeout", "crash"):
        wrong = [d for d in data["details"] if d["outcome"] == outcome]
        if wrong:
            yield outcome
            yield from (
                f"        {d['name']}: {'; '.join(d['wrong'])[:300]}" for d in wrong[:listed]
            )
        if len(wrong) > listed:
            yield f"        and {len(wrong) - listed:,} others"


def _time_lines(data: dict[str, Any]) -> Iterator[str]:
    for name, row in data["times"].items():
        cells = "  ".join(f"{key} {value:,.2f}" for key, value in row.items())
        yield f"{name:>12} {cells}"
    forced = data["forced"]
    if forced:
        yield (
            f"{'forced':>12} {forced['tokens']:,} of {forced['of']:,} tokens "
            f"({forced['share']:.1%}), {forced['strays']} of {forced['runs']:,} runs not canonical"
        )


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:5.1f} %" if total else "    -"


def _instance_verdicts(results: Iterable[Result]) -> Iterator[str]:
    for result in results:
        reply = result.reply
        if reply.fatal or (reply.refusal is not None and not reply.empty):
            yield from [reply.fatal or "refused"] * len(result.case.instances)
        else:
            yield from reply.verdicts


def _reason(result: Result) -> str:
    """A refusal without its numbers and all quoted words but the first, so that like ones count together."""
    reason = re.sub(r"\d[\d,.]*", "N", result.reply.refusal or "")
    first = True

    def keep_first(found: re.Match[str]) -> str:
        nonlocal first
        shown = found[0] if first and len(found[0]) < 40 else "'…'"
        first = False
        return shown

    return re.sub(r"'[^']*'", keep_first, reason)[:160]


def _detail(result: Result) -> dict[str, Any]:
    reply, instances = result.reply, result.case.instances
    wrong = [
        f"{verdict}: {instance.label or instance.text[:60]}"
        for verdict, instance in zip(reply.verdicts, instances, strict=False)
        if verdict != "pass"
    ]
    wrong += [f"invalid: {text}" for text in reply.invalid]
    if reply.refusal is not None:
        wrong.append(reply.refusal + (f" [at {reply.where}]" if reply.where else ""))
    return {
        "name": result.case.name,
        "outcome": result.outcome,
        "wrong": wrong,
        "ttfm_ms": round((reply.compiling + reply.first_mask) / 1e3, 3),
    }


def _times(replies: list[Reply]) -> dict[str, dict[str, float]]:
    """Milliseconds to the first mask; microseconds per mask and per commit."""
    done = [r for r in replies if r.refusal is None and r.fatal is None]
    rows = {
        "TTFM ms": [(r.compiling + r.first_mask) / 1e3 for r in done],
        "refusal ms": [r.compiling / 1e3 for r in replies if r.refusal is not None],
        "mask us": [t for r in done for t in r.masks],
        "commit us": [t for r in done for t in r.commits] if any(r.masks for r in done) else [],
    }
    table = {}
    for name, values in rows.items():
        if values:
            array = np.array(values)
            p50, p90, p99, p999 = np.percentile(array, [50, 90, 99, 99.9])
            table[name] = {
                "mean": float(array.mean()),
                "p50": float(p50),
                "p90": float(p90),
                "p99": float(p99),
                "p99.9": float(p999),
                "max": float(array.max()),
            }
    return table


def _forced(replies: list[Reply]) -> dict[str, Any]:
    tokens = sum(r.tokens for r in replies)
    if not tokens or not any(r.masks for r in replies):
        return {}
    forced = sum(r.forced for r in replies)
    return {
        "tokens": forced,
        "of": tokens,
        "share": forced / tokens,
        "runs": sum(r.runs for r in replies),
        "strays": sum(r.strays for r in replies),
    }
