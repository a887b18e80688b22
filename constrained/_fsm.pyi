"""C++: the trie of a vocabulary and automata over it. `fsm.portable` has the same in Python."""

import numpy as np
import numpy.typing as npt

class Trie:
    """The ordinary tokens of a vocabulary as a tree of bytes.

    `bytes` has all tokens one after the other, token i from `offsets[i]` to `offsets[i + 1]`; `use`
    is 1 for those that count.
    """

    longest: int
    def __init__(
        self,
        bytes: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.int64],
        use: npt.NDArray[np.uint8],
    ) -> None: ...
    def __len__(self) -> int: ...

class Automaton:
    """A program (`fsm.program`) as an automaton over bytes, built where it is walked.

    States are numbers. A result of -1 is no state: no text goes on so; -2: a limit was met. Thread-safe.
    `memory` is in bytes; `set_size` bounds the places that one state may stand for, `work` the steps
    of one call, about 20 a microsecond.
    """

    memory: int
    work: int
    def __init__(
        self,
        trie: Trie,
        start: int,
        code: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        nodes: npt.NDArray[np.int64],
        edges: npt.NDArray[np.int64],
        *,
        memory: int,
        set_size: int,
        work: int,
    ) -> None: ...
    def start(self) -> int: ...
    def advance(self, state: int, token: int, /) -> int: ...
    def advance_bytes(self, state: int, text: bytes, /) -> int: ...
    def accepting(self, state: int, /) -> bool: ...
    def closed(self, state: int, /) -> bool:
        """Whether no byte may follow."""

    def coarse(self, state: int, /) -> int:
        """A state with the same mask, the same one for many states."""

    def fill(self, state: int, row: npt.NDArray[np.int32], /) -> bool:
        """Set the bits of the tokens allowed, in a row of zeros. False at a limit."""

    def forced(self, state: int, limit: int, /) -> tuple[bytes, int]:
        """The bytes that must come next, at most `limit`, and the state after them."""

    def mergeable(self, state: int, tail: bytes, count: int, /) -> tuple[int, list[bytes]]:
        """The last place in `tail`, just written, before which its tokens are sure.

        No token crosses it, neither one of the tail nor one that goes on beyond it as the state
        allows. And up to `count` texts that tokens of the latter kind have beyond the tail, of up
        to six first bytes at each position.
        """

    def shortest(self, state: int, limit: int, /) -> list[int] | None:
        """The fewest tokens of a shortest text to an end, if it has at most `limit` bytes."""

    def __len__(self) -> int: ...
