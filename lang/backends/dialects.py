"""What each server can do and how it wants it said, as data. `docs/backends.md` shows the same table.

A field of `protocol.Sampling` or a kind of constraint that a row does not name is one that the server does
not honour: asking for it is refused, never dropped. Names were taken from the servers' own sources or
documentation, in the version that a row says.
"""

from __future__ import annotations

from stolon.errors import InvalidRequest
from stolon.lang.backends.dialect import JSON_MODE, OPENAI, Dialect, Spelling, same
from stolon.lang.backends.dialects_servers import SERVERS

DIALECTS: dict[str, Dialect] = {
    "openai": Dialect(
        title="OpenAI",
        version="API of 2026",
        sampling=OPENAI,
        constraints=JSON_MODE,
        completion_constraints={},
        # max_tokens is refused by models that reason.
        max_tokens="max_completion_tokens",
        logprobs=("chat", "completions"),
        max_top=20,
        samples=True,
        stops=4,
        detected_by="the host api.openai.com, or Azure's",
    ),
    "compatible": Dialect(
        title="any other server with OpenAI's API",
        version="",
        sampling=OPENAI,
        # Many take them from the model's own settings where they are not sent.
        always=("temperature", "top_p"),
        constraints=JSON_MODE,
        completion_constraints={},
        logprobs=("chat", "completions"),
        max_top=20,
        detected_by="nothing else fits",
    ),
    **SERVERS,
    "anthropic": Dialect(
        title="Anthropic",
        version="2023-06-01",
        endpoints=("chat",),
        sampling=same("temperature", "top_p", "top_k", stop="stop_sequences"),
        # Structured outputs: Claude 4.5 and later; prefill: models before Claude 4.6.
        constraints={
            "json_schema": Spelling(
                "output_config.format.schema", "schema", around={"type": "json_schema"}
            )
        },
        prefill={},
    ),
    "litellm": Dialect(
        title="LiteLLM",
        version="1.x",
        endpoints=("chat",),
        sampling=OPENAI,
        constraints=JSON_MODE,
        logprobs=("chat",),
        max_top=20,
    ),
}


def dialect(name: str) -> Dialect:
    """The row of that name. Raises InvalidRequest that lists the names."""
    row = DIALECTS.get(name)
    if row is None:
        raise InvalidRequest(
            f"there is no dialect {name!r}",
            param="dialect",
            hint="one of " + ", ".join(DIALECTS),
        )
    return row
