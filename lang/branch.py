"""One branch of a program: an append-only record of what it says and asks for."""

from __future__ import annotations

from typing import Any

from stolon.errors import InvalidRequest, StolonError
from stolon.lang.blocks import Block, split
from stolon.lang.calls import Borrowed, BranchPath, Call, Item, Known, calls_of
from stolon.lang.ir import Expr, ExprList, GenExpr, RoleBegin, RoleEnd, SelectExpr, TextExpr
from stolon.lang.location import placed, program_line
from stolon.lang.roles import Conversation, Turn
from stolon.lang.run import ProgramRun
from stolon.lang.variables import Gathered, OpenScope, Span
from stolon.srt.protocol import Gen, Select

_ABSENT = object()


class Branch:
    """Records lazily: nothing is sent before the program reads something, forks, or ends.

    Attributes:
        path: (fork, child) pairs from the root.
        items: everything appended, in order: the branch's text.
        variables: plain values, and `Call`, `Span`, `Gathered` or `OpenScope`.
        chat: messages and the open role.
        head: the last block sent; what follows is appended to its tokens.
        pending: the items after it.
    """

    __slots__ = (
        "_base_items",
        "_base_turns",
        "_base_variables",
        "_forks",
        "_generations",
        "chat",
        "head",
        "items",
        "path",
        "pending",
        "run",
        "variables",
    )

    def __init__(self, run: ProgramRun, path: BranchPath = ()) -> None:
        self.run = run
        self.path = path
        self.items: list[Item] = []
        self.variables: dict[str, Any] = {}
        self.chat = Conversation(run.client.chat_template)
        self.head: Block | None = None
        self.pending: list[Item] = []
        self._forks = 0
        self._generations = 0
        self._base_items = 0
        self._base_turns = 0
        self._base_variables: dict[str, Any] = {}

    # -- recording -------------------------------------------------------------------------------

    def append(self, expr: Expr) -> None:
        """Record an expression. Errors name the program line that appends it."""
        where = program_line()
        try:
            with self.run.lock:
                self._append(expr, where)
        except StolonError as error:
            error.where = placed(where, error.where)
            raise
        if self.run.streaming:
            self.run.changed.notify()

    def _append(self, expr: Expr, where: str) -> None:
        match expr:
            case TextExpr(text=text):
                self._add_text(text, special=False)
            case ExprList(parts=parts):
                for part in parts:
                    self._append(part, where)
            case GenExpr():
                self._add_call(self._generation(expr, where), expr.name)
            case SelectExpr():
                self._add_call(self._selection(expr, where), expr.name)
            case RoleBegin(role=role):
                self.chat, prefix = self.chat.begin(role, self.items)
                self._add_text(prefix, special=True)
            case RoleEnd(role=role):
                self.chat, suffix = self.chat.end(role, self.items)
                self._add_text(suffix, special=True)
            case _:
                raise InvalidRequest(f"{expr!r} can't be appended to a state")

    def _add_text(self, text: str, *, special: bool) -> None:
        if text:
            self._add(Known(text, special))

    def _add(self, item: Item) -> None:
        self.items.append(item)
        self.pending.append(item)

    def _add_call(self, call: Call, name: str | None) -> None:
        self._add(call)
        self.run.record(call, self)
        if name is not None:
            self.variables[name] = call

    def _seed(self, *what: str) -> int:
        # The sampler is the engine's; importing it here keeps programs that only build expressions
        # light.
        from stolon.srt.sampling.rng import derive_seed

        path = "/".join(f"{fork}.{child}" for fork, child in self.path)
        return derive_seed(self.run.seed, path, self._generations, *what)

    def _selection(self, expr: SelectExpr, where: str) -> Call:
        # Two selections after the same generation draw at different positions.
        segment = Select(
            choices=expr.choices,
            name=expr.name,
            method=expr.method,
            heal=self._heal(),
            temperature=expr.temperature,
            seed=self._seed("select") if expr.seed is None else expr.seed,
        )
        segment.validate()
        return Call(segment, where=where, path=self.path)

    def _generation(self, expr: GenExpr, where: str) -> Call:
        options = expr.options.over(self.run.options)
        seed = self._seed()
        sampling = options.sampling(seed=seed, extra_stop=expr.extra_stop)
        sampling.validate(self.run.client.info.vocab_size)
        self._generations += 1
        segment = Gen(
            name=expr.name,
            sampling=sampling,
            grammar=expr.grammar,
            logprobs=options.logprobs(),
            heal=self._heal(),
        )
        return Call(segment, where=where, path=self.path, n=options.n or 1, decode=expr.decode)

    def _heal(self) -> bool:
        last = self.pending[-1] if self.pending else None
        return isinstance(last, Borrowed) or (isinstance(last, Known) and not last.special)

    def take_blocks(self) -> list[Block]:
        """Remove what is pending up to the last call, as blocks. The caller holds the lock."""
        blocks, self.pending = split(self.pending, self.head)
        if blocks:
            self.head = blocks[-1]
        return blocks

    # -- scopes ----------------------------------------------------------------------------------

    def open_scope(self, name: str) -> OpenScope:
        """Begin a `var_scope`; its variable can't be read until `close_scope`."""
        scope = OpenScope(name, len(self.items))
        self.variables[name] = scope
        return scope

    def close_scope(self, scope: OpenScope) -> None:
        """The variable becomes all text since `open_scope`."""
        self.variables[scope.name] = Span(tuple(self.items[scope.start :]))

    # -- forks -----------------------------------------------------------------------------------

    def fork(self, size: int) -> list[Branch]:
        """Branches that go on from here. What this one has asked for so far is sent."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidRequest(
                f"fork() needs a positive number of branches, not {size!r}",
                where=program_line(),
            )
        with self.run.lock:
            if any(isinstance(item, Call) for item in self.pending):
                self.run.flush()
            children = [self._child((*self.path, (self._forks, index))) for index in range(size)]
            self._forks += 1
        return children

    def _child(self, path: BranchPath) -> Branch:
        child = Branch(self.run, path)
        child.items = self.items.copy()
        child.pending = self.pending.copy()
        # A scope belongs to the `with` of the branch that opened it.
        child.variables = {
            name: value
            for name, value in self.variables.items()
            if not isinstance(value, OpenScope)
        }
        child.chat = self.chat
        child.head = self.head
        child._base_items = len(self.items)
        child._base_turns = len(self.chat.turns)
        child._base_variables = child.variables.copy()
        return child

    def gather(self, children: list[Branch]) -> None:
        """Variables that a child has set since the fork become lists of all children's values."""
        with self.run.lock:
            names: dict[str, None] = {}
            for child in children:
                for name, value in child.variables.items():
                    if child._base_variables.get(name, _ABSENT) is not value:
                        names[name] = None
            for name in names:
                self.variables[name] = Gathered(
                    tuple(child.variables.get(name) for child in children)
                )
        self.run.changed.notify()

    def concatenate(self, children: list[Branch]) -> None:
        """Append what the children said since the fork, in child order, as literal text.

        Generated text of a child is tokenised anew here: it stands after other text than it did
            there.
        """
        with self.run.lock:
            if any(child.chat.open != self.chat.open for child in children):
                raise InvalidRequest(
                    "a branch that ends in another role than it began can't be concatenated",
                    where=program_line(),
                )
            turns: list[Turn] = []
            for child in children:
                for item in child.items[child._base_items :]:
                    self._add(_borrow(item))
                turns += [
                    Turn(turn.role, tuple(map(_borrow, turn.items)))
                    for turn in child.chat.turns[child._base_turns :]
                ]
            self.chat = self.chat.with_turns(turns)
        self.run.changed.notify()

    # -- reading ---------------------------------------------------------------------------------

    def calls(self) -> list[Call]:
        """Every call that the branch's text depends on."""
        return calls_of(self.items)


def _borrow(item: Item) -> Item:
    return Borrowed(item) if isinstance(item, Call) else item
