"""Random lives of sequences, against a model that knows all cached prefixes and slot contents."""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from stolon.radix import PrefixTree, SlotPool

NUM_SLOTS = 60
# Few symbols and few beginnings, so that paths share prefixes and edges are split often.
heads = st.sampled_from([(), (0, 0, 0, 0, 0, 0), (0, 0, 0, 1, 1, 1), (1, 2, 1, 2)])
tails = st.lists(st.integers(0, 1), max_size=8).map(tuple)
paths = st.tuples(heads, tails, st.integers(0, 14)).map(lambda p: (p[0] + p[1])[: p[2]])
namespaces = st.sampled_from(["a", ("b", 2)])


class TreeMachine(RuleBasedStateMachine):
    """`cached` is the set of (namespace, prefix) in the tree; `content` what each slot holds."""

    live = Bundle("live")
    leases = Bundle("leases")
    pins = Bundle("pins")

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(SlotPool(NUM_SLOTS))
        self.cached: set = set()
        self.content: list = [None] * NUM_SLOTS
        self.held: list = []
        self.pinned: list = []
        self.outside: set[int] = set()

    # What must be there

    def longest(self, namespace, path) -> int:
        length = 0
        while length < len(path) and (namespace, path[: length + 1]) in self.cached:
            length += 1
        return length

    def expect_content(self, namespace, path, slots) -> None:
        for end, slot in enumerate(slots, start=1):
            assert self.content[slot] == (namespace, path[:end])

    def under(self, handles) -> set:
        """All cached prefixes on the paths of some handles."""
        found = {
            (namespace, path[:end])
            for namespace, path, _ in handles
            for end in range(1, len(path) + 1)
        }
        return found & self.cached

    def forget_evicted(self, freed: int) -> None:
        gone = {
            (namespace, path)
            for namespace, path in self.cached
            if self.tree.peek(namespace, path) < len(path)
        }
        assert len(gone) == freed
        assert not gone & self.under(self.held)
        soft = self.under(self.pinned)
        if gone & soft:
            assert not (self.cached - gone) - soft - self.under(self.held)
        self.cached -= gone

    # What callers do

    @rule(target=live, namespace=namespaces, path=paths, cut=st.integers(0, 3))
    def begin(self, namespace, path, cut):
        """Admit a sequence: match, lease, and own slots for the rest."""
        limit = max(0, len(path) - cut)
        found = self.tree.match(namespace, np.array(path, dtype=np.int64), limit=limit)
        assert found.length == self.longest(namespace, path[:limit])
        assert found.node.length() == found.length
        self.expect_content(namespace, path, found.slots)
        self.tree.lease(found.node)
        handle = (namespace, path[: found.length], found.node)
        self.held.append(handle)
        missing = len(path) - found.length
        if missing > self.tree.pool.num_free:
            self.evict(missing - self.tree.pool.num_free)
        own = self.tree.pool.alloc(missing)
        if own is None:
            self.let_go(handle)
            return multiple()
        self.outside |= set(own.tolist())
        for end, slot in enumerate(own, start=found.length + 1):
            self.content[slot] = (namespace, path[:end])
        return (namespace, path, np.concatenate([found.slots, own]), handle)

    @rule(target=leases, sequence=consumes(live), keep=st.booleans())
    def finish(self, sequence, keep):
        namespace, path, slots, handle = sequence
        owned = len(handle[1])
        done = self.tree.insert(namespace, path, slots, owned_from=owned)
        assert done.node.length() == len(path)
        self.expect_content(namespace, path, done.slots)
        expected = slots[owned : max(owned, self.longest(namespace, path))]
        assert done.duplicate.tolist() == expected.tolist()
        self.outside -= set(slots[owned:].tolist())
        self.tree.pool.free(done.duplicate)
        self.cached |= {(namespace, path[:end]) for end in range(1, len(path) + 1)}
        if keep:
            self.tree.lease(done.node)
            kept = (namespace, path, done.node)
            self.held.append(kept)
        self.let_go(handle)
        return kept if keep else multiple()

    @rule(sequence=consumes(live))
    def abort(self, sequence):
        _, _, slots, handle = sequence
        own = slots[len(handle[1]) :]
        self.tree.pool.free(own)
        self.outside -= set(own.tolist())
        self.let_go(handle)

    @rule(handle=consumes(leases))
    def release(self, handle):
        self.let_go(handle)

    def let_go(self, handle) -> None:
        self.tree.release(handle[2])
        self.held.remove(handle)

    @rule(target=pins, namespace=namespaces, path=paths)
    def pin(self, namespace, path):
        found = self.tree.match(namespace, path)
        self.tree.pin(found.node)
        handle = (namespace, path[: found.length], found.node)
        self.pinned.append(handle)
        return handle

    @rule(target=pins, kept=leases)
    def pin_leased(self, kept):
        self.tree.pin(kept[2])
        handle = (*kept,)
        self.pinned.append(handle)
        return handle

    @rule(handle=consumes(pins))
    def unpin(self, handle):
        self.tree.unpin(handle[2])
        self.pinned.remove(handle)

    @rule(n=st.integers(0, 12))
    def evict(self, n):
        expected = min(n, self.tree.evictable)
        freed = self.tree.evict(n)
        assert freed == expected
        self.forget_evicted(freed)

    @rule()
    def clear(self):
        expected = self.tree.evictable
        assert self.tree.clear() == expected
        self.forget_evicted(expected)

    @rule(namespace=namespaces, path=paths)
    def peek(self, namespace, path):
        assert self.tree.peek(namespace, path) == self.longest(namespace, path)

    # What always holds

    @invariant()
    def adds_up(self):
        self.tree.check_integrity(outside=np.array(sorted(self.outside), dtype=np.int64))
        assert self.tree.size == len(self.cached)
        assert self.tree.leased == len(self.under(self.held))

    @invariant()
    def live_sequences_keep_their_prefix(self):
        for namespace, path, _ in self.held:
            assert self.tree.peek(namespace, path) == len(path)

    def teardown(self):
        for handle in list(self.pinned):
            self.unpin(handle)
        for handle in list(self.held):
            self.let_go(handle)
        self.tree.clear()
        assert self.tree.size == self.tree.pinned == 0
        assert self.tree.namespaces == ()
        self.tree.check_integrity(outside=np.array(sorted(self.outside), dtype=np.int64))


TestTree = TreeMachine.TestCase
TestTree.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
