"""The prefix tree: match, insert, duplicates, leases, pins and the order of eviction."""

import time

import numpy as np
import pytest

from stolon.errors import InternalError
from stolon.radix import PrefixTree, SlotPool


def make(num_slots: int = 100) -> PrefixTree:
    return PrefixTree(SlotPool(num_slots))


def put(tree: PrefixTree, tokens: list[int], namespace: str = "w1"):
    """Insert as a request would: reuse what matches, allocate the rest."""
    found = tree.match(namespace, tokens)
    fresh = tree.pool.alloc(len(tokens) - found.length)
    slots = np.concatenate([found.slots, fresh])
    return tree.insert(namespace, tokens, slots, owned_from=found.length)


def test_nothing_matches_in_an_empty_tree():
    found = make().match("w1", [1, 2, 3])
    assert (found.length, found.slots.tolist(), found.node.length()) == (0, [], 0)


def test_a_match_gives_the_slots_of_the_longest_prefix():
    tree = make()
    slots = put(tree, [1, 2, 3, 4]).slots
    for query, length in [
        ([1, 2, 3, 4], 4),
        ([1, 2, 3, 4, 5], 4),
        ([1, 2, 9], 2),
        ([1], 1),
        ([9], 0),
        ([], 0),
    ]:
        assert tree.peek("w1", query) == length
        found = tree.match("w1", np.array(query, dtype=np.int64))
        assert found.length == length
        assert found.slots.tolist() == slots[:length].tolist()
        assert found.node.length() == length
        tree.check_integrity()


def test_a_limit_ends_the_match_early_and_exactly_at_a_node():
    tree = make()
    put(tree, [1, 2, 3, 4])
    found = tree.match("w1", [1, 2, 3, 4], limit=3)
    assert found.length == found.node.length() == 3
    assert tree.match("w1", [1, 2, 3, 4], limit=0).length == 0


def test_peek_splits_nothing_and_is_no_use():
    tree = make()
    put(tree, [1, 2, 3, 4])
    put(tree, [5, 6, 7, 8])
    tree.peek("w1", [1, 2])
    tree.evict(4)
    assert (tree.peek("w1", [1, 2, 3, 4]), tree.peek("w1", [5, 6, 7, 8])) == (0, 4)
    assert tree.peek("other", [1]) == 0
    assert tree.namespaces == ("w1",)


def test_namespaces_share_nothing():
    tree = make()
    put(tree, [1, 2, 3], "w1")
    assert tree.match("w2", [1, 2, 3]).length == 0
    put(tree, [1, 2, 3], "w2")
    assert tree.size == 6
    assert tree.drop_namespace(lambda key: key == "w1") == 3
    assert (tree.peek("w1", [1, 2, 3]), tree.peek("w2", [1, 2, 3])) == (0, 3)
    tree.check_integrity()


def test_the_slower_of_two_equal_sequences_gets_its_slots_back():
    tree = make()
    prefix = put(tree, [1, 2])
    tree.lease(prefix.node)
    own = {name: tree.pool.alloc(3) for name in "ab"}
    for name, tail in (("a", [3, 4, 5]), ("b", [3, 4, 6])):
        slots = np.concatenate([prefix.slots, own[name]])
        done = tree.insert("w1", [1, 2, *tail], slots, owned_from=2)
        assert done.node.length() == 5
        if name == "a":
            assert done.duplicate.tolist() == []
            assert done.slots.tolist() == slots.tolist()
        else:
            assert done.duplicate.tolist() == own["b"][:2].tolist()
            kept = [*prefix.slots, *own["a"][:2], own["b"][2]]
            assert done.slots.tolist() == kept
            tree.check_integrity(outside=done.duplicate)
            tree.pool.free(done.duplicate)
    tree.release(prefix.node)
    tree.check_integrity()


