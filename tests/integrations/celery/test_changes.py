"""Changed limits: a worker brings back the parked messages of a key, whatever it learned of the key first."""

import pytest

from shapekit.integrations.celery import version_of
from shapekit.integrations.celery.worker import Changes, group_of

from .eager import Eager


class Park:
    """Records which messages are brought back."""

    def __init__(self):
        self.hastened = []

    def hasten(self, group, version):
        self.hastened.append((group, version))


@pytest.fixture
def shaper(clock):
    policy = Eager(clock).shaped(lambda: None, {"rate": "10/s", "key": "some"}).shaped.policy
    policy.configure("20/s", key="some")
    return policy.shaper


@pytest.mark.parametrize("before", [[], ["parks"], ["parks", "parks"]], ids=" ".join)
@pytest.mark.parametrize("parked", [None, "", "older"])
def test_the_first_message_parked_under_older_limits_brings_the_others_back(shaper, before, parked):
    """A message that this worker parked knows the new limits; messages of other workers may not."""
    changes, park = Changes(), Park()
    for _ in before:
        changes.note(shaper, "some", park, version_of(shaper.core))
    assert park.hastened == []
    for _ in range(3):
        changes.note(shaper, "some", park, parked)
    [(group, version)] = park.hastened
    assert group == group_of(shaper, "some")
    assert version == version_of(shaper.core)


def test_a_message_parked_under_these_limits_brings_no_others_back(shaper):
    changes, park = Changes(), Park()
    for _ in range(3):
        changes.note(shaper, "some", park, version_of(shaper.core))
    assert park.hastened == []
    changes.note(shaper, "some", park, "")
    assert len(park.hastened) == 1


def test_where_the_broker_does_not_answer_the_next_message_brings_the_others_back(shaper):
    changes, park = Changes(), Park()
    park.hasten = lambda group, version: 1 / 0
    with pytest.raises(ZeroDivisionError):
        changes.note(shaper, "some", park, "")
    del park.hasten
    changes.note(shaper, "some", park, "")
    assert len(park.hastened) == 1


def test_nothing_is_brought_back_where_no_limits_were_ever_changed(clock):
    shaper = Eager(clock).shaped(lambda: None, {"rate": "10/s"}).shaped.policy.shaper
    changes, park = Changes(), Park()
    changes.note(shaper, "default", park, "")
    changes.note(shaper, "default", park, None)
    assert park.hastened == []
