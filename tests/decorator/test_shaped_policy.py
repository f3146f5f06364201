"""@shaped(policy=…): functions that share the limit of one upstream, each with its own key and cost."""

import pytest

from shapekit import Policy, shaped


def test_functions_of_one_policy_share_its_rate(world, policy, clock):
    api = policy("10/s")
    read, write = (shaped(policy=api)(world.define(clock.now)) for _ in range(2))
    assert [world.call(call) for call in (read, write, write, read)] == [0.0, 0.1, 0.2, 0.3]
    assert read.policy is write.policy is api


def test_each_function_has_its_own_cost(world, policy, clock):
    api = policy("10/s", cost=2)
    read = shaped(policy=api)(world.define(clock.now))
    write = shaped(policy=api, cost=5)(world.define(clock.now))
    sized = shaped(policy=api, cost=len)(world.define(lambda text: clock.now()))
    left = [world.call(read), world.call(write), world.call(sized, "abc"), world.call(read)]
    assert left == [0.0, 0.2, 0.7, 1.0]


def test_each_function_has_its_own_key(world, policy):
    api = policy("1/s", key="all")
    plain = shaped(policy=api)(world.define(lambda: None))
    fixed = shaped(policy=api, key="fixed")(world.define(lambda: None))
    named = shaped(policy=api, key="user-{user}")(world.define(lambda user: None))
    for call, arguments in ((plain, ()), (fixed, ()), (named, ("a",))):
        world.call(call, *arguments)
    taken = [api.forecast(key=key).first_in for key in ("all", "fixed", "user-a", "user-b", "default")]
    assert taken == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_the_template_of_the_policy_is_read_with_the_parameters_of_each_function(refused, world, policy):
    api = policy("1/s", key="{user}")
    first = shaped(policy=api)(world.define(lambda user: None))
    last = shaped(policy=api)(world.define(lambda path, user="a": None))
    world.call(first, "a")
    assert api.forecast(key="a").first_in == 1.0
    world.call(last, "/v1")
    assert api.forecast(key="a").first_in == 1.0
    assert api.forecast(key="/v1").first_in == 0.0
    assert "use one of: path" in refused(lambda: shaped(policy=api)(lambda path: None), "key").fix


def test_the_callables_of_the_policy_see_each_call(world, policy):
    api = policy("1/s", key=lambda user, tokens: user, cost=lambda user, tokens: tokens)
    call = shaped(policy=api)(world.define(lambda user, tokens: None))
    world.call(call, "a", 3)
    assert api.forecast(key="a").first_in == 3.0


@pytest.mark.parametrize("key", ["{{x}}", "100%", "}}{{", "{{0}}"])
def test_literal_braces_in_the_policys_key_are_not_formatted_twice(world, policy, key):
    api = policy("1/s", key=key)
    call = shaped(policy=api)(world.define(lambda: None))
    world.call(call)
    assert api.forecast().first_in == 1.0


def test_admit_and_functions_share_the_policy(world, policy, clock):
    api = policy("1/s")
    call = shaped(policy=api)(world.define(clock.now))
    world.enter(api.admit())
    assert world.call(call) == 1.0


def test_one_decorator_may_decorate_several_functions(world, policy, clock):
    # Each has a policy of its own: policy= is for shared limits.
    decorate = shaped("1/s", clock=clock)
    one, two = (decorate(world.define(clock.now)) for _ in range(2))
    assert [world.call(one), world.call(two), world.call(one)] == [0.0, 0.0, 1.0]
    assert one.policy is not two.policy


def test_forecast_looks_at_the_key_of_the_function(policy):
    api = policy("1/s")
    fixed = shaped(policy=api, key="fixed")(lambda: None)
    fixed()
    assert fixed.forecast(2) == (1.0, 2.0)
    assert fixed.forecast(2, key="other") == (0.0, 1.0)


@pytest.mark.parametrize("key", ["{user}", lambda user: user])
@pytest.mark.parametrize("where", ["function", "policy"])
def test_forecast_of_a_key_that_depends_on_the_call_needs_the_key(refused, policy, key, where):
    api = policy("1/s", **({"key": key} if where == "policy" else {}))
    call = shaped(policy=api, **({"key": key} if where == "function" else {}))(lambda user: None)
    call("a")
    # Not the forecast of some other key, which would be that no call waits.
    refused(call.forecast, "key")
    assert call.forecast(key="a").first_in == 1.0


OWN = [
    {"rate": 5},
    {"rate": "5/s"},
    {"burst": 2},
    {"pace": "burst"},
    {"quota": "5/day"},
    {"gates": (1,)},
    {"max_wait": 0},
    {"headroom": 0.1},
    {"enforce": False},
    {"refund_on": OSError},
    {"store": object()},
    {"clock": object()},
    {"name": "x"},
]


@pytest.mark.parametrize("arguments", OWN, ids=lambda arguments: next(iter(arguments)))
def test_what_is_the_policys_own_is_said_there(refused, arguments):
    error = refused(lambda: shaped(policy=Policy(1), **arguments), *arguments)
    assert (error.bound, error.fix) == ("conflicts with policy=", "set it in the policy")


@pytest.mark.parametrize("policy", [5, "10/s", object(), Policy, {"rate": 1}, 0, ""])
def test_an_argument_that_is_no_policy_is_refused(refused, policy):
    refused(lambda: shaped(policy=policy)(lambda: None), "policy")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cost", 0), ("cost", True), ("cost", 1.5), ("cost", "x"), ("cost", ""), ("cost", 0.0), ("cost", -1),
        ("key", 5), ("key", 0), ("key", b"x"), ("key", False), ("key", "{"), ("key", "{other}"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("templated", [False, True])
def test_a_wrong_key_or_cost_is_refused_when_it_is_declared(refused, field, value, shared, templated):
    limit = {"policy": Policy(1)} if shared else {"rate": 1}
    rest = {"key": "{user}"} if templated and field == "cost" else {}
    refused(lambda: shaped(**limit, **rest, **{field: value})(lambda user: None), field)
