"""The classes of the C++ module `_fsm` in Python, for installations without a compiler.

They mean the same and take hundreds of times longer, milliseconds for a first mask; see `_fsm.pyi`
for the contract and the C++ for the reasons.
"""

from stolon.constrained.fsm.portable.automaton import Automaton
from stolon.constrained.fsm.portable.trie import Trie

__all__ = ["Automaton", "Trie"]