def test_inserting_slots_that_the_tree_owns_already_gives_no_duplicates():
    tree = make()
    first = put(tree, [1, 2, 3])
    again = tree.insert("w1", [1, 2, 3], first.slots, owned_from=0)
    assert again.duplicate.tolist() == []
    assert again.node is first.node


@pytest.mark.parametrize(
    ("tokens", "slots", "owned"),
    [
        ([1, 2, 3], [0, 1], 0),
        ([1, 2], [0, 1], 3),
        ([1, 2, 3], [0, 2, 1], 3),
        ([1, 9, 3], [0, 1, 2], 2),
    ],
    ids=["lengths", "owns more than all", "other slots", "not in the tree"],
)
def test_an_insert_that_contradicts_the_tree_is_refused(tokens, slots, owned):
    tree = make()
    put(tree, [1, 2, 3])
    with pytest.raises(InternalError):
        tree.insert("w1", tokens, np.array(slots), owned_from=owned)
    tree.check_integrity()
    assert tree.size == 3


def test_the_callers_arrays_may_be_reused():
    tree = make()
    tokens, slots = np.array([1, 2, 3]), tree.pool.alloc(3)
    kept = slots.tolist()
    tree.insert("w1", tokens, slots, owned_from=0)
    tokens[:], slots[:] = 7, 99
    assert tree.match("w1", [1, 2, 3]).slots.tolist() == kept


def test_a_lease_keeps_its_path_and_only_its_path():
    tree = make()
    put(tree, [1, 2, 3, 4])
    shared = tree.match("w1", [1, 2])
    tree.lease(shared.node)
    assert (tree.leased, tree.evictable) == (2, 2)
    assert tree.evict(100) == 2
    assert tree.peek("w1", [1, 2, 3, 4]) == 2
    tree.lease(shared.node)
    tree.release(shared.node)
    assert tree.evict(100) == 0
    tree.release(shared.node)
    assert tree.evict(100) == 2
    assert tree.namespaces == ()
    tree.check_integrity()


def test_a_leased_node_keeps_its_end_when_its_edge_is_split():
    tree = make()
    whole = put(tree, [1, 2, 3, 4])
    tree.lease(whole.node)
    put(tree, [1, 2, 9])
    assert whole.node.length() == 4
    assert tree.leased == 4
    tree.check_integrity()
    tree.release(whole.node)
    assert tree.leased == 0
    tree.check_integrity()


def test_holding_mistakes_are_refused():
    tree = make()
    node = put(tree, [1, 2, 3]).node
    below = put(tree, [1, 2, 3, 4]).node
    tree.lease(below)
    with pytest.raises(InternalError, match="not taken"):
        tree.release(node)
    tree.release(below)
    with pytest.raises(InternalError, match="not pinned"):
        tree.unpin(node)
    tree.clear()
    for action in (tree.lease, tree.release, tree.pin):
        with pytest.raises(InternalError, match="evicted"):
            action(node)
    tree.check_integrity()


def test_eviction_takes_the_least_recently_used_leaf_and_trims_the_last():
    tree = make()
    for first in (1, 2, 3):
        put(tree, [first, 0, 0, 0])
    tree.match("w1", [1, 0, 0, 0])
    assert tree.evict(6) == 6
    lengths = [tree.peek("w1", [first, 0, 0, 0]) for first in (1, 2, 3)]
    assert lengths == [4, 0, 2]
    assert tree.pool.num_free == 100 - tree.size
    tree.check_integrity()


def test_a_parent_goes_after_its_children():
    tree = make()
    put(tree, [1, 2, 3, 4])
    put(tree, [1, 2, 5, 6])
    for left in range(5, -1, -1):
        assert tree.evict(1) == 1
        assert tree.size == left
        assert tree.peek("w1", [1, 2, 3]) >= min(left, 2)
        tree.check_integrity()


