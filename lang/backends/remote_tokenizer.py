"""The tokenizer of a server. What tokens spell is fetched once and then known here; encoding is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from stolon.errors import BackendError
from stolon.lang.backends.http import HTTPClient
from stolon.lang.runtime_loop import refuse_on_loop, runtime_loop
from stolon.srt.client import TokenizerInfo
from stolon.srt.tokenizer import Tokenizer

MAX_VOCABULARY_BYTES = 64 << 20


class RemoteTokenizer(Tokenizer):
    """Decodes as the server does, with the bytes of its tokens.

    They are fetched before the first answer that has log-probs, or when they are first used. Thread-safe.
    """

    def __init__(self, info: TokenizerInfo, http: HTTPClient) -> None:
        self.vocab_size = info.vocab_size
        self.special_tokens = info.special_tokens
        self.special_ids = frozenset(info.special_tokens.values())
        self.bos_id = info.bos_id
        self.eos_ids = frozenset(info.eos_ids)
        self.add_bos = info.add_bos
        self.fingerprint = info.fingerprint
        self._http = http
        self._bytes: list[bytes] | None = None
        self._loading: asyncio.Task[list[bytes]] | None = None

    @property
    def token_bytes(self) -> Sequence[bytes]:  # type: ignore[override]
        if self._bytes is None:
            refuse_on_loop("asking a server how its tokens are spelled")
            runtime_loop().submit(self.load()).result()
        assert self._bytes is not None
        return self._bytes

    async def load(self) -> None:
        """Fetch the bytes of all tokens, once. Runs on the loop. Raises BackendError if they can't be had."""
        if self._bytes is not None:
            return
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._fetch())
        self._bytes = await asyncio.shield(self._loading)

    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], *, at_start: bool = False
    ) -> list[int]:
        refuse_on_loop("asking a server for tokens")
        body = {"parts": list(parts), "at_start": at_start}
        answer = runtime_loop().submit(self._http.json("POST", "/blocks/tokenize", body, kind=_Ids))
        ids: list[int] = answer.result().ids
        return ids

    async def _fetch(self) -> list[bytes]:
        table: list[bytes] = await self._http.json(
            "GET", "/blocks/vocabulary", kind=list[bytes], limit=MAX_VOCABULARY_BYTES
        )
        if len(table) != self.vocab_size:
            raise BackendError(
                f"{self._http.server} has {self.vocab_size} tokens and spells {len(table)} of them"
            )
        return table


class _Ids(msgspec.Struct):
    ids: list[int]
