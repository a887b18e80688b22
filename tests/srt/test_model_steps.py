"""However a sequence is cut into steps and whatever shares them, its logits are the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.op_cases import NATIVE_TABLES, REFERENCE
from support.stepper import Stepper
from support.tiny_models import tiny_model
from torch import Tensor

from stolon.errors import UnsupportedModel
from stolon.kernels import Ops, torch_cpu_ops
from stolon.srt.model_runner import ModelRunner
from stolon.srt.models import load_model

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
TABLES: dict[str, Ops] = {"reference": REFERENCE, "torch_cpu": torch_cpu_ops()} | NATIVE_TABLES
IDS = torch.randint(0, 288, (40,), generator=torch.Generator().manual_seed(3)).tolist()
OTHER = torch.randint(0, 288, (25,), generator=torch.Generator().manual_seed(4)).tolist()


def stepper(architecture: str, ops: Ops, *, consecutive: bool = False) -> Stepper:
    runner = ModelRunner(
        tiny_model(architecture), ops, num_slots=200, max_context=128, table_rows=8
    )
    return Stepper(runner, consecutive=consecutive)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=TABLES)
def ops(request: pytest.FixtureRequest) -> Ops:
    return TABLES[request.param]


@pytest.fixture
def wanted(architecture: str) -> Tensor:
    """Logits of IDS in one step on the reference in float32."""
    steps = stepper(architecture, REFERENCE)
    return steps.step([(steps.open(), IDS)])


def close(ops: Ops, got: Tensor, wanted: Tensor) -> None:
    assert got.dtype == torch.float32
    assert got.shape == wanted.shape
    if ops.dtype == torch.float32:
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    else:
        assert torch.cosine_similarity(got, wanted, dim=1).min() > 0.995
        assert (got - wanted).abs().max() < 0.3 * wanted.std()


def test_prompt_in_one_step(architecture: str, ops: Ops, wanted: Tensor) -> None:
    for consecutive in (False, True):
        steps = stepper(architecture, ops, consecutive=consecutive)
        close(ops, steps.step([(steps.open(), IDS)]), wanted)


def test_token_by_token(architecture: str, ops: Ops, wanted: Tensor) -> None:
    steps = stepper(architecture, ops)
    row = steps.open()
    close(ops, torch.cat([steps.step([(row, [token])]) for token in IDS]), wanted)


def test_chunks(architecture: str, ops: Ops, wanted: Tensor) -> None:
    steps = stepper(architecture, ops)
    row = steps.open()
    cuts = [0, 3, 4, 20, 33, 40]
    chunks = [steps.step([(row, IDS[a:b])]) for a, b in pairwise(cuts)]
    close(ops, torch.cat(chunks), wanted)


def test_company_changes_nothing(architecture: str, ops: Ops, wanted: Tensor) -> None:
    steps = stepper(architecture, ops)
    first, second, third = (steps.open() for _ in range(3))
    steps.step([(second, OTHER[:10]), (third, OTHER[:3])])
    got = [steps.step([(first, IDS[:30]), (second, OTHER[10:11]), (third, OTHER[3:9])])[:30]]
    for index in range(30, 40):
        rows = [(third, OTHER[index - 21 : index - 20]), (first, IDS[index : index + 1])]
        got.append(steps.step([*rows, (second, OTHER[index - 19 : index - 17])])[1:2])
    close(ops, torch.cat(got), wanted)


def test_shared_prefix(architecture: str, ops: Ops, wanted: Tensor) -> None:
    steps = stepper(architecture, ops)
    trunk = steps.open()
    head = steps.step([(trunk, IDS[:20])])
    left, right = (steps.open(share=(trunk, 20)) for _ in range(2))
    got = steps.step([(left, IDS[20:]), (right, OTHER)])[:20]
    close(ops, torch.cat((head, got)), wanted)


def test_rows_of_one_step_see_each_other(architecture: str, ops: Ops, wanted: Tensor) -> None:
    """A run may attend to slots that another run of the same step writes (a scored tree)."""
    steps = stepper(architecture, ops)
    trunk = steps.open()
    branch = steps.open(share=(trunk, 0))
    table = steps.runner.slot_table
    # The trunk takes the first 20 free slots of the step; the branch's context begins with those.
    table[branch, :20] = steps._free[:20]
    steps.lengths[branch] = 20
    close(ops, steps.step([(trunk, IDS[:20]), (branch, IDS[20:])]), wanted)


def test_wanted_rows_only(architecture: str, ops: Ops, wanted: Tensor) -> None:
    steps = stepper(architecture, ops)
    close(ops, steps.step([(steps.open(), IDS)], [39, 5]), wanted[[39, 5]])
    nothing = steps.step([(steps.open(), IDS)], [])
    assert nothing.shape == (0, 288)
    assert nothing.dtype == torch.float32


def test_greedy_text_is_not_degenerate(architecture: str) -> None:
    steps = stepper(architecture, REFERENCE)
    row = steps.open()
    logits, text = steps.step([(row, IDS[:4])], [3]), []
    for _ in range(40):
        text.append(int(logits.argmax()))
        logits = steps.step([(row, text[-1:])])
    assert len(set(text)) > 10


def test_sizes_and_context(ops: Ops) -> None:
    source = tiny_model("llama")
    runner = ModelRunner(source, ops, num_slots=10, max_context=10**6)
    assert runner.max_context == source.config.context_length
    assert runner.parameter_count == sum(
        source.tensor(name, torch.float32).numel() for name in source.names
    )
    assert runner.parameter_count * 2 <= runner.weight_bytes
    assert runner.kv.k[0].dtype == ops.dtype
    assert runner.kv_token_bytes == 2 * 2 * 2 * 16 * ops.dtype.itemsize


def test_unknown_architecture() -> None:
    source = tiny_model("llama")
    object.__setattr__(source.config, "architecture", "mamba")
    with pytest.raises(UnsupportedModel, match="'mamba' is not implemented"):
        load_model(source, REFERENCE, max_context=16)
