"""Self-consistency: several lines of thought, the same question to each, and the majority answers.

    python examples/self_consistency.py "I have 3 boxes of 4 eggs. How many eggs?" --samples 8

After Wang et al., arXiv 2203.11171. `fork_samples` goes on from each sample with its exact tokens.
"""

from __future__ import annotations

import argparse
from collections import Counter

from _frame import frame

import stolon as sl

SHOT = (
    "Q: Ann has 2 bags of 5 apples. How many apples?\n"
    "A: Each bag has 5 apples, and 2 times 5 is 10. The answer is 10.\n\n"
)


@sl.function
def solve(s: sl.ProgramState, question: str, samples: int) -> Counter[int]:
    s += (
        SHOT
        + f"Q: {question}\nA:"
        + sl.gen("thought", n=samples, max_tokens=32, stop=[". The", "\n"])
    )
    branches = s.fork_samples("thought")
    branches += ". The answer is " + sl.gen("answer", regex=r"[0-9]{1,4}\.", temperature=0)
    s["thoughts"] = [(branch["thought"].strip(), int(branch["answer"][:-1])) for branch in branches]
    return Counter(answer for _, answer in s["thoughts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="Tom buys 3 packs of 4 pens. How many pens?")
    parser.add_argument("--samples", type=int, default=6)
    args = parser.parse_args()
    state = solve.run(args.question, args.samples, temperature=0.6, seed=1)
    for thought, answer in state["thoughts"]:
        print(f"{answer:>6}   {thought}")
    (answer, votes), *_ = state.ret_value.most_common()
    print(f"\nanswer {answer}, with {votes} of {args.samples} votes")


if __name__ == "__main__":
    with frame():
        main()