def test_releasing_counts_as_a_use():
    tree = make()
    old = put(tree, [1, 1])
    tree.lease(old.node)
    put(tree, [2, 2])
    tree.release(old.node)
    tree.evict(2)
    assert (tree.peek("w1", [1, 1]), tree.peek("w1", [2, 2])) == (2, 0)


def test_pinned_paths_go_last_but_they_go():
    tree = make()
    pinned = put(tree, [1, 2, 3])
    tree.pin(pinned.node)
    put(tree, [1, 2, 3, 4])
    put(tree, [5, 6])
    assert tree.evict(3) == 3
    assert (tree.size, tree.peek("w1", [1, 2, 3, 4])) == (3, 3)
    assert tree.evict(2) == 2
    tree.check_integrity()
    assert tree.evict(2) == 1
    tree.check_integrity()
    tree.unpin(pinned.node)
    assert tree.namespaces == ()
    tree.check_integrity()


def test_a_pinned_edge_stays_pinned_when_it_is_split():
    tree = make()
    pinned = put(tree, [1, 2, 3, 4])
    tree.pin(pinned.node)
    other = put(tree, [1, 2, 9])
    assert tree.pinned == 4
    tree.check_integrity()
    tree.match("w1", [1, 2, 9])
    assert tree.evict(1) == 1
    assert tree.peek("w1", [1, 2, 3, 4]) == 4
    assert not other.node.alive
    tree.unpin(pinned.node)
    assert tree.pinned == 0
    tree.check_integrity()


def test_an_unpinned_path_is_evicted_by_age_again():
    tree = make()
    pinned = put(tree, [1, 2])
    tree.pin(pinned.node)
    tree.unpin(pinned.node)
    put(tree, [3, 4])
    tree.evict(2)
    assert (tree.peek("w1", [1, 2]), tree.peek("w1", [3, 4])) == (0, 2)
    assert tree.pinned == 0


def test_clear_frees_everything_but_the_leased():
    tree = make()
    kept = put(tree, [1, 2])
    put(tree, [1, 2, 3, 4])
    tree.pin(put(tree, [5, 6]).node)
    tree.lease(kept.node)
    assert tree.clear() == 4
    assert (tree.size, tree.leased) == (2, 2)
    tree.check_integrity()


def test_the_check_finds_damage():
    def lost(tree):
        tree.pool.alloc(1)

    def twice(tree):
        tree.match("w1", [1, 2]).node.slots[0] = 3

    def count(tree):
        tree._size += 1

    def leases(tree):
        tree.match("w1", [1, 2, 3, 4]).node.leases += 1

    def child(tree):
        tree.match("w1", [1]).node.tokens[0] = 8

    def order(tree):
        tree._order.classes[0].popitem()

    for damage in (lost, twice, count, leases, child, order):
        tree = make()
        put(tree, [1, 2, 3, 4])
        tree.check_integrity()
        damage(tree)
        with pytest.raises(InternalError):
            tree.check_integrity()


def test_matching_a_long_cached_prompt_is_fast():
    tree = make(20_000)
    tokens = np.random.default_rng(0).integers(0, 50_000, 8_192)
    put(tree, tokens.tolist())
    best = min(_timed(lambda: tree.match("w1", tokens)) for _ in range(20))
    assert best < 1e-3


def _timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_unleased_counts_what_a_lease_would_take_from_the_evictable():
    tree = make()
    put(tree, [1, 2, 3, 4, 5])
    put(tree, [1, 2, 3, 7, 8])
    assert tree.unleased("w1", [1, 2, 3, 4, 9]) == 4
    tree.lease(tree.match("w1", [1, 2, 3, 7, 8]).node)
    before = tree.evictable
    assert tree.unleased("w1", [1, 2, 3, 4, 5]) == 2
    tree.lease(tree.match("w1", [1, 2, 3, 4, 5]).node)
    assert before - tree.evictable == 2
    assert tree.unleased("w1", [1, 2, 3, 4, 5]) == 0
    assert tree.unleased("w2", [1]) == 0
