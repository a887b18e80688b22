"""What one HTTP request, and all of them together, may ask of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Explicit bounds of the HTTP side. Times in seconds, sizes in bytes.

    Attributes:
        max_body_bytes: larger bodies are answered 413 without being read to the end.
        max_json_depth: deepest nesting of arrays and objects in a body.
        max_json_containers: most arrays and objects in a body.
        max_messages: most messages in a chat.
        max_prompts: most prompts in one completion request.
        max_sequences: most prompts times n in one request.
        max_queued: requests, waiting or running, whose answer has not begun; one more is answered
            429. An answer that is not streamed begins when it is finished.
        retry_after: what a client that was turned away is told to wait.
        keep_alive: a stream that is silent for this long gets a comment line.
        liveness_window: with work to do, the engine must advance within this time to count as live.
        drain_timeout: how long a stopping server lets running requests finish.
    """

    max_body_bytes: int = 32 * 1024 * 1024
    max_json_depth: int = 64
    max_json_containers: int = 200_000
    max_messages: int = 2048
    max_prompts: int = 1024
    max_sequences: int = 1024
    max_queued: int = 1024
    retry_after: float = 1.0
    keep_alive: float = 15.0
    liveness_window: float = 30.0
    drain_timeout: float = 10.0
