"""Tracing: what a program does is found without running it, up to where nobody could know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.plan import (
    Fork,
    Generation,
    Hole,
    Join,
    Literal,
    Plan,
    PlannedBlock,
    PlannedBranch,
    Read,
    Selection,
)


def shape(branch: PlannedBranch | Plan) -> list[Any]:
    """Steps in short: blocks as lists of segments, forks as tuples of branches."""
    steps: list[Any] = []
    for step in (branch.root if isinstance(branch, Plan) else branch).steps:
        if isinstance(step, PlannedBlock):
            steps.append([_short(segment) for segment in step.segments])
        elif isinstance(step, Fork):
            steps.append(tuple(shape(child) for child in step.branches))
        elif isinstance(step, Join):
            steps.append("join texts" if step.text else "join")
        elif isinstance(step, Read):
            steps.append(f"read {step.name}")
    return steps


def _short(segment: Any) -> str:
    if isinstance(segment, Literal):
        return segment.text
    if isinstance(segment, Hole):
        return "{" + segment.label + "}"
    return ("<" if isinstance(segment, Generation) else "?") + (segment.name or "")


def test_a_straight_program_is_seen_to_its_end() -> None:
    @sl.function
    def few_shot(s, question):
        s += "Q: one? A: 1\n"
        s += "Q: " + question + "\nA:" + sl.gen("answer", stop="\n", max_tokens=7)
        s += " Sure? " + sl.select("sure", ["yes", "no"]) + " end"

    plan = few_shot.trace()
    assert shape(plan) == [
        ["Q: one? A: 1\nQ: ", "{question}", "\nA:", "<answer", " Sure? ", "?sure"],
        [" end"],
    ]
    assert plan.complete
    assert plan.arguments == ("question",)
    assert "".join(part.text for part in plan.prefix) == "Q: one? A: 1\nQ: "
    (block,) = plan.blocks
    generation, selection = block.segments[3], block.segments[5]
    assert isinstance(generation, Generation)
    assert generation.max_tokens == 7
    assert generation.where.startswith("test_lang_compile_trace.py:")
    assert isinstance(selection, Selection)
    assert selection.choices == ("yes", "no")
    assert plan.last_node.print_graph_dfs() == str(plan)


def test_nothing_is_sent() -> None:
    @sl.function
    def program(s):
        s += "a" + sl.gen("x")
        s += s["x"]
        other.run(backend=engine)
        other(s)

    @sl.function
    def other(s):
        s += "b" + sl.gen("y")

    engine = FakeEngine()
    plan = program.trace(backend=engine)
    assert shape(plan) == [["a", "<x"], "read x", ["{x}", "b", "<y"]]
    assert [(name, shape(root)) for name, root in plan.programs] == [("other", [["b", "<y"]])]
    assert engine.requests == []


@sl.function
def asks(s, word):
    s += f"about {word}: " + sl.gen("x")


def test_an_argument_in_a_text_hides_where_it_stands() -> None:
    with pytest.raises(TypeError, match=r"'word' is put in an f-string.*trace\(word=...\)"):
        asks.trace()
    assert shape(asks.trace(word="cats")) == [["about cats: ", "<x"]]
    assert asks.trace(word="cats").given == ("word='cats'",)
    assert shape(asks.bind(word="dogs").trace()) == [["about dogs: ", "<x"]]
    with pytest.raises(TypeError, match="did you mean 'word'"):
        asks.trace(wort="x")


def test_compile_sees_through_texts() -> None:
    @sl.function
    def program(s, a, b):
        s += f"{a.title} and {b!s}" + " of %s" % a[0] + str(b) + sl.gen(f"x_{a}")  # noqa: UP031
        s += f"{[a, {'k': b}]}"
        s += f"said: {s['y'] if 'y' in s else b.upper()}"
        s += sl.gen("z", regex=f"{a}+") + sl.select("c", [f"{b}!", "no"])

    plan = program.compile(FakeEngine()).plan
    assert plan.complete
    first, second = plan.blocks[0].segments[:7], plan.blocks[0].segments[7:]
    assert [_short(s) for s in first] == [
        "{a.title}",
        " and ",
        "{b}",
        " of ",
        "{a[0]}",
        "{b}",
        "<x_{a}",
    ]
    assert [_short(s) for s in second] == [
        "[",
        "{a}",
        ", {'k': ",
        "{b}",
        "}]said: ",
        "{b.upper()}",
        "<z",
        "?c",
    ]
    assert second[-2].constraint == "regex"  # type: ignore[union-attr]
    assert second[-2].grammar is None  # type: ignore[union-attr]
    assert second[-1].choices == ("{b}!", "no")  # type: ignore[union-attr]
    assert "gen x_{a}" in str(plan)


ENDS: dict[str, tuple[Any, str]] = {
    "truth": (lambda s, a: a and None, "decides"),
    "comparison": (lambda s, a: a == "x", "is compared"),
    "order": (lambda s, a: a > 3, "is compared"),
    "length": (lambda s, a: len(a), "measured by len"),
    "loop": (lambda s, a: [x for x in a], "iterated over"),  # noqa: C416
    "number": (lambda s, a: int(a), "made a number"),
    "float": (lambda s, a: float(a), "made a number"),
    "range": (lambda s, a: range(a), "used as a number"),
    "in": (lambda s, a: "x" in a, "is searched"),
    "dictionary": (lambda s, a: {}.get(a), "looked up"),
    "call": (lambda s, a: a(s), "is called"),
    "method": (lambda s, a: a.split(), "is called"),
    "attribute of text": (lambda s, a: a.upper().encode(), "is called"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_needs_the_value_ends_the_trace(name: str) -> None:
    use, reason = ENDS[name]

    @sl.function
    def program(s, a):
        s += "before" + sl.gen("x")
        use(s, a)
        s += "after"

    plan = program.compile(FakeEngine()).plan
    assert shape(plan) == [["before", "<x"]]
    assert plan.ended is not None
    assert reason in plan.ended.reason
    assert plan.ended.where.startswith("test_lang_compile_trace.py:")
    assert "bind(a=...)" in str(plan.ended.hint)
    assert f"traced up to {plan.ended.where}" in str(plan)
    with pytest.raises(TypeError, match=reason):
        program.trace()

    @sl.function
    def reads(s):
        s += "before" + sl.gen("x")
        use(s, s["x"])
        s += "after"

    traced = reads.trace()  # a value that is generated is no mistake of the caller
    assert shape(traced) == [["before", "<x"], "read x"]
    assert traced.ended is not None
    assert "is generated" in str(traced.ended.hint)


def test_an_end_can_not_be_swallowed() -> None:
    @sl.function
    def program(s, a):
        s += "one" + sl.gen("x")
        try:
            if a:
                s += "never"
        except BaseException:
            pass
        with s.user():
            s += "two" + sl.gen("y")

    assert shape(program.compile(FakeEngine()).plan) == [["one", "<x"]]
    with pytest.raises(TypeError, match="decides"):
        program.trace()


def test_an_exception_of_the_body_ends_it_too() -> None:
    @sl.function
    def program(s, a):
        s += "one" + sl.gen("x")
        s += sl.gen("y", max_tokens=a)

    plan = program.compile(FakeEngine()).plan
    assert shape(plan) == [["one", "<x"]]
    assert plan.ended is not None
    assert "max_tokens must be an integer, not {a}" in plan.ended.reason

    @sl.function
    def wrong(s):
        s += "one"
        raise ValueError("mine")

    ended = wrong.compile(FakeEngine()).plan.ended
    assert ended is not None
    assert ended.reason == "ValueError: mine"
    assert ended.where.startswith("test_lang_compile_trace.py:")
    with pytest.raises(ValueError, match="mine"):
        wrong.trace()


def test_a_loop_without_end_comes_to_one() -> None:
    @sl.function
    def program(s):
        while True:
            s += "again"

    ended = program.trace().ended
    assert ended is not None
    assert "expressions were recorded" in ended.reason


def test_every_construct_is_traced() -> None:
    @sl.function
    def inner(s, x):
        s += "in " + x + sl.gen("deep")
        return s["deep"]

    @sl.function
    def program(s, a):
        s += sl.system("Sys") + sl.user(a)
        with s.assistant(), s.var_scope("scope"):
            s += sl.gen("g")
        s += s["scope"]
        forks = s.fork(2)
        forks += lambda i: f"v{i}" + sl.gen("v")
        forks.join()
        s += s["v"][1]
        with s.copy() as c:
            c += "c" + sl.gen("c")
        s += "r:" + inner(s, a)
        texts = s.fork(2)
        texts += ["t", "u"]
        texts.join("concate_and_append")
        s += sl.gen("n", n=2)
        for sample in s.fork_samples("n"):
            sample += "s" + sl.gen("last")
        s["plain"] = 3
        assert s["plain"] == 3
        s += s.text() + s.scores("x")["best"]

    plan = program.trace(backend=FakeEngine(chat_template=tiny_chat_template()))
    start, end = "<|im_start|>", "<|im_end|>\n"
    system, assistant = f"{start}system\nSys{end}{start}user\n", f"{end}{start}assistant\n"
    assert shape(plan) == [
        [system, "{a}", assistant, "<g"],
        "read scope",
        ([[end, "{scope}", "v0", "<v"]], [[end, "{scope}", "v1", "<v"]]),
        "join",
        "read v",
        ([[end, "{scope}", "{v[1]}", "c", "<c"]],),
        "join",
        [end, "{scope}", "{v[1]}", "in ", "{a}", "<deep"],
        "read deep",
        ([["r:", "{deep}", "t"]], [["r:", "{deep}", "u"]]),
        "join texts",
        ["r:", "{deep}", "tu", "<n"],
        ([["s", "<last"]], [["s", "<last"]]),
        "read None",
        "read x",
        ["{text()}", "{scores('x')['best']}"],
    ]


def test_reasoning_is_traced() -> None:
    @sl.function
    def program(s):
        s += "q" + sl.separate_reasoning(sl.gen("a"), model_type="deepseek-r1")
        s += s["a"]

    plan = program.trace(backend=FakeEngine())
    assert plan.complete
    assert "<a" in str(shape(plan))


def test_async_programs_too() -> None:
    @sl.function
    async def child(s, x):
        s += "child " + x + sl.gen("c")
        return await s.aget("c")

    @sl.function
    async def program(s, a):
        s += "a" + sl.gen("x")
        x = await s.aget("x")
        first, _ = await asyncio.gather(child.arun(x=x), child.arun(x=a))
        await asyncio.sleep(0)
        s += first.ret_value + await child(s, a)
        await s.async_sync()
        if await s.avalue("x"):
            s += "never"

    plan = program.trace()
    assert shape(plan)[:2] == [["a", "<x"], "read x"]
    assert [shape(root) for _, root in plan.programs] == [
        [["child ", "{x}", "<c"], "read c"],
        [["child ", "{a}", "<c"], "read c"],
    ]
    assert plan.ended is not None

    async def inside() -> None:  # also where a loop runs already
        assert program.trace() == plan

    asyncio.run(inside())


def test_what_can_not_be_traced_ends_it() -> None:
    @sl.function
    def batch(s):
        s += "a" + sl.gen("x")
        asks.run_batch([{"word": "b"}], backend=FakeEngine())

    @sl.function
    def follows(s):
        s += "a" + sl.gen("x")
        for piece in s.text_iter("x"):
            s += piece

    @sl.function
    def checks(s):
        s += "a" + sl.gen("x")
        if s.error():
            s += "never"

    for program in (batch, follows, checks):
        plan = program.trace()
        assert shape(plan) == [["a", "<x"]]
        assert plan.ended is not None


def test_a_program_that_is_bound_and_defaults_are_constants() -> None:
    @sl.function
    def program(s, shots, question, *rest, language="English", **more):
        for i in range(shots):
            s += f"{language} {i}. "
        s += question + sl.gen("x")

    plan = program.bind(shots=2).trace()
    assert shape(plan) == [["English 0. English 1. ", "{question}", "<x"]]
    assert plan.given == ("shots=2", "language='English'")


def test_tokens_are_counted_once() -> None:
    engine = FakeEngine()

    @sl.function
    def program(s):
        s += "x" * 10 + sl.gen("a")
        s += "y" * 5
        branches = s.fork(2)
        branches += lambda i: "z" * 3 + sl.gen("b")

    plan = program.trace(backend=engine)
    assert plan.prefix_tokens == 10
    # Both branches begin with the y's; the second one finds them.
    assert plan.prefill_tokens == 10 + 5 + 3 + 3
    assert plan.saved_tokens == (10 + 18 + 18) - 21
    text = str(plan)
    assert "constant from the start: 10 tokens" in text
    assert "saved by sharing: 25 tokens" in text
    assert "5 tokens shared" in text


def test_a_plan_is_no_text_of_a_program() -> None:
    @sl.function
    def program(s):
        s += asks.trace(word="x")

    with pytest.raises(InvalidRequest, match=r"str\(plan\)"):
        program.run(backend=FakeEngine())
