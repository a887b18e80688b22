"""Scoring the choices of a select: all of them in one extend over the trie of their tokens.

The context is computed once. Choices that begin alike share rows; a row is needed only for a trie node
that has children, because a row's logits score the tokens that follow it. A choice of one token therefore
costs nothing beyond the context's last row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stolon.srt.protocol import ChoiceScore, SelectMethod
from stolon.srt.sampling import BrokenLogits, Floats, log_totals
from stolon.srt.sampling.filters import draw

GROUP_ROWS = 128
"""Rows of trie scored in one step; bounds the memory for logits."""


@dataclass(slots=True)
class TrieRun:
    """A straight stretch of trie nodes, computed as one run.

    Attributes:
        tokens: tokens of the stretch; its first row is number `first_row` of the trie's rows.
        parent: index of the run it continues, -1 at the root.
        start: depth of its first token: tokens between the root and it.
    """

    parent: int
    start: int
    first_row: int
    tokens: list[int]


@dataclass(slots=True)
class _Node:
    row: int = -1
    children: dict[int, _Node] = field(default_factory=dict)


class ChoiceTrie:
    """The trie of some token paths, as runs.

    Attributes:
        runs: parents before children.
        rows: number of rows of all runs.
        paths: for each choice and each of its tokens, the row whose logits score it; -1 is the root's.
    """

    def __init__(self, choices: Iterable[list[int]]) -> None:
        choices = list(choices)
        root = _Node()
        for choice in choices:
            node = root
            for token in choice:
                node = node.children.setdefault(token, _Node())
        self.runs: list[TrieRun] = []
        self.rows = 0
        self._lay_out(root)
        self.paths: list[list[int]] = []
        for choice in choices:
            node, path = root, []
            for token in choice:
                path.append(node.row)
                node = node.children[token]
            self.paths.append(path)

    def _lay_out(self, root: _Node) -> None:
        todo = [(token, child, -1, 0) for token, child in root.children.items()]
        while todo:
            token, node, parent, start = todo.pop()
            if not node.children:
                continue
            run = TrieRun(parent, start, self.rows, [])
            self.runs.append(run)
            index = len(self.runs) - 1
            while True:
                node.row = self.rows
                self.rows += 1
                run.tokens.append(token)
                inner = [(t, child) for t, child in node.children.items() if child.children]
                if len(inner) != 1:
                    break
                token, node = inner[0]
            depth = start + len(run.tokens)
            todo.extend((t, child, index, depth) for t, child in inner)


@dataclass(slots=True)
class Group:
    """Choices scored in one step; `conditional` ones after the text so far, the others alone."""

    trie: ChoiceTrie
    members: list[int]
    conditional: bool


class Selection:
    """A SelectStep under way.

    Args:
        bos: beginning-of-sequence token that stands before a choice scored without context, if the model
            has one; without it the first token's unconditional log-prob counts as 0.
    """

    def __init__(self, choices: list[list[int]], method: SelectMethod, bos: int | None) -> None:
        self._choices = choices
        self._method = method
        self._bos = bos
        self._token_logprobs: dict[int, list[float]] = {}
        self._unconditional: dict[int, list[float]] = {}
        if bos is None:
            # The first token has no context, so a choice of one token needs no row.
            self._unconditional.update((i, [0.0]) for i, c in enumerate(choices) if len(c) == 1)
        self.root: Floats | None = None
        """``[vocab]``, logits after the context; set by the first step."""
        self._root_total = 0.0

    def take_root(self, logits: Floats, *, team: Any = None) -> None:
        """Take the logits ``[vocab]`` of the context's last row; they score choices of one token.

        `team` as in `sampling.sample`.
        """
        self.root = logits.copy()
        (self._root_total,) = log_totals(logits[None], team=team)
        for index, choice in enumerate(self._choices):
            if len(choice) == 1:
                self._token_logprobs[index] = [self._root_score(choice[0])]

    @property
    def done(self) -> bool:
        """Whether every choice has all its scores."""
        return len(self._token_logprobs) == len(self._choices) and (
            self._method != "unconditional_likelihood_normalized"
            or len(self._unconditional) == len(self._choices)
        )

    def next_group(self, max_rows: int, max_runs: int) -> Group | None:
        """The next choices to score; None when all are. A group of more than one choice has at most
        `max_rows` rows and `max_runs` runs."""
        remaining = [i for i in range(len(self._choices)) if i not in self._token_logprobs]
        conditional = bool(remaining)
        if not remaining and self._method == "unconditional_likelihood_normalized":
            remaining = [i for i in range(len(self._choices)) if i not in self._unconditional]
        if not remaining:
            return None
        paths = [self._path(i, conditional) for i in remaining]
        count = len(remaining)
        while True:
            trie = ChoiceTrie(paths[:count])
            if count == 1 or (trie.rows <= max_rows and len(trie.runs) <= max_runs):
                return Group(trie, remaining[:count], conditional)
            count = (count + 1) // 2

    def _path(self, index: int, conditional: bool) -> list[int]:
        choice = self._choices[index]
        return choice if conditional or self._bos is None else [self._bos, *choice]

    def record(self, group: Group, logits: Floats, *, team: Any = None) -> None:
        """Take the trie's logits, ``[group.trie.rows, vocab]``."""
        totals = log_totals(logits, team=team)
        for index, rows in zip(group.members, group.trie.paths, strict=True):
            path = self._path(index, group.conditional)
            scores = [
                self._score(logits, totals, row, token, group.conditional)
                for row, token in zip(rows, path, strict=True)
            ]
            if group.conditional:
                self._token_logprobs[index] = scores
            else:
                self._unconditional[index] = scores if self._bos is None else scores[1:]

    def _score(
        self, logits: Floats, totals: list[float], row: int, token: int, conditional: bool
    ) -> float:
        if row >= 0:
            return float(logits[row, token]) - totals[row]
        return self._root_score(token) if conditional else 0.0

    def _root_score(self, token: int) -> float:
        return 0.0 if self.root is None else float(self.root[token]) - self._root_total

    def result(
        self,
        texts: tuple[str, ...],
        *,
        temperature: float = 0.0,
        key: tuple[int, int] = (0, 0),
    ) -> tuple[int, list[ChoiceScore]]:
        """Index of the winner and the scores in the order of the choices.

        Args:
            texts: of the choices.
            temperature: 0 takes the best, the first among equals; else the winner is drawn.
            key: of the draw, from `sampling.draw_key`.

        Raises:
            BrokenLogits: the model gave NaN, with which nothing compares.
        """
        count = len(self._choices)
        tokens = [self._token_logprobs[i] for i in range(count)]
        means = [sum(row) / len(row) for row in tokens]
        if any(map(math.isnan, (*means, *map(sum, self._unconditional.values())))):
            raise BrokenLogits("the model gave a NaN logit, or nothing finite")
        if self._method == "unconditional_likelihood_normalized":
            normalized = [
                sum(a - b for a, b in zip(row, self._unconditional[i], strict=True)) / len(row)
                for i, row in enumerate(tokens)
            ]
        else:
            normalized = list(map(sum, tokens)) if self._method == "sum" else means
        winner = max(range(count), key=lambda i: (normalized[i], -i))
        if self._method == "greedy_token_selection":
            winner = _greedy(tokens, means)
        elif temperature > 0:
            scores_now = np.array(normalized)
            winner = draw(np.exp((scores_now - scores_now.max()) / temperature), None, key)
        scores = [
            ChoiceScore(
                text=texts[i],
                token_ids=self._choices[i],
                token_logprobs=tokens[i],
                logprob=sum(tokens[i]),
                normalized=normalized[i],
                unconditional=sum(self._unconditional[i]) if i in self._unconditional else None,
            )
            for i in range(count)
        ]
        return winner, scores


def _greedy(tokens: list[list[float]], means: list[float]) -> int:
    """Compare position by position and keep the maxima; a shorter choice is padded with its own mean."""
    alive = list(range(len(tokens)))
    for position in range(max(map(len, tokens))):
        values = {i: tokens[i][position] if position < len(tokens[i]) else means[i] for i in alive}
        best = max(values.values())
        alive = [i for i in alive if values[i] == best]
        if len(alive) == 1:
            break
    return alive[0]
