"""What a branch of a program says and asks for: an append-only record."""

from __future__ import annotations

from stolon.errors import InvalidRequest, StolonError
from stolon.lang.blocks import Block, Tail
from stolon.lang.calls import (
    Borrowed,
    BranchPath,
    Call,
    Item,
    Known,
    branch_name,
    calls_of,
)
from stolon.lang.history import History
from stolon.lang.ir import (
    Expr,
    ExprList,
    GenExpr,
    RoleBegin,
    RoleEnd,
    SelectExpr,
    TextExpr,
)
from stolon.lang.location import placed, program_line
from stolon.lang.roles import Conversation
from stolon.lang.run import ProgramRun
from stolon.lang.separation import Marker
from stolon.lang.splitting import split
from stolon.lang.variables import OpenScope, Span, Variables
from stolon.srt.protocol import Gen, Select
from stolon.srt.seeds import derive_seed


class Recording:
    """Records lazily: nothing is sent before the program reads something, forks, or ends.

    Attributes:
        path: (fork, child) pairs from the root.
        items: everything appended, in order: the branch's text.
        variables: plain values, and `Call`, `Sample`, `Span`, `Gathered` or `OpenScope`.
        chat: messages and the open role.
        head: the end of the last block sent; what follows is appended to its tokens.
        pending: the items after it.
    """

    __slots__ = (
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
        self.items = History()
        self.variables = Variables()
        self.chat = Conversation.of(run.client, run.options.chat_template)
        self.head: Tail | None = None
        self.pending: list[Item] = []
        self._generations = 0

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
            case Marker(text=text):
                self._add_text(text, special=True)
            case RoleBegin(role=role):
                for part in self.chat.default_system(role):
                    self._append(part, where)
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
        return derive_seed(self.run.seed, branch_name(self.path), self._generations, *what)

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
        return Call(segment, where=where, path=self.path, decode=expr.decode)

    def _generation(self, expr: GenExpr, where: str) -> Call:
        options = expr.options.over(self.run.options)
        seed = self._seed()
        stop = (*expr.extra_stop, *self.chat.stop())
        sampling = options.sampling(seed=seed, extra_stop=stop)
        sampling.validate(self.run.client.info.vocab_size)
        self._generations += 1
        segment = Gen(
            name=expr.name,
            sampling=sampling,
            grammar=expr.grammar,
            logprobs=options.logprobs(),
            heal=self._heal(),
        )
        return Call(
            segment,
            where=where,
            path=self.path,
            n=options.n or 1,
            decode=expr.decode,
            prompt_logprobs=options.prompt_logprobs(),
            spelled=options.return_text_in_logprobs is not False,
        )

    def _heal(self) -> bool:
        last = self.pending[-1] if self.pending else None
        return isinstance(last, Borrowed) or (isinstance(last, Known) and not last.special)

    def take_blocks(self) -> list[Block]:
        """Remove what is pending up to the last call, as blocks. The caller holds the lock."""
        blocks, self.pending = split(self.pending, self.head, self.path)
        if blocks:
            self.head = Tail(blocks[-1])
        return blocks

    # -- scopes ----------------------------------------------------------------------------------

    def open_scope(self, name: str) -> OpenScope:
        """Begin a `var_scope`; its variable can't be read until `close_scope`."""
        scope = OpenScope(name, len(self.items))
        self.variables[name] = scope
        return scope

    def close_scope(self, scope: OpenScope) -> None:
        """The variable becomes all text since `open_scope`."""
        self.variables[scope.name] = Span(tuple(self.items.since(scope.start)))

    # -- reading ---------------------------------------------------------------------------------

    def calls(self) -> list[Call]:
        """Every call that the branch's text depends on."""
        return calls_of(self.items)
