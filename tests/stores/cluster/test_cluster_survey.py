"""A survey of a cluster sees the keys of all shards."""

from shapekit import Shaper


def test_a_survey_sees_the_keys_of_all_shards(store, name, keys):
    shaper = Shaper("1/min; 10/h", name=name, store=store)
    for key in keys:
        for _ in range(3):
            assert shaper.reserve(key)
    seen = {live_key.key: live_key for live_key in store.survey(f"{name}:")}
    assert seen.keys() == set(keys)
    for key in keys:
        assert seen[key].program == shaper.core.queue
        assert seen[key].state == shaper.core.look.call(key)[0]
