"""A shaped client: its attempts wait, count, and are signed afterwards; throttling holds all of them."""

import pickle
import time
from datetime import UTC, datetime

import boto3
import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from shapekit import Adaptive, ConfigError, ManualClock, MemoryStore, Policy, errors
from shapekit._adapters.http import ResponseView
from shapekit.integrations import botocore as shaped
from shapekit.integrations.botocore import request_options, shape
from shapekit.testing import FaultyStore

from .server import failing

KEY = "eu-west-1:sqs.ListQueues"
ERROR = failing("InternalError", 500)


@pytest.fixture
def policy():
    """A policy that never delays a call, and counts those that leave."""
    return Policy("100000/s", burst=1000, quota="1000/month", key="all", clock=ManualClock())


def used(policy, key="all"):
    return policy.quotas(key)[0].used


def test_an_attempt_is_signed_after_its_wait(server, client):
    shape(client, rate="1 per 2 seconds")
    client.list_queues()
    started = time.time()
    client.list_queues()
    headers = server.arrivals[-1].headers
    assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    signed = datetime.strptime(headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    # The signature has whole seconds, and the wait takes nearly two.
    assert signed.timestamp() > started + 0.5


def test_each_attempt_takes_a_slot(server, client, policy):
    shape(client, policy=policy)
    server.answers.extend([ERROR, ERROR])
    client.list_queues()
    assert server.statuses == [500, 500, 200]
    assert used(policy) == 3


def test_a_call_that_is_not_sent_takes_no_slot(options, policy):
    s3 = shape(boto3.client("s3", **options), policy=policy)
    s3.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    assert used(policy) == 0


@pytest.mark.parametrize(
    ("answer", "held"),
    [
        (failing("ThrottlingException"), 1),
        (failing("ProvisionedThroughputExceededException"), 1),
        (failing("RequestThrottled", 403), 1),  # by the model of SQS, in which it is a 403
        (failing("SlowDown", 503), 1),
        (failing("SlowDown", 503, **{"Retry-After": 7}), 7),
        (failing("ThrottlingException", **{"x-amz-retry-after": 2500}), 2.5),
        (failing("Unknown", 429), 1),
        (failing("Unknown", 429, **{"Retry-After": 7}), 7),
        (failing("ServiceUnavailable", 503, **{"Retry-After": 7}), 7),
        (failing("ServiceUnavailable", 503), 0),
        (failing("InternalError", 500), 0),
        (failing("ValidationException"), 0),
    ],
)
def test_throttling_holds_the_key(server, options, policy, answer, held):
    client = boto3.client("sqs", **{**options, "config": Config(retries={"total_max_attempts": 1})})
    shape(client, policy=policy)
    server.answers.append(answer)
    with pytest.raises(ClientError):
        client.list_queues()
    assert policy.shaper.held(key="all") == held
    client.close()


def test_a_retry_waits_for_the_end_of_the_hold(server, client):
    shape(client, rate="1000/s")
    server.answers.append(failing("ThrottlingException", **{"x-amz-retry-after": 600}))
    client.list_queues()
    refused, passed = server.arrivals
    assert passed.at - refused.at >= 0.55


def test_throttling_lowers_an_adaptive_rate(server, client):
    clock = ManualClock()
    policy = Policy(adaptive=Adaptive(min="1/s", max="100/s"), key="all", clock=clock)
    shape(client, policy=policy)
    for _ in range(10):
        clock.advance(1)
        policy.shaper.adaptive.succeeded(age="10ms", key="all")
    risen = policy.shaper.adaptive.rate(key="all")
    clock.advance(1)
    server.answers.append(failing("ThrottlingException"))
    with request_options(max_wait=0), pytest.raises(shaped.QueueFullError):
        client.list_queues()
    assert server.statuses == [400]
    assert policy.shaper.adaptive.rate(key="all") < risen
    assert policy.shaper.held(key="all") > 0


def test_a_refusal_is_an_error_of_botocore_and_is_not_retried(server, client):
    shape(client, rate="1/h", max_wait=0, name="mine")
    client.list_queues()
    with pytest.raises(BotoCoreError) as refusal:
        client.list_queues()
    assert len(server.arrivals) == 1
    error = refusal.value
    assert type(error) is shaped.QueueFullError
    assert isinstance(error, errors.QueueFullError)
    assert (error.key, error.policy) == (KEY, "mine")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert str(copy) == str(error)


def test_a_spent_quota_and_a_store_that_is_gone_are_errors_of_botocore_too(client, options):
    shape(client, quota="1/month")
    client.list_queues()
    with pytest.raises(BotoCoreError) as spent:
        client.list_queues()
    assert type(spent.value) is shaped.QuotaExhaustedError
    assert type(pickle.loads(pickle.dumps(spent.value))) is shaped.QuotaExhaustedError
    store = FaultyStore(MemoryStore())
    other = shape(boto3.client("sqs", **options), rate="10/s", store=store, name="mine")
    store.down = True
    with pytest.raises(BotoCoreError) as gone:
        other.list_queues()
    assert type(gone.value) is shaped.StoreUnavailableError
    assert type(pickle.loads(pickle.dumps(gone.value))) is shaped.StoreUnavailableError
    other.close()


def test_an_exhausted_account_is_an_error_of_botocore_too(server, client, policy):
    shape(client, policy=policy)
    with policy.admit() as admission:
        pass
    admission.observe(ResponseView(429, (), {"error": {"code": "insufficient_quota"}}))
    with request_options(max_wait=0), pytest.raises(BotoCoreError) as refusal:
        client.list_queues()
    assert type(refusal.value) is shaped.AccountExhaustedError
    assert isinstance(refusal.value, (errors.AccountExhaustedError, shaped.QuotaExhaustedError))
    assert type(pickle.loads(pickle.dumps(refusal.value))) is shaped.AccountExhaustedError
    assert server.arrivals == []


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (None, KEY),
        ("{region}:{service}", "eu-west-1:sqs"),
        ("123456789012", "123456789012"),
        (lambda attempt: f"{attempt.operation} {attempt.request.method}", "ListQueues POST"),
    ],
)
def test_keys(server, client, key, found):
    options = {} if key is None else {"key": key}
    shape(client, rate="1/h", max_wait=0, **options)
    client.list_queues()
    with pytest.raises(errors.QueueFullError) as refusal:
        client.list_queues()
    assert refusal.value.key == found


