"""Judges one case in this process: compile, walk the instances, draw texts."""

from __future__ import annotations

import json
import random
import time

from stolon.constrained.check.cases import Case, Instance, Reply, Setup, Verdict
from stolon.constrained.check.walks import Oracle, walk
from stolon.constrained.compiler import GrammarCompiler
from stolon.constrained.matching import Grammar
from stolon.constrained.schema.bundle import bundle
from stolon.constrained.spec import GrammarSpec
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import GrammarError, UnsatisfiableGrammar

__all__ = ["Judge"]


class Judge:
    """Judges cases over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, setup: Setup) -> None:
        self._vocabulary = vocabulary
        self._setup = setup
        self._compiler = GrammarCompiler(vocabulary, cache_entries=1)
        # The first use of a vocabulary prepares it, for each tier its own way; that belongs to no case.
        for spec in (GrammarSpec(kind="json_object"), GrammarSpec(kind="regex", text="a")):
            self._compiler.compile(spec).start().mask()

    def judge(self, case: Case) -> Reply:
        """Compile a case and judge its instances. Only faults of ours raise."""
        reply = Reply()
        begun = time.perf_counter()
        try:
            spec = self._spec(case)
            begun = time.perf_counter()
            grammar = self._compiler.compile(spec)
            reply.compiling = _since(begun)
        except GrammarError as error:
            reply.compiling = _since(begun)
            reply.refusal, reply.where = error.message, error.where
            if isinstance(error, UnsatisfiableGrammar):
                reply.empty = True
                reply.verdicts = ["incomplete" if i.valid else "pass" for i in case.instances]
            return reply
        begun = time.perf_counter()
        start = grammar.start()
        start.mask()
        reply.first_mask = _since(begun)
        if case.kind == "json_schema" and start.accepting:
            reply.invalid.append("")  # no JSON text is empty
        reply.verdicts = [self._instance(grammar, i, reply) for i in case.instances]
        if self._setup.walks and case.kind == "json_schema":
            self._walk(grammar, case, reply)
        return reply

    def _spec(self, case: Case) -> GrammarSpec:
        if case.kind == "regex":
            return GrammarSpec(kind="regex", text=case.pattern)
        schema = case.schema
        if case.draft or self._setup.documents:
            schema = bundle(schema, draft=case.draft, documents=self._setup.documents).document
        return GrammarSpec(
            kind="json_schema",
            text=json.dumps(schema, ensure_ascii=False),
            whitespace=self._setup.whitespace,
        )

    def _instance(self, grammar: Grammar, instance: Instance, reply: Reply) -> Verdict:
        """Walk one text through the grammar, token by token."""
        matcher = grammar.start()
        ids = self._vocabulary.tokenizer.tokenize_str(instance.text)
        accepted = allowed = True
        next_run = 0
        forced = runs = strays = 0
        for at, token in enumerate(ids):
            if self._setup.masks:
                if at >= next_run:
                    run = matcher.forced()
                    runs += bool(run)
                    if run and run == ids[at : at + len(run)]:
                        forced += len(run)
                        next_run = at + len(run)
                    elif run:
                        strays += 1
                begun = time.perf_counter()
                allowed = matcher.mask().allows(token)
                reply.masks.append(_since(begun))
            begun = time.perf_counter()
            accepted = matcher.accept(token)
            reply.commits.append(_since(begun))
            if self._setup.masks:
                if allowed and not accepted:
                    return "error"
                # Where bytes are forced a mask may allow their canonical token alone, although
                # others that spell the same bytes would be taken. What is generated obeys the mask.
                accepted = allowed
            if not accepted:
                break
        if matcher.error is not None:
            return "error"
        accepted = accepted and matcher.accepting
        if accepted and instance.valid:
            reply.tokens += len(ids)
            reply.forced += forced
            reply.runs += runs
            reply.strays += strays
        if accepted == instance.valid:
            return "pass"
        return "unsound" if accepted else "incomplete"

    def _walk(self, grammar: Grammar, case: Case, reply: Reply) -> None:
        """Draw texts from the masks and have them validated."""
        oracle = Oracle(case.schema, case.draft, self._setup.documents)
        for number in range(self._setup.walks):
            rng = random.Random(f"{self._setup.seed} {case.name} {number}")
            text = walk(grammar, self._vocabulary, rng)
            if text is None:
                continue
            reply.walked += 1
            verdict = oracle.judge(text)
            if verdict is None:
                reply.unjudged += 1
            elif not verdict and len(reply.invalid) < 3:
                reply.invalid.append(text.decode(errors="replace")[:300])


def _since(begun: float) -> float:
    return round((time.perf_counter() - begun) * 1e6, 2)
