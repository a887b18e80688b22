"""Putting an engine together from a model and a tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from stolon.constrained import GrammarCompiler, Vocabulary
from stolon.errors import InvalidRequest, ModelFileError
from stolon.kernels import Ops, default_ops, ops_by_name
from stolon.radix import KVCache, PrefixTree, SlotPool
from stolon.srt.admission import Admission
from stolon.srt.batching import Batcher
from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.compute_thread import ComputeThread
from stolon.srt.drafting import Drafter
from stolon.srt.generating import Generator
from stolon.srt.heads import Heads
from stolon.srt.heap import return_freed_memory
from stolon.srt.kv_space import KVSpace
from stolon.srt.logits_reader import LogitsReader
from stolon.srt.loop import EngineLoop
from stolon.srt.model_runner import ModelRunner, Runner
from stolon.srt.models.config import ModelConfig
from stolon.srt.protocol import Speculation
from stolon.srt.scheduler import Scheduler
from stolon.srt.tokenizer import Tokenizer
from stolon.srt.walker import Walker
from stolon.srt.weights import WeightSource

DEFAULT_RUNNING = 64
DEFAULT_STEP_TOKENS = 512
DEFAULT_KV_BYTES = 1 << 30
SELECT_ROWS = 64
"""Table rows for the branches of selections; how many branches of a trie one step can score."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine consists of. The loop is running already."""

    info: ModelInfo
    admission: Admission
    loop: EngineLoop


def choose_ops(dtype: str, kernels: str | None, threads: int | None) -> Ops:
    """The op table that the options of an engine mean. Raises InvalidRequest if they contradict."""
    if dtype not in ("auto", "bfloat16", "float32"):
        raise InvalidRequest(
            f"dtype {dtype!r} is not known", param="dtype", hint="auto, bfloat16 or float32"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    if kernels is None:
        return ops_by_name("reference") if dtype == "float32" else default_ops(threads)
    if not isinstance(kernels, str):
        raise InvalidRequest(
            f"kernels must be a name, not {type(kernels).__name__}", param="kernels"
        )
    ops = ops_by_name(kernels, threads)
    if dtype not in ("auto", str(ops.dtype).removeprefix("torch.")):
        raise InvalidRequest(
            f"the kernels {kernels!r} compute in {ops.dtype}, not in {dtype}",
            param="dtype",
            hint="leave out one of dtype and kernels",
        )
    return ops


def load_runner(
    source: WeightSource,
    ops: Ops,
    *,
    kv_tokens: int | None,
    context_length: int | None,
    max_running: int,
) -> ModelRunner:
    """Load the weights and reserve the cache; see Engine for the options."""
    config = source.config
    context = context_length or config.context_length
    if context > config.context_length:
        raise InvalidRequest(
            f"context_length {context} is longer than the model's own {config.context_length}",
            param="context_length",
        )
    slots = kv_tokens or _default_slots(config, context, ops.dtype)
    _check_memory(slots, config, ops.dtype)
    return ModelRunner(
        source,
        ops,
        num_slots=slots,
        max_context=min(context, slots),
        table_rows=max_running + SELECT_ROWS,
    )


def assemble(
    runner: Runner,
    tokenizer: Tokenizer,
    thread: ComputeThread,
    *,
    name: str,
    file: str | None,
    step_tokens: int,
    speculation: Speculation,
) -> Parts:
    """Build scheduler, batcher, walker, reader and loop around a runner, and start the loop in the thread.

    `file` is the own name of the model's file or folder, if there is one.
    """
    rows, context = runner.slot_table.shape
    if runner.vocab_size < tokenizer.vocab_size:
        raise ModelFileError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {runner.vocab_size}",
            hint="the tokenizer belongs to another model",
        )
    stats = EngineStats()
    pool = SlotPool(runner.num_slots)
    space = KVSpace(pool, PrefixTree(pool), runner.slot_table, spare_rows=SELECT_ROWS)
    scheduler = Scheduler(space, max_running=rows - SELECT_ROWS)
    # Elsewhere another shape of the batch may change the last bits of a logit, and so an output.
    drafter = Drafter(tokenizer.token_bytes, lookup=speculation == "auto" and runner.row_invariant)
    generator = Generator(tokenizer, stats, context_length=context)
    batcher = Batcher(
        scheduler,
        space,
        drafter=drafter,
        heads=Heads(generator, stats),
        step_tokens=step_tokens,
        bos=tokenizer.bos_id if tokenizer.add_bos else None,
    )
    padded = runner.vocab_size > tokenizer.vocab_size
    walker = Walker(generator, scheduler, space, stats, context_length=context, model=file or name)
    reader = LogitsReader(
        walker,
        generator,
        scheduler,
        space,
        stats,
        team=runner.team,
        columns=tokenizer.vocab_size if padded else None,
    )
    vocabulary = Vocabulary(
        tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.special_ids, tokenizer.encode
    )
    info = ModelInfo(
        name=name,
        architecture=runner.architecture,
        vocab_size=tokenizer.vocab_size,
        context_length=context,
        kv_slots=runner.num_slots,
        kv_token_bytes=runner.kv_token_bytes,
        dtype=runner.dtype,
        parameters=runner.parameter_count,
    )
    return_freed_memory()
    admission = Admission(tokenizer, GrammarCompiler(vocabulary), context_length=context)
    loop = EngineLoop(runner, scheduler, batcher, walker, reader, drafter, space, stats, thread)
    return Parts(info, admission, loop)


def _default_slots(config: ModelConfig, context: int, dtype: torch.dtype) -> int:
    """About DEFAULT_KV_BYTES worth of tokens, between one eighth of a context and two contexts."""
    per_token = KVCache.bytes_per_token(
        config.num_layers, config.num_kv_heads, config.head_dim, dtype
    )
    return max(min(2 * context, DEFAULT_KV_BYTES // per_token), context // 8, 1)


def _check_memory(slots: int, config: ModelConfig, dtype: torch.dtype) -> None:
    """Pages of the cache are only taken when they are first written: too large must be said now."""
    needed = slots * KVCache.bytes_per_token(
        config.num_layers, config.num_kv_heads, config.head_dim, dtype
    )
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise InvalidRequest(
            f"a KV cache of {slots} tokens takes {needed / 2**30:.1f} GiB; this machine has "
            f"{present / 2**30:.1f} GiB",
            param="kv_tokens",
        )