def test_a_policy_uses_its_own_key_unless_another_is_given(client, options):
    policy = Policy("1000/s", quota="1000/month", key="{service}")
    shape(client, policy=policy)
    client.list_queues()
    client.list_queues()
    assert used(policy, "sqs") == 2
    other = shape(boto3.client("sqs", **options), policy=policy, key="{operation}")
    other.list_queues()
    assert used(policy, "ListQueues") == 1
    other.close()


def test_options_of_a_call(client, policy):
    shape(client, policy=policy)
    with request_options(cost=5):
        client.list_queues()
    with request_options(skip=True):
        client.list_queues()
    assert used(policy) == 5


def test_routes_are_for_services_and_operations(client, options):
    there = Policy("1000/s", quota="1000/month", key="{operation}")
    shape(client, rate="1/h", max_wait=0, routes={"sqs": there, "sqs.PurgeQueue": "1/h"})
    for _ in range(2):
        client.list_queues()
    assert used(there, "ListQueues") == 2
    client.purge_queue(QueueUrl="q")
    with pytest.raises(errors.QueueFullError) as refusal:
        client.purge_queue(QueueUrl="q")
    assert refusal.value.key == "eu-west-1:sqs.PurgeQueue"


# one limit for several clients


def made_by_boto3(**options):
    session = boto3.Session()
    return session, lambda: session.client("sqs", **options)


def made_by_botocore(**options):
    session = botocore.session.get_session()
    return session, lambda: session.create_client("sqs", **options)


@pytest.mark.parametrize("made", [made_by_boto3, made_by_botocore])
def test_clients_that_a_session_makes_later_share_its_limit(options, policy, made):
    session, make = made(**options)
    before = make()
    assert shape(session, policy=policy) is session
    clients = [make(), make()]
    for client in [before, *clients]:
        client.list_queues()
    assert used(policy) == 2
    for client in [before, *clients]:
        client.close()


