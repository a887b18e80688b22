"""A conversation of two turns, printed as it is written.

python examples/chat.py "What is a stolon?" "Which other plants do that?"
"""

from __future__ import annotations

import sys

from _frame import frame

import stolon as sl

QUESTIONS = ("Name two fruits that grow on trees.", "And one that grows on the ground?")


@sl.function
def chat(s: sl.ProgramState, first: str, second: str) -> None:
    s += sl.system("You answer in one short sentence.")
    s += sl.user(first) + sl.assistant(sl.gen("first", max_tokens=48, stop="\n"))
    s += sl.user(second) + sl.assistant(sl.gen("second", max_tokens=48, stop="\n"))


def main() -> None:
    questions = tuple(sys.argv[1:3])
    questions += QUESTIONS[len(questions) :]
    state = chat.run(*questions, stream=True, temperature=0.3, seed=1)
    for name, question in zip(("first", "second"), questions, strict=True):
        print(f"> {question}")
        for piece in state.text_iter(name):
            print(piece, end="", flush=True)
        print("\n")
    print(state.trace)


if __name__ == "__main__":
    with frame():
        main()
