"""What a program is known to do before it runs: its blocks, forks and joins, and what is constant.

Made by tracing (`Function.trace`, `Function.compile`). A plan says what is worth computing early; a run
always follows the program itself, so a plan can be incomplete but never changes an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stolon.srt.protocol import GrammarKind, GrammarSpec, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """Constant text between two holes or calls.

    Attributes:
        parts: the text as it is tokenised: what a chat template wrote is special.
        tokens: how many it has when tokenised alone; None where no engine was given.
        shared: a branch before this one, or the text before a fork, has it computed already.
    """

    parts: tuple[Text, ...]
    tokens: int | None = None
    shared: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Text that differs from run to run: an argument, or what was generated before."""

    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A `gen`; what it leaves open is as a run has it by default.

    Attributes:
        constraint: kind of its grammar.
        grammar: None also where an argument or value is part of it.
        heal: see `protocol.Gen`.
    """

    name: str | None
    where: str
    max_tokens: int | None = None
    n: int = 1
    constraint: GrammarKind | None = None
    grammar: GrammarSpec | None = None
    heal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A `select`."""

    name: str | None
    where: str
    choices: tuple[str, ...]


Segment = Literal | Hole | Generation | Selection


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """A straight run that is sent as one request. Without a call at its end it is never sent."""

    segments: tuple[Segment, ...]

    @property
    def sent(self) -> bool:
        return bool(self.segments) and isinstance(self.segments[-1], Generation | Selection)


@dataclass(frozen=True, slots=True)
class Read:
    """The program waits for a value here, which ends the blocks before it. None: for everything."""

    name: str | None
    where: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches that go on from here and run at the same time."""

    branches: tuple[PlannedBranch, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Join:
    """The results of a fork come back. `text`: their text is appended, not only their variables."""

    text: bool
    where: str


PlanStep = PlannedBlock | Read | Fork | Join


@dataclass(frozen=True, slots=True)
class PlannedBranch:
    """One branch, in program order."""

    steps: tuple[PlanStep, ...]


@dataclass(frozen=True, slots=True)
class TraceEnd:
    """Where tracing could not go on, and why."""

    where: str
    reason: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A traced program; prints as a tree.

    Attributes:
        program: its name.
        arguments: parameters that were left open: holes of the plan.
        given: parameters that were fixed, bound, or taken at their defaults.
        root: the program's own branch.
        programs: other programs that it runs on states of their own, by name.
        ended: where tracing ended before the program did; None if it saw all of it.
        prefix: the constant text that every run begins with.
        prefix_tokens: its tokens; None where no engine was given.
    """

    program: str
    arguments: tuple[str, ...]
    given: tuple[str, ...]
    root: PlannedBranch
    programs: tuple[tuple[str, PlannedBranch], ...] = ()
    ended: TraceEnd | None = None
    prefix: tuple[Text, ...] = ()
    prefix_tokens: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the program was seen to its end."""
        return self.ended is None

    @property
    def branches(self) -> tuple[PlannedBranch, ...]:
        """Every branch, in program order."""
        roots = (self.root, *(root for _, root in self.programs))
        return tuple(branch for root in roots for branch in _branches(root))

    @property
    def blocks(self) -> tuple[PlannedBlock, ...]:
        """Every block that becomes a request, branch by branch."""
        return tuple(
            step
            for branch in self.branches
            for step in branch.steps
            if isinstance(step, PlannedBlock) and step.sent
        )

    @property
    def prefill_tokens(self) -> int:
        """Tokens of literals that one run computes when nothing is cached; holes come on top."""
        return sum(
            segment.tokens or 0
            for block in self.blocks
            for segment in block.segments
            if isinstance(segment, Literal) and not segment.shared
        )

    @property
    def saved_tokens(self) -> int:
        """What sharing saves of them: every call would else compute all literals before it."""
        roots = (self.root, *(root for _, root in self.programs))
        return sum(_resent(root, 0) for root in roots) - self.prefill_tokens

    @property
    def last_node(self) -> Plan:
        """The plan itself: SGLang's tracer prints its graph from its last node."""
        return self

    def print_graph_dfs(self) -> str:
        """The tree as text."""
        return str(self)

    def print_graph(self) -> None:
        """Print the tree."""
        print(self)

    def _append_hint(self) -> str:
        return "append str(plan) to let the model read it"

    def __str__(self) -> str:
        from stolon.lang.plan_text import plan_text

        return plan_text(self)


def _branches(branch: PlannedBranch) -> Iterator[PlannedBranch]:
    yield branch
    for step in branch.steps:
        if isinstance(step, Fork):
            for child in step.branches:
                yield from _branches(child)


def _resent(branch: PlannedBranch, before: int) -> int:
    """Tokens of literals if each call sent all of them, `before` those that the branch begins with."""
    total = 0
    for step in branch.steps:
        if isinstance(step, PlannedBlock) and step.sent:
            for segment in step.segments:
                if isinstance(segment, Literal):
                    before += segment.tokens or 0
                elif isinstance(segment, Generation | Selection):
                    total += before
        elif isinstance(step, Fork):
            total += sum(_resent(child, before) for child in step.branches)
    return total
