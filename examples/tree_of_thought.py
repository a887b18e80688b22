"""Tree of thought: every plan grows branches, the model judges them, and only the best go on.

    python examples/tree_of_thought.py "How can a small shop sell more books?"

Each level forks the branches that are left. What they have in common is computed once and never copied.
"""

from __future__ import annotations

import argparse

from _frame import frame

import stolon as sl


def grow(branch: sl.ProgramState, depth: int) -> sl.ProgramState:
    """One more step, and how likely the model finds it that the step is a good one."""
    branch += f"\nStep {depth + 1}:" + sl.gen(f"step {depth}", max_tokens=32, stop=["\n", ". "])
    with branch.copy() as judge:  # what the judge is asked is not part of the plan
        judge += "\nThat step is" + sl.select("verdict", [" useful", " useless"])
        branch["judge"] = judge
    return branch


def merit(branch: sl.ProgramState) -> float:
    scores = branch["judge"].scores("verdict")
    return scores[" useful"] - scores[" useless"]


@sl.function
def tree(s: sl.ProgramState, question: str, width: int, keep: int, depth: int) -> list[list[str]]:
    s += f"A plan in {depth} short steps.\nQuestion: {question}"
    level = [s]
    for step in range(depth):
        grown = [grow(branch, step) for parent in level for branch in parent.fork(width)]
        level = sorted(grown, key=merit, reverse=True)[:keep]  # reading waits, and all run at once
        for branch in grown:
            if branch not in level:
                branch.cancel()
    return [[branch[f"step {i}"].strip() for i in range(depth)] for branch in level]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="How do I plant strawberries?")
    parser.add_argument("--width", type=int, default=3, help="branches of each branch")
    parser.add_argument("--keep", type=int, default=2, help="branches that go on")
    parser.add_argument("--depth", type=int, default=2, help="steps of a plan")
    args = parser.parse_args()
    state = tree.run(**vars(args), temperature=0.8, seed=3)
    for number, plan in enumerate(state.ret_value, start=1):
        print(f"plan {number}")
        for step in plan:
            print(f"  - {step}")
    totals = state.trace.totals
    print(f"\n{len(state.trace.calls)} calls; {totals}")


if __name__ == "__main__":
    with frame():
        main()
