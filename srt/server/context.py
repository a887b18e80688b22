"""What the routes of one server share. Passed explicitly; there is no global."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request as HTTPRequest

from stolon.errors import ModelNotFound
from stolon.srt.client import EngineClient
from stolon.srt.server.answer import Answer, Job, Preparer
from stolon.srt.server.dispatch import Dispatcher
from stolon.srt.server.limits import ServerLimits
from stolon.srt.server.metrics import Metrics
from stolon.srt.server.monitor import EngineMonitor
from stolon.srt.server.prompts import Prompts

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ServerContext:
    """One server: its engine, its limits, its counters."""

    client: EngineClient
    served_name: str
    limits: ServerLimits
    metrics: Metrics
    dispatcher: Dispatcher
    monitor: EngineMonitor
    prompts: Prompts
    key_required: bool
    preparer: Preparer = field(default_factory=Preparer)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def build(
        cls, client: EngineClient, *, served_name: str, limits: ServerLimits, key_required: bool
    ) -> ServerContext:
        metrics = Metrics()
        return cls(
            client=client,
            served_name=served_name,
            limits=limits,
            metrics=metrics,
            dispatcher=Dispatcher(client, limits, metrics),
            monitor=EngineMonitor(client, window=limits.liveness_window),
            prompts=Prompts(client, limits),
            key_required=key_required,
        )

    def answer(self, request: HTTPRequest, kind: type[T], prepare: Callable[[T], Job]) -> Answer:
        """The response of a generating route."""
        return Answer(request, kind, prepare, self.dispatcher, self.preparer)

    def check_model(self, name: str | None) -> None:
        """Raise a 404 unless `name` is the served model; None means it."""
        if name is not None and name != self.served_name:
            raise ModelNotFound(f"The model {name!r} is not served here.", param="model")

    @property
    def fingerprint(self) -> str:
        """What the answers depend on besides the request."""
        return f"{self.served_name}@{self.client.info.weights_version}"


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex}"
