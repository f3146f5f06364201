"""Scopes: what is learned from answers, and what follows for a request. Against a memory that keeps all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit import Policy
from shapekit._queue import scopes
from shapekit._queue.scopes import Scopes
from shapekit.keys import PART, SCOPE, Target, scoped, segments


def target(path, method="GET"):
    return Target(method, "https", "api.x", None, path)


def taught(*lessons, key="k"):
    known = Scopes()
    for path, scope in lessons:
        known.learn(key, target(path), scope)
    return known


names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, max_size=4).map(lambda parts: "/" + "/".join(parts))
methods = st.sampled_from(["GET", "POST"])
keys = st.sampled_from(["k", "l"])
places = st.tuples(keys, methods, paths)
held = st.dictionaries(st.tuples(keys, names), st.integers(1, 20))


class Model:
    """Every answer there ever was, looked through for each question."""

    def __init__(self, lessons):
        self.lessons = [((key, method, *segments(path)), scope) for (key, method, path), scope in lessons]

    def find(self, key, method, path, held, now):
        place = (key, method, *segments(path))
        exact = [scope for where, scope in self.lessons if where == place]
        if exact:
            return {exact[-1]}
        for end in range(len(place), 0, -1):
            below = {scope for where, scope in self.lessons if where[:end] == place[:end]}
            if below:
                break
        if len(below) == 1:
            return below
        held_now = {scope for (of, scope), until in held.items() if of == key and until > now}
        return held_now & below if below else held_now


@given(st.lists(st.tuples(places, names), max_size=25), held, places, st.integers(0, 25))
def test_a_request_waits_for_the_scopes_that_all_answers_together_imply(lessons, held, place, now):
    known = Scopes()
    for (key, method, path), scope in lessons:
        known.learn(key, target(path, method), scope)
    for (key, scope), until in held.items():
        known.hear(key, scope, until, 0)
    key, method, path = place
    found, _ = known.find(key, target(path, method), now)
    assert len(found) == len(set(found))
    assert set(found) == Model(lessons).find(key, method, path, held, now)


def test_a_path_is_read_by_its_segments():
    known = taught(("/s%65arch/", "search"), ("/searching", "core"))
    assert known.find("k", target("/search/x"), 0) == (("search",), True)


def test_a_route_with_a_new_scope_has_the_new_one():
    known = taught(("/a", "old"), ("/a", "new"))
    assert known.find("k", target("/a"), 0)[0] == ("new",)


def test_a_path_too_long_to_be_kept_whole_goes_by_its_beginning():
    long = "/x" * scopes.MOST_SEGMENTS
    known = taught((f"{long}/a", "one"), (f"{long}/b", "other"))
    known.hear("k", "one", 10, 0)
    assert known.find("k", target(f"{long}/b"), 0)[0] == ("one",)
    assert known.find("k", target(long), 0)[0] == ("one",)
    assert known.find("k", target(f"{long}/a"), 10)[0] == ()


def test_a_route_of_unknown_scope_does_not_wait_for_scopes_never_named_there():
    known = taught(("/a/1", "one"), ("/a/2", "other"), ("/b", "third"))
    known.hear("k", "third", 10, 0)
    assert known.find("k", target("/a/3"), 0)[0] == ()
    known.hear("k", "one", 10, 0)
    assert known.find("k", target("/a/3"), 0)[0] == ("one",)


def test_a_route_does_not_wait_for_a_scope_that_counts_for_another_part_of_its_path():
    one, other = f"b{PART}/c/1", f"b{PART}/c/12"
    known = taught(("/c/1/x", one))
    known.hear("k", one, 10, 0)
    assert known.find("k", target("/c/1/y"), 0)[0] == (one,)
    assert known.find("k", target("/c/12/x"), 0)[0] == ()
    assert known.find("k", target("/d"), 0)[0] == ()
    known.learn("k", target("/c/12/x"), other)
    assert known.find("k", target("/c/12/x"), 0)[0] == (other,)
    assert known.find("k", target("/c/3/x"), 0)[0] == ()
    assert known.find("k", target("/c/1/y"), 0)[0] == (one,)


def test_memory_is_bounded_and_routes_above_are_forgotten_last():
    known = taught(("/search/q", "search"))
    for number in range(scopes.MOST_PLACES):
        known.learn("k", target(f"/repos/{number}"), "core")
    assert len(known._nodes) == scopes.MOST_PLACES
    assert known.find("k", target("/repos/0"), 0)[0] == ("core",)  # by what is above it
    known.hear("k", "search", 10, 0)
    assert known.find("k", target("/users"), 0)[0] == ("search",)


def test_a_route_with_too_many_scopes_below_it_may_be_of_any():
    known = Scopes()
    for number in range(scopes.MOST_SCOPES + 1):
        known.learn("k", target(f"/{number}"), str(number))
    known.hear("k", "never seen there", 10, 0)
    assert known.find("k", target("/x"), 0) == (("never seen there",), False)
    assert known.find("k", target("/3"), 0)[0] == ("3",)
    assert max(len(node.below or ()) for node in known._nodes.values()) <= scopes.MOST_SCOPES


def test_known_holds_are_bounded_and_end():
    known = Scopes()
    for number in range(scopes.MOST_HOLDS + 1):
        known.hear("k", str(number), 10, 0)
    found, _ = known.find("k", target("/"), 9)
    assert len(found) == scopes.MOST_HOLDS
    assert "0" not in found
    assert known.find("k", target("/"), 10)[0] == ()
    known.hear("k", "new", 20, 10)
    assert known.find("k", target("/"), 15)[0] == ("new",)
    assert len(known._holds) == 1


text = st.text(st.sampled_from("a%s=25cope:"), max_size=12)


@given(st.tuples(text, text), st.tuples(text, text))
def test_two_pairs_never_give_one_key(one, other):
    keys = [key for key, _ in (one, other) if SCOPE in key]
    if not keys:  # a policy refuses those
        assert (scoped(*one) == scoped(*other)) == (one == other)


@pytest.mark.parametrize("key", [scoped("api.x", "search"), "%scope="])
def test_no_key_of_a_user_is_that_of_a_scope(key, refused):
    refused(lambda: Policy(1).admit(key), "key")
    with Policy(1).admit("%SCOPE search") as admission:
        assert admission.decision.allowed
