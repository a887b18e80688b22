"""Keeping a call's reasoning apart: what a branch asks for, and the two sides of the text that comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from stolon.errors import InvalidRequest
from stolon.lang.calls import Call
from stolon.lang.ir import Expr, GenExpr, ReasoningExpr, SelectExpr
from stolon.lang.options import SamplingOptions
from stolon.lang.reasoning import Family, Side, Splitter, split_reasoning
from stolon.srt.protocol import Delta

REASONING = "_reasoning_content"
"""Ends the name of the variable that holds the reasoning of another one."""


@dataclass(frozen=True, slots=True)
class Marker(Expr):
    """A marker that the program writes in the model's place."""

    text: str


@dataclass(frozen=True, slots=True)
class Separation:
    """What is said on a branch of its own, so that the reasoning is no part of what follows.

    Attributes:
        exprs: what is asked for, in order; the last generation or selection has the answer.
        inside: the text begins in the reasoning.
        closing: what stands in the place of the reasoning before the answer.
    """

    family: Family
    exprs: tuple[Expr, ...]
    inside: bool
    closing: str

    def sides(self, calls: Sequence[Call]) -> tuple[Call, Call]:
        """(answer, reasoning) of the calls that `exprs` have become."""
        reasoning = Part(calls[0], "reasoning", self.family, inside=self.inside)
        if len(calls) > 1:
            return calls[-1], reasoning
        return Part(calls[0], "answer", self.family, inside=self.inside), reasoning


def separation(expr: ReasoningExpr, before: str, defaults: SamplingOptions) -> Separation | None:
    """How to ask for it after the known text `before`; None if the model has no reasoning to do there.

    The model's template may have begun the reasoning, or have ended it before it began.
    """
    inner, family = expr.inner, expr.family
    text = before.rstrip()
    if text.endswith((family.end, family.direct or family.end)):
        return None
    opened = text.endswith(family.start)
    inside = opened or family.begins_inside
    closing = f"\n{family.end}\n\n" if opened else ""
    if isinstance(inner, GenExpr) and inner.grammar is None:
        return Separation(family, (_kept(inner, family),), inside, closing)
    exprs: list[Expr] = [] if inside else [Marker(f"{family.start}\n")]
    exprs += [_reasoning_of(inner, family, defaults), Marker(f"{family.end}\n\n"), inner]
    return Separation(family, tuple(exprs), True, closing)


def _kept(expr: GenExpr, family: Family) -> GenExpr:
    if not family.special:
        return expr
    return replace(expr, options=replace(expr.options, skip_special_tokens=False))


def _reasoning_of(expr: GenExpr | SelectExpr, family: Family, defaults: SamplingOptions) -> GenExpr:
    """Free text up to the end of the reasoning. What ends the answer has no say in it."""
    options = expr.options if isinstance(expr, GenExpr) else SamplingOptions(seed=expr.seed)
    if isinstance(expr, GenExpr) and options.over(defaults).n not in (None, 1):
        raise InvalidRequest(
            "several samples under a constraint can't have their reasoning kept apart",
            param="n",
            hint="fork(n), and let each branch generate one",
        )
    free = replace(
        options,
        n=1,
        stop=(family.end,),
        stop_token_ids=(),
        stop_regex=(),
        min_tokens=0,
        ignore_eos=False,
        close_at_budget=False,
        logprob_start_len=-1,
        skip_special_tokens=not family.special,
    )
    name = None if expr.name is None else expr.name + REASONING
    return GenExpr(name=name, options=free)


class Part(Call):
    """One side of another call's text, filled in as that one is. All else is the other call's."""

    __slots__ = ("_family", "_inside", "_side", "_source", "_splitter")

    def __init__(self, source: Call, side: Side, family: Family, *, inside: bool) -> None:
        segment = source.segment
        if side == "reasoning" and source.name is not None:
            name = source.name.removesuffix(REASONING) + REASONING
            segment = msgspec.structs.replace(segment, name=name)
        super().__init__(
            segment,
            where=source.where,
            path=source.path,
            n=source.n,
            decode=source.decode if side == "answer" else None,
        )
        self._source = source
        self._side = side
        self._family = family
        self._inside = inside
        self._splitter = Splitter(family, inside=inside)
        source.parts = (*source.parts, self)

    def hear(self, delta: Delta) -> None:
        """What is new of this side in a piece of the other call. Tokens count where the piece ends."""
        reasoning, answer = self._splitter.feed(delta.text)
        text = answer if self._side == "answer" else reasoning
        ends_here = self._splitter.side == self._side
        if text or ends_here:
            here = (
                delta if ends_here else msgspec.structs.replace(delta, token_ids=[], logprobs=None)
            )
            super().hear(msgspec.structs.replace(here, text=text))

    def follow(self) -> None:
        """The other call is over, and so is this one."""
        source = self._source
        for sample, result in enumerate(source.results):
            if result is not None:
                reasoning, answer = split_reasoning(result.text, self._family, inside=self._inside)
                text = answer if self._side == "answer" else reasoning
                self.results[sample] = msgspec.structs.replace(result, text=text)
        self.request = source.request
        self.started_at = source.started_at
        self.settle(source.error)
