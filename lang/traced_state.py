"""A state for tracing: what a program reads of it are placeholders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.calls import Call, Sample
from stolon.lang.group import ForkGroup
from stolon.lang.location import program_line
from stolon.lang.placeholders import Variable
from stolon.lang.state import ProgramState
from stolon.lang.traced_branch import TracedBranch
from stolon.lang.variables import Gathered, OpenScope, Span
from stolon.lang.waiting import variable_of


class TracedState(ProgramState):
    """A state whose reads give placeholders."""

    ret_value: Any = None

    @property
    def traced(self) -> TracedBranch:
        branch = self._branch
        assert isinstance(branch, TracedBranch)
        return branch

    def get_var(self, name: str) -> Any:
        self.traced.run.tracer.check()
        variable = variable_of(self._branch, name)
        found = self._placeholder(variable, name)
        if found is not variable:
            self.traced.read(name)
        return found

    def value(self, name: str) -> Any:
        return self.get_var(name)

    async def aget(self, name: str) -> Any:
        return self.get_var(name)

    async def avalue(self, name: str) -> Any:
        return self.get_var(name)

    def _placeholder(self, variable: Any, label: str) -> Any:
        if isinstance(variable, Gathered):
            values = enumerate(variable.values)
            return [self._placeholder(value, f"{label}[{i}]") for i, value in values]
        if isinstance(variable, Call) and variable.n > 1:
            return [Variable(self.traced.run.tracer, f"{label}[{i}]") for i in range(variable.n)]
        if isinstance(variable, OpenScope):
            raise InvalidRequest(
                f"variable {label!r} can't be read before its var_scope is closed",
                where=program_line(),
            )
        if isinstance(variable, Call | Sample | Span):
            return Variable(self.traced.run.tracer, label)
        return variable

    def get_meta_info(self, name: str) -> Any:
        self.traced.read(name)
        return Variable(self.traced.run.tracer, f"get_meta_info({name!r})")

    def scores(self, name: str) -> Any:
        self.traced.read(name)
        return Variable(self.traced.run.tracer, f"scores({name!r})")

    def text(self) -> Any:
        self.traced.read(None)
        return Variable(self.traced.run.tracer, "text()")

    def messages(self) -> Any:
        self.traced.read(None)
        return Variable(self.traced.run.tracer, "messages()")

    def text_iter(self, var_name: str | None = None) -> Iterator[Any]:
        self.traced.run.tracer.end("the program follows its own text as it arrives")

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        self.traced.run.tracer.end("the program follows its own text as it arrives")

    def sync(self) -> None:
        self.traced.read(None)

    async def async_sync(self) -> None:
        self.traced.read(None)

    def error(self) -> BaseException | None:
        self.traced.run.tracer.end("the program asks whether an error occurred")

    def fork(self, size: int = 1, position_ids_offset: None = None) -> ForkGroup:
        return self._traced_group(super().fork(size, position_ids_offset))

    def fork_samples(self, name: str) -> ForkGroup:
        return self._traced_group(super().fork_samples(name))

    def _traced_group(self, group: ForkGroup) -> ForkGroup:
        return ForkGroup(self, [TracedState(state._branch) for state in group])
