"""Whole models on the native kernels: however a sequence is cut into steps and whatever runs beside it,
its logits are the same bit for bit (promise P1)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.op_cases import ISAS, REFERENCE
from support.quantised_models import quantised_model
from support.stepper import Stepper
from support.tiny_models import tiny_model
from torch import Tensor

from stolon.kernels import native_ops
from stolon.srt.model_runner import ModelRunner

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
LENGTH = 300
GENERATOR = torch.Generator().manual_seed(3)
IDS = torch.randint(0, 288, (LENGTH,), generator=GENERATOR).tolist()
OTHER = torch.randint(0, 288, (LENGTH,), generator=GENERATOR).tolist()


class Model:
    """Steppers over one model; a runner of its own for each number of threads."""

    def __init__(self, architecture: str, isa: str, *, quantised: bool) -> None:
        self._isa = isa
        make = quantised_model if quantised else tiny_model
        self.source = make(architecture)  # type: ignore[arg-type]
        self._runners: dict[int, ModelRunner] = {}
        self.wanted = self.steps().step([(0, IDS)])

    def steps(self, threads: int = 2, *, consecutive: bool = False, opened: int = 1) -> Stepper:
        if threads not in self._runners:
            self._runners[threads] = ModelRunner(
                self.source,
                native_ops(threads, self._isa),
                num_slots=4096,
                max_context=512,
                table_rows=80,
            )
        steps = Stepper(self._runners[threads], consecutive=consecutive)
        for _ in range(opened):
            steps.open()
        return steps


@pytest.fixture(scope="module", params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["float", "quantised"])
def quantised(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "quantised")


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, isa: str, quantised: bool) -> Model:
    return Model(request.param, isa, quantised=quantised)


def same(got: Tensor, wanted: Tensor) -> None:
    assert torch.equal(got, wanted)


def test_close_to_the_reference(model: Model) -> None:
    runner = ModelRunner(model.source, REFERENCE, num_slots=512, max_context=512, table_rows=2)
    steps = Stepper(runner)
    wanted = steps.step([(steps.open(), IDS)])
    # Weights at random amplify rounding; this is the least like of many rows.
    assert torch.cosine_similarity(model.wanted, wanted, dim=1).min() > 0.98
    assert (model.wanted - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_and_slots(model: Model, threads: int) -> None:
    for consecutive in (False, True):
        steps = model.steps(threads, consecutive=consecutive, opened=7)
        same(steps.step([(6, IDS)]), model.wanted)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 33, 64, 100, 128, 200, 255])
def test_chunks(model: Model, size: int) -> None:
    steps = model.steps()
    cuts = [*range(0, LENGTH if size > 2 else 60, size)]
    cuts.append(LENGTH if size > 2 else 60)
    chunks = [steps.step([(0, IDS[a:b])]) for a, b in pairwise(cuts) if a < b]
    same(torch.cat(chunks), model.wanted[: cuts[-1]])


def test_every_batch_size(model: Model) -> None:
    """Decode rows of one sequence in steps of 1 to 64 others."""
    steps = model.steps(opened=65)
    steps.step([(row, OTHER[row : row + 3 + row % 40]) for row in range(1, 65)])
    got = [steps.step([(0, IDS[:100])])]
    for others in range(64):
        at = 100 + others
        rows = [(row, [OTHER[(at + row) % LENGTH]]) for row in range(1, others + 1)]
        place = (5 * others) % (others + 1)
        rows.insert(place, (0, IDS[at : at + 1]))
        got.append(steps.step(rows)[place : place + 1])
    same(torch.cat(got), model.wanted[:164])


@pytest.mark.parametrize("length", [1, 60, 128, 200, 290])
def test_a_shared_prefix(model: Model, length: int) -> None:
    steps = model.steps(opened=1)
    head = steps.step([(0, IDS[:length])])
    branches = [steps.open(share=(0, length)) for _ in range(20)]
    runs = [(row, OTHER[row : row + 1 + row % 5]) for row in branches[1:]]
    first = steps.step([(branches[0], IDS[length : length + 1]), *runs])[:1]
    rows = [(row, [OTHER[row]]) for row in branches[1:]]
    got = [head, first]
    for at in range(length + 1, min(length + 6, LENGTH)):
        got.append(steps.step([*rows, (branches[0], IDS[at : at + 1])])[-1:])
    rest = (
        steps.step([(branches[0], IDS[min(length + 6, LENGTH) :])]) if length + 6 < LENGTH else None
    )
    got += [] if rest is None else [rest]
    same(torch.cat(got), model.wanted)


def test_prompts_beside_decodes(model: Model) -> None:
    steps = model.steps(opened=4)
    steps.step([(1, OTHER[:150]), (2, OTHER[3:5])])
    got = [steps.step([(1, OTHER[150:151]), (0, IDS[:200]), (2, OTHER[5:100])])[1:201]]
    got.append(steps.step([(3, OTHER[:40]), (1, OTHER[151:152]), (0, IDS[200:])])[41:])
    same(torch.cat(got), model.wanted)


def test_wanted_rows_only(model: Model) -> None:
    steps = model.steps(opened=2)
    same(steps.step([(0, IDS)], [LENGTH - 1, 5]), model.wanted[[LENGTH - 1, 5]])
    assert steps.step([(1, IDS[:7])], []).shape == (0, 288)
    same(steps.step([(1, IDS[7:9])]), model.wanted[7:9])
