"""Regular grammars by automata of our own: from regex trees to masks, forced runs and endings."""

from stolon.constrained.fsm.grammar import FsmGrammar, compile_fsm
from stolon.constrained.fsm.matcher import FsmMatcher

__all__ = ["FsmGrammar", "FsmMatcher", "compile_fsm"]
