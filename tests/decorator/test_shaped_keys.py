"""Key templates of @shaped: parameters with their defaults, their attributes and items."""

from types import SimpleNamespace

import pytest

from shapekit import ManualClock, MemoryStore, shaped


@pytest.fixture
def keys_of(world):
    """The keys under which the calls of a function were counted."""

    def count(template, function, *calls):
        store = MemoryStore(ManualClock())
        call = shaped("1/h burst 10", key=template, store=store, name="f")(world.define(function))
        for args, kwargs in calls:
            world.call(call, *args, **kwargs)
        return {key.removeprefix("f:") for key in store.keys()}  # noqa: SIM118 - a method, not a dict's

    return count


def function(user, region="eu", /, team=None, *paths, retries=3, **options):
    """Every kind of parameter."""


ALICE = SimpleNamespace(id=7, team=SimpleNamespace(name="blue"), tags=["x", "y"], rights={"api": "full"})

CASES = [
    ("{user}", ("a",), {}, "a"),
    ("{user}:{region}", ("a",), {}, "a:eu"),
    ("{user}:{region}", ("a", "us"), {}, "a:us"),
    ("{team}", ("a", "us", "blue"), {}, "blue"),
    ("{team}", ("a",), {"team": "blue"}, "blue"),
    ("{team}", ("a",), {}, "%None"),
    ("{team}", ("a",), {"team": "None"}, "None"),
    ("{retries}", ("a",), {}, "3"),
    ("{retries}", ("a",), {"retries": 5}, "5"),
    ("{paths[0]}/{paths[1]}", ("a", "eu", None, "x", "y"), {}, "x/y"),
    ("{options[tenant]}", ("a",), {"tenant": "t"}, "t"),
    ("{user.id}", (ALICE,), {}, "7"),
    ("{user.team.name}", (ALICE,), {}, "blue"),
    ("{user.tags[1]}", (ALICE,), {}, "y"),
    ("{user.rights[api]}", (ALICE,), {}, "full"),
    ("{user[id]}", ({"id": 9},), {}, "9"),
    ("{user[0]}", (("first", "second"),), {}, "first"),
    ("static", ("a",), {}, "static"),
    ("{{{{user}}}}", ("a",), {}, "{{user}}"),
]


@pytest.mark.parametrize(("template", "args", "kwargs", "key"), CASES, ids=[case[0] for case in CASES])
def test_a_field_has_the_value_that_the_function_sees(keys_of, template, args, kwargs, key):
    assert keys_of(template, function, (args, kwargs)) == {key}


def test_a_value_gives_the_same_key_in_every_way_of_passing(keys_of):
    def call(user, region="eu"):
        pass

    ways = [(("a", "eu"), {}), (("a",), {}), ((), {"user": "a"}), (("a",), {"region": "eu"})]
    assert keys_of("{user}:{region}", call, *ways) == {"a:eu"}


def test_values_that_would_merge_do_not(keys_of):
    def call(user, region):
        pass

    calls = [
        (values, {}) for values in (("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), (None, ""), ("None", ""))
    ]
    assert len(keys_of("{user}:{region}", call, *calls)) == len(calls)


def test_the_function_is_called_with_what_it_was_called_with(world):
    seen = []

    def call(*args, **kwargs):
        seen.append((args, kwargs))

    shaped_call = shaped(1000, key="{args[0]}")(world.define(call))
    world.call(shaped_call, "a", 1, user="b")
    assert seen == [(("a", 1), {"user": "b"})]


@pytest.mark.parametrize(
    ("template", "args"),
    [("{paths[0]}", ("a",)), ("{options[tenant]}", ("a",)), ("{user.id}", ("a",)), ("{user[x]}", (5,))],
)
def test_a_missing_value_is_a_config_error_and_the_function_is_not_called(refused, world, template, args):
    called = []

    def call(user, *paths, **options):
        called.append(user)

    store = MemoryStore()
    shaped_call = shaped(1, key=template, store=store)(world.define(call))
    refused(lambda: world.call(shaped_call, *args), "key")
    assert called == []
    assert list(store.keys()) == []


def test_a_call_that_does_not_fit_the_function_is_the_usual_type_error(world):
    call = shaped(1, key="{user}")(world.define(lambda user: None))
    for args, kwargs in (((), {}), (("a", "b"), {}), ((), {"usr": "a"})):
        with pytest.raises(TypeError, match="argument"):
            world.call(call, *args, **kwargs)
    assert call.forecast(key="a").first_in == 0.0


@pytest.mark.parametrize(
    "template", ["{usr}", "{self.account}", "{user}{region}", "{0}", "{user!r}", "{user"]
)
def test_a_template_is_read_when_it_is_declared(refused, template):
    refused(lambda: shaped(1, key=template)(function), "key")


def test_an_unknown_field_is_answered_with_the_parameters(refused):
    fix = refused(lambda: shaped(1, key="{usr}")(function), "key").fix
    assert "user, region, team, paths, retries, options" in fix
