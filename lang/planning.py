"""From a program to its plan: what it is traced with, and what becomes of the record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from stolon.lang.blocks import Block
from stolon.lang.calls import Call, Item, Known
from stolon.lang.placeholders import Argument
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
from stolon.lang.traced_branch import Forked, Joined, PlaceholderItem, Recorded, TracedBranch
from stolon.lang.tracer import Tracer
from stolon.lang.tracing import Tracing
from stolon.srt.client import EngineClient, ModelInfo
from stolon.srt.protocol import Select, Text
from stolon.srt.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stolon.lang.program import Function

Count = Callable[[Sequence[Text]], int | None]


def token_counter(tokenizer: Tokenizer | None) -> Count:
    """Counts the tokens of literals; without a tokenizer they have none that are known."""
    if tokenizer is None:
        return lambda parts: None
    return lambda parts: len(tokenizer.encode_parts([(part.text, part.special) for part in parts]))


def joined_parts(items: Iterable[Known]) -> tuple[Text, ...]:
    """The text of items as few parts: neighbours of one kind are tokenised as one text anyway."""
    parts: list[Text] = []
    for item in items:
        if parts and parts[-1].special == item.special:
            parts[-1] = Text(parts[-1].text + item.text, item.special)
        else:
            parts.append(Text(item.text, item.special))
    return tuple(parts)


class Planner:
    """Turns branches into their plans, in program order: what several of them send is counted once."""

    def __init__(self, count: Count, tracer: Tracer) -> None:
        self._count = count
        self._tracer = tracer
        self._sent: set[int] = set()  # ids of items; the branches keep them alive

    def branch(self, branch: TracedBranch) -> PlannedBranch:
        """The plan of a branch and of those forked from it."""
        steps = [self._step(entry) for entry in branch.record]
        if any(id(item) not in self._sent for item in branch.pending):
            steps.append(PlannedBlock(self._segments(branch.pending)))
        return PlannedBranch(tuple(steps))

    def _step(self, entry: Recorded) -> PlanStep:
        match entry:
            case Block(items=items):
                return PlannedBlock(self._segments(items))
            case Forked(branches=branches, where=where):
                return Fork(tuple(map(self.branch, branches)), where)
            case Joined(text=text, where=where):
                return Join(text, where)
        return Read(entry.name, entry.where)

    def _segments(self, items: Sequence[Item]) -> tuple[Segment, ...]:
        segments: list[Segment] = []
        run: list[Known] = []

        def close() -> None:
            if run:
                parts = joined_parts(run)
                segments.append(Literal(parts=parts, tokens=self._count(parts), shared=shared))
                run.clear()

        shared = False
        for item in items:
            if isinstance(item, Known) and not isinstance(item, PlaceholderItem):
                if shared != (id(item) in self._sent):
                    close()
                    shared = not shared
                run.append(item)
            else:
                close()
                segments.append(self._open_segment(item))
            self._sent.add(id(item))
        close()
        return tuple(segments)

    def _open_segment(self, item: Item) -> Segment:
        """A segment that is no constant text."""
        shown = self._tracer.shown
        if isinstance(item, Known):
            return Hole(label=shown(item.text))
        if not isinstance(item, Call):
            return Hole(label=shown(item.call.name or "text of a call"))
        segment = item.segment
        name = segment.name and shown(segment.name)
        if isinstance(segment, Select):
            choices = tuple(map(shown, segment.choices))
            return Selection(name=name, where=item.where, choices=choices)
        grammar = segment.grammar
        return Generation(
            name=name,
            where=item.where,
            max_tokens=segment.sampling.max_tokens,
            n=item.n,
            constraint=None if grammar is None else grammar.kind,
            grammar=None if grammar is None or shown(grammar.text) != grammar.text else grammar,
            heal=segment.heal,
        )


def plan_program(
    function: Function,
    client: EngineClient | None,
    given: Mapping[str, Any],
    *,
    strict: bool,
) -> Plan:
    """Trace a program for an engine, or for none: then no tokens are counted, and roles are plain words.

    Args:
        given: values of some of its arguments; the others are placeholders, or their defaults.
        strict: raise what the body raises, and TypeError where an argument is asked for its text.
    """
    tracing = Tracing(client or cast(EngineClient, _NoEngine()), strict=strict)
    values, open_names = _arguments(function, tracing, given)
    places = [p for p in function.signature.parameters.values() if p.kind is p.POSITIONAL_ONLY]
    args = tuple(values.pop(p.name) for p in places if p.name in values)
    shown = [f"{name}={_short(value)}" for name, value in (function.bound | values).items()]
    fixed = [text for text in shown if text.partition("=")[0] not in open_names]
    call = function.bind_call(args, values)
    tracing.trace(function.name, call, is_async=function.is_async)
    planner = Planner(token_counter(None if client is None else client.tokenizer), tracing)
    roots = [(name, planner.branch(branch)) for name, branch in tracing.roots]
    prefix = joined_parts(tracing.roots[0][1].prefix)
    return Plan(
        program=function.name,
        arguments=tuple(open_names),
        given=tuple(fixed),
        root=roots[0][1],
        programs=tuple(roots[1:]),
        ended=tracing.ended,
        prefix=prefix,
        prefix_tokens=None if client is None else _prompt_tokens(prefix, client.tokenizer),
    )


def _arguments(
    function: Function, asked: Tracing, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """What the body is called with, without what is bound, and the names of the placeholders in it."""
    values = dict(given)
    open_names: list[str] = []
    for parameter in list(function.signature.parameters.values())[1:]:
        name = parameter.name
        if name in function.bound or name in given or parameter.kind in _VARIADIC:
            continue
        if parameter.default is not parameter.empty:
            values[name] = parameter.default
        else:
            values[name] = Argument(asked, name)
            open_names.append(name)
    return values, open_names


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _prompt_tokens(prefix: Sequence[Text], tokenizer: Tokenizer) -> int:
    """Its tokens at the beginning of a sequence."""
    if not prefix:
        return 0
    parts = [(part.text, part.special) for part in prefix]
    ids = tokenizer.encode_parts(parts, at_start=True)
    return len(ids) + (tokenizer.add_bos and ids[:1] != [tokenizer.bos_id])


class _NoEngine:
    """What tracing needs of an engine where there is none."""

    chat_template = None
    info = ModelInfo(
        name="no engine",
        architecture="none",
        vocab_size=2**31 - 1,
        context_length=0,
        kv_slots=0,
        dtype="none",
        parameters=0,
    )
