"""Extraction with llama.cpp, as its server does it: slots that are filled again as they fall free, the common
prefix of the prompts computed once, and tokens tried against the grammar before the whole vocabulary is.

It lies beside llama_cpp_worker.py and runs in the same Python.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp
import numpy as np

SLOTS = 32

_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)], align=True)


class Picker:
    """The likeliest token that a grammar allows; the grammar moves on with it."""

    def __init__(self, vocab: Any, grammar: str) -> None:
        self.sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        if not self.sampler:
            raise RuntimeError("llama.cpp can't read the grammar of the schema")

    def pick(self, logits: np.ndarray) -> int:
        best = int(logits.argmax())
        if not self._allowed(np.array([best]), logits)[0]:
            allowed = self._allowed(np.arange(len(logits)), logits)
            best = int(np.where(allowed, logits, -np.inf).argmax())
        llama_cpp.llama_sampler_accept(self.sampler, best)
        return best

    def _allowed(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        data = np.zeros(len(ids), _DATA)
        data["id"], data["logit"] = ids, logits[ids]
        array = llama_cpp.llama_token_data_array(
            data=data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data)),
            size=len(ids),
            selected=-1,
            sorted=False,
        )
        llama_cpp.llama_sampler_apply(self.sampler, ctypes.byref(array))
        return np.asarray(data["logit"] > -np.inf)

    def free(self) -> None:
        llama_cpp.llama_sampler_free(self.sampler)


def extract(
    model: Any, context: Any, prompts: list[list[int]], schema: str, max_tokens: int
) -> dict[str, Any]:
    """Seconds for a JSON text under the schema after each prompt, from an empty cache.

    Args:
        context: a llama_cpp_worker.Context of SLOTS + 1 sequences with a unified buffer.
    """
    vocab = llama_cpp.llama_model_get_vocab(model)
    grammar = llama_cpp.LlamaGrammar.from_json_schema(schema, verbose=False)._grammar
    shared = _common_prefix(prompts)
    out: list[list[int]] = [[] for _ in prompts]
    waiting = list(range(len(prompts)))
    # Slot to (document, picker, next position); the last sequence keeps what all have in common.
    slots: dict[int, tuple[int, Picker, int]] = {}
    context.clear()
    start = time.perf_counter()
    context.put([(token, i, SLOTS, False) for i, token in enumerate(prompts[0][:shared])])
    while waiting or slots:
        rows: list[tuple[int, int, int, bool]] = []
        for slot in range(SLOTS):
            if slot in slots:
                document, picker, position = slots[slot]
                rows.append((out[document][-1], position, slot, True))
                slots[slot] = document, picker, position + 1
            elif waiting:
                document = waiting.pop(0)
                llama_cpp.llama_memory_seq_rm(context.memory, slot, -1, -1)
                llama_cpp.llama_memory_seq_cp(context.memory, SLOTS, slot, 0, shared)
                own = prompts[document][shared:]
                rows += [(t, shared + i, slot, i == len(own) - 1) for i, t in enumerate(own)]
                slots[slot] = document, Picker(vocab, grammar), shared + len(own)
        context.put(rows)
        logits = context.logits(sum(row[3] for row in rows))
        for row, slot in enumerate(row[2] for row in rows if row[3]):
            document, picker, _ = slots[slot]
            token = picker.pick(logits[row])
            ended = llama_cpp.llama_vocab_is_eog(vocab, token)
            if not ended:
                out[document].append(token)
            if ended or len(out[document]) == max_tokens:
                picker.free()
                del slots[slot]
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "texts": [_text(vocab, ids) for ids in out]}


def _common_prefix(prompts: list[list[int]]) -> int:
    shortest = min(map(len, prompts)) - 1
    same = (len({ids[i] for ids in prompts}) == 1 for i in range(shortest))
    return next((i for i, equal in enumerate(same) if not equal), shortest)


def _text(vocab: Any, ids: list[int]) -> str:
    buffer = ctypes.create_string_buffer(256)
    parts = []
    for token in ids:
        size = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, False)
        parts.append(buffer.raw[:size])
    return b"".join(parts).decode("utf-8", "replace")
