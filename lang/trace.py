"""What a run did: every generation and selection, where its tokens came from, how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from stolon.lang.calls import BranchPath, Call, CallKind
from stolon.lang.run import ProgramRun
from stolon.srt.protocol import GenResult


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens by origin: found in the prefix cache, prefilled, forced by a grammar, sampled."""

    cached: int = 0
    computed: int = 0
    forced: int = 0
    sampled: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            self.cached + other.cached,
            self.computed + other.computed,
            self.forced + other.forced,
            self.sampled + other.sampled,
        )

    def __str__(self) -> str:
        return (
            f"cached {self.cached} · computed {self.computed} · "
            f"forced {self.forced} · generated {self.sampled}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """One generation or selection.

    Attributes:
        path: branch: (fork, child) pairs from the root.
        where: ``file.py:line`` that appended it.
        finish: ``stop``, ``length``, ``choice``, ``error`` or ``running``.
        tokens: of all samples together.
        started, seconds: when its turn came, relative to the run's first call, and how long until
            its value was there; None where that has not happened.
        queue_time, prefill_time, decode_time: seconds, as the engine reports them for sample 0.
    """

    name: str | None
    kind: CallKind
    path: BranchPath
    where: str
    finish: str
    samples: int
    tokens: TokenCounts
    started: float | None = None
    seconds: float | None = None
    queue_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of a run in program order; prints as a tree of branches."""

    program: str
    seed: int
    calls: tuple[CallTrace, ...]

    @classmethod
    def of(cls, run: ProgramRun) -> Trace:
        """A snapshot; calls that are not finished yet have finish ``running``."""
        calls = list(run.calls)
        origin = min((c.started_at for c in calls if c.started_at is not None), default=0.0)
        return cls(run.name, run.seed, tuple(_trace(call, origin) for call in calls))

    @property
    def totals(self) -> TokenCounts:
        """Tokens of all calls."""
        return sum((call.tokens for call in self.calls), TokenCounts())

    @property
    def seconds(self) -> float:
        """From the first request to the last value."""
        return max(((c.started or 0.0) + c.seconds for c in self.calls if c.seconds), default=0.0)

    @property
    def branches(self) -> int:
        """Branches that generated something, and those they come from."""
        return len(
            {call.path[:depth] for call in self.calls for depth in range(len(call.path) + 1)}
        )

    def _append_hint(self) -> str:
        return "append str(trace) to let the model read it"

    def __str__(self) -> str:
        lines = [
            f"{self.program}  {_count(len(self.calls), 'call')}, "
            f"{_count(self.branches, 'branch', 'branches')}, {self.seconds:.2f} s"
        ]
        lines += _tree(self.calls, (), "")
        lines.append(f"total: {self.totals}")
        return "\n".join(lines)


def _trace(call: Call, origin: float) -> CallTrace:
    tokens = TokenCounts()
    for result in call.results:
        if result is not None:
            usage = result.usage
            tokens += TokenCounts(
                usage.cached_tokens,
                usage.computed_tokens,
                usage.forced_tokens,
                usage.sampled_tokens,
            )
    first = call.results[0]
    if call.error is not None:
        finish = "error"
    elif not call.settled.done() or first is None:
        finish = "running"
    else:
        finish = first.finish.kind if isinstance(first, GenResult) else "choice"
    started = None if call.started_at is None else call.started_at - origin
    seconds = None
    if call.started_at is not None and call.done_at is not None:
        seconds = call.done_at - call.started_at
    return CallTrace(
        name=call.name,
        kind=call.kind,
        path=call.path,
        where=call.where,
        finish=finish,
        samples=call.n,
        tokens=tokens,
        started=started,
        seconds=seconds,
        queue_time=0.0 if first is None else first.usage.queue_time,
        prefill_time=0.0 if first is None else first.usage.prefill_time,
        decode_time=0.0 if first is None else first.usage.decode_time,
    )


def _tree(calls: tuple[CallTrace, ...], path: BranchPath, indent: str) -> list[str]:
    """Lines of a branch: its own calls, then its children."""
    depth = len(path)
    own = [call for call in calls if call.path == path]
    below = [call for call in calls if call.path[:depth] == path and len(call.path) > depth]
    children = list(dict.fromkeys(call.path[: depth + 1] for call in below))
    entries: list[tuple[str, BranchPath | None]] = [(_line(call), None) for call in own]
    entries += [(f"fork {child[-1][0]} [{child[-1][1]}]", child) for child in children]
    lines = []
    for index, (label, branch) in enumerate(entries):
        last = index == len(entries) - 1
        lines.append(indent + ("└─ " if last else "├─ ") + label)
        if branch is not None:
            lines += _tree(tuple(below), branch, indent + ("   " if last else "│  "))
    return lines


def _line(call: CallTrace) -> str:
    name = call.name or "(unnamed)"
    samples = f" ×{call.samples}" if call.samples > 1 else ""
    seconds = "" if call.seconds is None else f"  {call.seconds:.2f} s"
    return f"{call.kind} {name}{samples}  {call.tokens}  {call.finish}{seconds}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
