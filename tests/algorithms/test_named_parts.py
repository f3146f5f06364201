"""How the parts of a composite are called."""

import pytest

from shapekit import GCRA, ConfigError, Gate, LeakyBucket, Quota, all_of, any_of, first_of

ONE, OTHER = GCRA("1/h"), GCRA("2/h")


@pytest.mark.parametrize("of", [all_of, any_of, first_of])
def test_parts_without_a_name_are_called_by_their_kind(of):
    assert of(ONE, OTHER, LeakyBucket("1/h"), Quota("9/day")).names == (
        "gcra",
        "gcra_2",
        "leaky_bucket",
        "quota",
    )
    assert of(ONE, OTHER) == of(gcra=ONE, gcra_2=OTHER)


def test_parts_without_a_name_come_first_and_take_no_name_of_another():
    mixed = first_of(OTHER, GCRA("3/h"), gcra=ONE)
    assert mixed.names == ("gcra_2", "gcra_3", "gcra")
    assert mixed.parts[-1] == ONE


def test_a_decision_names_the_part_that_binds():
    gate = Gate(all_of(OTHER, ONE))
    assert gate.check()
    assert gate.check().binding == "gcra_2"


def test_a_composite_as_a_part_has_a_name_too():
    gate = Gate(any_of(all_of(ONE, OTHER), ONE))
    gate.check()
    assert gate.check().binding in ("all_of.gcra", "gcra")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: all_of(ONE), "has fewer than two parts"),
        (all_of, "has fewer than two parts"),
        (lambda: all_of(ONE, "10/s"), "is not a strategy"),
        (lambda: any_of(ONE, GCRA), "is not a strategy"),
    ],
)
def test_wrong_parts_of_a_composite_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
