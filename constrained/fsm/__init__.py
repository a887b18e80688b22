"""Regular grammars by automata of our own: from regex trees to masks, forced runs and endings."""

from stolon.constrained.fsm.grammar import FsmGrammar, FsmMatcher, compile_fsm

__all__ = ["FsmGrammar", "FsmMatcher", "compile_fsm"]
