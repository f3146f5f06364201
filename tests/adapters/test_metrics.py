"""Which keys have labels of their own: a bounded number, forever the same, and none that misleads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapekit._adapters.metrics import OTHER, Labels

KEYS = st.one_of(st.sampled_from("abcdef"), st.text(max_size=5), st.just(OTHER))
CALLS = st.lists(st.tuples(st.sampled_from(["stripe", "github"]), KEYS), max_size=60)


@given(calls=CALLS, most=st.integers(0, 5))
def test_the_first_keys_keep_their_labels_and_no_others_get_any(calls, most):
    labels = Labels(most)
    labels_of = {}
    for policy, key in calls:
        label = labels.of(policy, key)
        assert label in (key, OTHER)
        assert labels_of.setdefault((policy, key), label) == label
    for policy in ("stripe", "github"):
        met = dict.fromkeys(key for of, key in calls if of == policy and key not in ("", OTHER))
        first = [key for key in met if key.isprintable()][:most]
        assert labels.own(policy) == first
        assert {key for (of, key), label in labels_of.items() if of == policy and label != OTHER} == set(
            first
        )


@given(calls=CALLS, named=st.sets(st.sampled_from("abc")))
def test_named_keys_have_labels_in_every_process_alike(calls, named):
    labels = Labels(named)
    for policy, key in calls:
        assert labels.of(policy, key) == (key if key in named else OTHER)
        assert labels.own(policy) == sorted(named)


def test_of_ten_thousand_keys_only_as_many_as_the_bound_have_labels():
    labels = Labels(20)
    shown = {labels.of("stripe", f"customer-{number}") for number in range(10_000)}
    assert shown == {f"customer-{number}" for number in range(20)} | {OTHER}


@pytest.mark.parametrize("key", ["", OTHER, "line\nbreak", "half of \ud83d", "x" * 129])
def test_a_key_that_cannot_be_a_label_counts_as_other(key):
    labels = Labels(5)
    assert labels.of("stripe", key) == OTHER
    assert labels.own("stripe") == []


@pytest.mark.parametrize("key", ["x" * 128, "München", "a b", "api%scope=search"])
def test_all_other_keys_can_be_labels(key):
    assert Labels(5).of("stripe", key) == key


@pytest.mark.parametrize("keys", [-1, 10_001, True, 1.5, None, "alice", ["other"], [1], [""], ["a\n"]])
def test_bounds_that_make_no_sense_are_refused(keys, refused):
    refused(lambda: Labels(keys), "keys")
