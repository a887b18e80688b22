"""Plans as text: a tree of branches, blocks and segments."""

from __future__ import annotations

from collections.abc import Sequence

from stolon.lang.plan import (
    Fork,
    Generation,
    Hole,
    Join,
    Literal,
    Plan,
    PlannedBlock,
    PlannedBranch,
    PlanStep,
    Read,
    Segment,
    Selection,
)

_TEXT_WIDTH = 48
_MAX_CHOICES = 4


def plan_text(plan: Plan) -> str:
    """The plan as a tree, and below it what is constant and what a run has to compute."""
    lines = [f"{plan.program}({', '.join(plan.arguments)})"]
    if plan.given:
        lines[0] += f"  with {', '.join(plan.given)}"
    lines += _branch(plan.root, "")
    for name, root in plan.programs:
        lines.append(f"{name}, run on its own")
        lines += _branch(root, "")
    if plan.ended is not None:
        lines.append(f"traced up to {plan.ended.where}: {plan.ended.reason}")
        if plan.ended.hint:
            lines.append(f"  ({plan.ended.hint})")
    lines += _totals(plan)
    return "\n".join(lines)


def _totals(plan: Plan) -> list[str]:
    if plan.prefix_tokens is None:
        return [
            "constant from the start: " + (_quoted(_joined(plan)) if plan.prefix else "nothing")
        ]
    open_ended = " + arguments and values" if _has_holes(plan) else ""
    lines = [
        f"constant from the start: {plan.prefix_tokens} tokens",
        f"prefill of a run: {plan.prefill_tokens} tokens{open_ended}",
    ]
    if plan.saved_tokens > 0:
        lines.append(f"saved by sharing: {plan.saved_tokens} tokens, were each call sent its text")
    return lines


def _joined(plan: Plan) -> str:
    return "".join(part.text for part in plan.prefix)


def _has_holes(plan: Plan) -> bool:
    return any(isinstance(segment, Hole) for block in plan.blocks for segment in block.segments)


def _branch(branch: PlannedBranch, indent: str) -> list[str]:
    lines: list[str] = []
    number = 0
    for position, step in enumerate(branch.steps):
        last = position == len(branch.steps) - 1
        number += isinstance(step, PlannedBlock) and step.sent
        inner = indent + ("   " if last else "│  ")
        lines.append(indent + ("└─ " if last else "├─ ") + _title(step, number))
        if isinstance(step, PlannedBlock):
            lines += [inner + line for line in _table([_columns(part) for part in step.segments])]
        elif isinstance(step, Fork):
            for index, child in enumerate(step.branches):
                final = index == len(step.branches) - 1
                lines.append(inner + ("└─ " if final else "├─ ") + f"[{index}]")
                lines += _branch(child, inner + ("   " if final else "│  "))
    return lines


def _title(step: PlanStep, number: int) -> str:
    match step:
        case PlannedBlock():
            return f"block {number}" if step.sent else "text, not sent: no call follows it"
        case Read(name=name, where=where):
            return f"waits for {name or 'everything'}  {where}"
        case Fork(branches=branches, where=where):
            return f"fork of {len(branches)}  {where}"
        case Join(text=text, where=where):
            return f"join of {'texts' if text else 'variables'}  {where}"


def _columns(segment: Segment) -> tuple[str, str, str]:
    """What a segment is, its size, and where it stands."""
    match segment:
        case Literal():
            size = "" if segment.tokens is None else f"{segment.tokens} tokens"
            return _quoted(segment.text), size + (" shared" if segment.shared else ""), ""
        case Hole(label=label):
            return "{" + label + "}", "", ""
        case Generation():
            facts = [] if segment.max_tokens is None else [f"up to {segment.max_tokens} tokens"]
            facts += [f"{segment.n} samples"] if segment.n > 1 else []
            facts += [segment.constraint] if segment.constraint else []
            return f"gen {segment.name or ''}".rstrip(), ", ".join(facts), segment.where
        case Selection():
            shown = ", ".join(map(repr, segment.choices[:_MAX_CHOICES]))
            if len(segment.choices) > _MAX_CHOICES:
                shown += ", …"
            facts = [f"{len(segment.choices)} choices"]
            return f"select {segment.name or ''} {_cut(shown)}", facts[0], segment.where


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(2)] if rows else [0, 0]
    return [
        f"{what.ljust(widths[0])}  {size.ljust(widths[1])}  {where}".rstrip()
        for what, size, where in rows
    ]


def _quoted(text: str) -> str:
    """A literal on one line; of a long one its two ends, where the differences are."""
    if len(text) > _TEXT_WIDTH:
        half = _TEXT_WIDTH // 2
        return f"{text[:half]!r} … {text[-half:]!r}"
    return repr(text)


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_WIDTH else text[: _TEXT_WIDTH - 1] + "…"