def test_a_resource_of_a_session_is_shaped(options, policy):
    session = shape(boto3.Session(), policy=policy)
    resource = session.resource("sqs", **options)
    list(resource.queues.all())
    assert used(policy) == 1
    resource.meta.client.close()


def test_clients_of_one_policy_share_it(server, client, options):
    policy = Policy("1/h", key="all", max_wait=0)
    other = shape(boto3.client("sqs", **options), policy=policy)
    shape(client, policy=policy)
    client.list_queues()
    with pytest.raises(errors.QueueFullError):
        other.list_queues()
    other.close()


def test_shaping_a_client_twice_is_refused(client, options):
    session = shape(boto3.Session(), rate="10/s")
    shape(client, rate="10/s")
    made = session.client("sqs", **options)
    for again in (client, session, made):
        with pytest.raises(ConfigError, match="is shaped already"):
            shape(again, rate="10/s")
    made.close()


# calls in flight


def test_a_permit_ends_with_its_attempt_in_every_way_of_ending(server, client, options):
    policy = Policy(concurrency=1, key="all", max_wait=0)
    shape(client, policy=policy)
    server.answers.append(ERROR)
    client.list_queues()
    server.answers.extend([failing("ValidationException")])
    with pytest.raises(ClientError):
        client.list_queues()

    def unsigned(**_):
        raise RuntimeError("no credentials")

    client.meta.events.register("before-sign.sqs", unsigned)
    with pytest.raises(RuntimeError, match="no credentials") as kept:
        client.list_queues()
    client.meta.events.unregister("before-sign.sqs", unsigned)
    unreachable = shape(
        boto3.client("sqs", **{**options, "endpoint_url": "http://127.0.0.1:1"}), policy=policy
    )
    with pytest.raises(EndpointConnectionError):
        unreachable.list_queues()
    client.list_queues()
    assert kept.traceback  # by which the frames of the call live on, and the permit is not merely collected
    unreachable.close()


def test_an_attempt_that_never_counted_is_given_back(options):
    policy = Policy("1000/s", quota="10/month", key="all", refund_on=EndpointConnectionError)
    unreachable = shape(
        boto3.client("sqs", **{**options, "endpoint_url": "http://127.0.0.1:1"}), policy=policy
    )
    with pytest.raises(EndpointConnectionError):
        unreachable.list_queues()
    assert used(policy) == 0
    unreachable.close()


def test_an_error_that_aws_answers_may_be_given_back(server, client):
    errors = []

    def refund_on(error):
        errors.append(error)
        return isinstance(error, ClientError) and error.response["Error"]["Code"] == "InternalError"

    policy = Policy("1000/s", quota="10/month", key="all", refund_on=refund_on)
    shape(client, policy=policy)
    server.answers.extend([ERROR, failing("QueueDoesNotExist")])
    with pytest.raises(client.exceptions.QueueDoesNotExist) as raised:
        client.list_queues()
    # Each attempt is a call of its own: the second one counts.
    assert used(policy) == 1
    assert [type(error) for error in errors] == [ClientError, client.exceptions.QueueDoesNotExist]
    assert str(errors[-1]) == str(raised.value)
    assert errors[-1].operation_name == "ListQueues"
    client.list_queues()
    assert used(policy) == 2
    assert len(errors) == 2


# mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": "10/s", "key": "{host}"}, "names 'host', which the call does not have"),
        ({"rate": "10/s", "routes": {"https://sqs": "1/s"}}, "is neither a service nor an operation"),
        ({"rate": "10/s", "key": 5}, "key=5 is neither text nor callable"),
        ({"rate": "10/s", "on_reject": "respond"}, "needs an answer"),
        ({"policy": Policy("1/s", key="{tenant}")}, "use one of: service, operation, region"),
        ({}, r'write shape\(rate="10/s"\)'),
    ],
)
def test_wrong_arguments_are_refused(client, arguments, message):
    with pytest.raises(ConfigError, match=message):
        shape(client, **arguments)
    shape(client, rate="10/s")


def test_an_argument_that_is_no_client_is_refused():
    with pytest.raises(ConfigError, match="is neither a client nor a session"):
        shape(object(), rate="10/s")
