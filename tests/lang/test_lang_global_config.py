"""The fields of `global_config`: what they change, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.small_programs import scored

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang import backend as backends


@pytest.fixture
def config() -> Iterator[Any]:
    given = backends._default
    before = dict(vars(sl.global_config))
    yield sl.global_config
    backends._default = given
    for name, value in before.items():
        setattr(sl.global_config, name, value)


def test_the_listed_fields_and_their_values(config: Any) -> None:
    assert vars(config) == {
        "verbosity": 0,
        "skip_special_tokens_in_output": True,
        "spaces_between_special_tokens_in_out": True,
        "enable_precache_with_tracing": True,
        "enable_parallel_encoding": True,
    }
    for wrong, value in (("verbosity", True), ("verbosity", "2"), ("enable_parallel_encoding", 1)):
        with pytest.raises(InvalidRequest, match=wrong) as error:
            setattr(config, wrong, value)
        assert str(error.value.where).startswith("test_lang_global_config.py:")
    with pytest.raises(
        InvalidRequest, match="has no 'verbosty'; it has default_backend, verbosity"
    ):
        config.verbosty = 2
    config.enable_parallel_encoding = False


def test_the_default_backend_is_that_of_set_default_backend(config: Any) -> None:
    backend = FakeEngine()
    config.default_backend = backend
    assert config.default_backend is backend
    assert scored.run()["x"] == "ok"
    sl.set_default_backend(None)
    assert config.default_backend is None


def test_special_tokens_in_output(config: Any) -> None:
    config.skip_special_tokens_in_output = False
    backend = FakeEngine()
    scored.run(backend=backend)
    assert not backend.gen("x").sampling.skip_special_tokens
    backend = FakeEngine()
    scored.run(backend=backend, skip_special_tokens=True)
    assert backend.gen("x").sampling.skip_special_tokens


def test_verbosity_prints_the_text_of_a_run(
    config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    @sl.function
    async def coroutine(s):
        s += "async " + sl.gen("x")

    scored.run(backend=FakeEngine())
    assert capsys.readouterr().out == ""
    config.verbosity = 2
    scored.run(backend=FakeEngine())
    coroutine.run(backend=FakeEngine())
    assert capsys.readouterr().out == "once uponok\nasync ok\n"
