"""requests: a request leaves in its slot, and the adapter changes nothing else about it."""

import copy
import pickle
import threading

import pytest
import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.auth import HTTPDigestAuth
from urllib3.util import Retry

from shapekit import ManualClock, MemoryStore, Policy, RateLimitedError, ShapekitError, StoreUnavailableError
from shapekit._adapters.http import ShapingInfo
from shapekit.integrations import requests as ours
from shapekit.integrations.requests import ShapedAdapter, request_options, shape

from ...adapters.http.server import PATIENCE_S, Reply

HOST = "127.0.0.1"


@pytest.fixture
def session():
    with requests.Session() as session:
        session.trust_env = False
        yield session


def mounted(session, *args, **options):
    session.mount("http://", ShapedAdapter(*args, **options))
    return session


def test_requests_leave_on_the_grid_and_arrive_as_they_were(server, session, clock, left):
    mounted(session, rate="2/s", clock=clock)
    for _ in range(4):
        response = session.post(server.url, data=b"body", headers={"X-One": "1"}, timeout=PATIENCE_S)
        assert (response.status_code, response.content) == (200, b"ok")
    assert left == [0.0, 0.5, 1.0, 1.5]
    assert {(arrival.headers["x-one"], arrival.body) for arrival in server.arrivals} == {("1", b"body")}
    assert len({arrival.peer for arrival in server.arrivals}) == 1


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("host", {"127.0.0.1"}),
        ("host+method", {"127.0.0.1 GET"}),
        ("origin", {"http://127.0.0.1:{port}"}),
        ("{host}/{path[0]}", {"127.0.0.1/v1", "127.0.0.1/v 2"}),
        (lambda request: request.headers["X-Tenant"], {"one"}),
    ],
)
def test_keys(server, session, clock, key, expected):
    store = MemoryStore(clock)
    mounted(session, rate="1/s", key=key, store=store, name="api")
    session.headers["X-Tenant"] = "one"
    session.get(f"{server.url}/v1/users?q=1")
    session.get(f"{server.url}/v%202/users")
    assert {*store.keys()} == {f"api:{text.replace('{port}', str(server.port))}" for text in expected}


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://BÜCHER.example/", "http://xn--bcher-kva.example:80"),
        ("http://Example.com:80/", "http://example.com:80"),
        ("http://user:secret@example.com:8080/", "http://example.com:8080"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ],
)
def test_a_key_depends_on_the_prepared_url(session, url, key):
    store = MemoryStore(ManualClock())
    mounted(session, Sink(), rate="1/s", key="origin", store=store, name="api")
    session.get(url)
    assert [*store.keys()] == [f"api:{key}"]


def test_custom_schemes_pass(session):
    sink = Sink()
    session.mount("mock:", ShapedAdapter(sink, rate="1/s"))
    for url in ("mock:", "mock://host:name/path", "mock:one/two"):
        with request_options(skip=url == "mock:"):
            session.get(url)
    assert len(sink.requests) == 3


def test_routes_have_their_own_rates(server, session, clock, left):
    mounted(session, rate="1/s", routes={f"{server.url}/search": "1/min"}, clock=clock)
    for path in ("/search", "/search/users", "/other", "/other"):
        session.get(server.url + path)
    assert left == [0.0, 60.0, 60.0, 61.0]


def test_single_requests_may_have_options(server, session, clock, left):
    store = MemoryStore(clock)
    mounted(session, rate="1/s", burst=5, store=store, name="api")
    with request_options(cost=5):
        session.get(server.url)
    with request_options(skip=True):
        session.get(server.url)
    with request_options(key="tenant"):
        with request_options(cost=5):
            session.get(server.url)
        with request_options(max_wait=0.5), pytest.raises(RateLimitedError, match="tenant"):
            session.get(server.url)
    session.get(server.url)
    assert left == [0.0, 0.0, 0.0, 1.0]


def test_options_of_one_thread_are_not_those_of_another(server, session, clock, left):
    mounted(session, rate="1/s", clock=clock)
    session.get(server.url)
    with request_options(skip=True):
        other = threading.Thread(target=session.get, args=(server.url,))
        other.start()
        other.join()
    assert left == [0.0, 1.0]


def test_redirects_count(server, session, clock, left):
    server.say(lambda a: Reply(302, {"Location": "/there"}) if a.path == "/here" else Reply())
    mounted(session, rate="1/s", clock=clock)
    with request_options(cost=2):
        assert len(session.get(f"{server.url}/here").history) == 1
    session.get(server.url)
    assert left == [0.0, 2.0, 4.0]


def test_both_steps_of_a_digest_authentication_count(server, session, clock, left):
    demand = Reply(401, {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'})
    server.say(lambda arrival: Reply() if "authorization" in arrival.headers else demand)
    mounted(session, rate="1/s", clock=clock)
    assert session.get(server.url, auth=HTTPDigestAuth("user", "secret")).status_code == 200
    assert left == [0.0, 1.0]


def test_requests_that_urllib3_repeats_are_not_seen(server, session, clock, left):
    server.say(lambda _: Reply(500 if len(left) < 3 else 200))
    mounted(session, rate="1/s", clock=clock, max_retries=Retry(5, status_forcelist=[500]))
    assert session.get(server.url).status_code == 200
    assert left == [0.0] * 3


def test_a_refusal_holds_all_threads_of_the_key(server, session):
    clock, left = ManualClock(), []

    def answer(arrival):
        left.append((clock.now(), arrival.path))
        return Reply(429, {"Retry-After": "2"}) if arrival.path == "/first" else Reply()

    server.answer = answer
    policy = Policy("10/s", clock=clock)
    mounted(session, policy=policy, key="default")
    assert session.get(f"{server.url}/first").status_code == 429
    threads = [threading.Thread(target=session.get, args=(server.url,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    with clock._changed:
        assert clock._changed.wait_for(lambda: len(clock._sleepers) == len(threads), PATIENCE_S)
    clock.advance(1.999999)
    assert len(clock._sleepers) == len(threads)
    clock.advance(2.0)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [path for _, path in left] == ["/first", "/", "/", "/"]
    assert left[1][0] >= 2.0


def test_without_feedback_a_refusal_holds_no_key(server, session, clock, left):
    server.say(lambda _: Reply(429, {"Retry-After": "60"}))
    mounted(session, rate="1/s", clock=clock, feedback=None)
    assert [session.get(server.url).status_code for _ in range(2)] == [429, 429]
    assert left == [0.0, 1.0]


def test_a_refusal_of_a_long_wait_is_an_error_of_both_libraries(server, session, clock):
    mounted(session, rate="1/min", max_wait="2s", quota="2/day", clock=clock)
    session.get(server.url)
    with pytest.raises(requests.RequestException) as caught:
        session.get(f"{server.url}/refused", auth=HTTPDigestAuth("user", "secret"))
    assert type(caught.value) is ours.QueueFullError
    assert (caught.value.delay, caught.value.max_wait, caught.value.key) == (60.0, 2.0, HOST)
    assert caught.value.request.path_url == "/refused"
    clock.advance(60)
    session.get(server.url)
    with pytest.raises(requests.RequestException) as spent:
        session.get(server.url)
    assert type(spent.value) is ours.QuotaExhaustedError
    assert len(server.arrivals) == 2
    for error in (caught.value, spent.value):
        assert isinstance(error, ShapekitError)
        assert error.errno is None
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))


def test_a_store_that_is_gone_is_an_error_of_both_libraries(server, session):
    store = MemoryStore()
    mounted(session, rate="1/s", store=store, name="api")
    store.close()
    with pytest.raises(requests.RequestException) as caught:
        session.get(server.url)
    assert isinstance(caught.value, StoreUnavailableError)
    assert server.arrivals == []


def test_a_refusal_may_be_a_response(server, session, clock):
    hooked = []
    mounted(session, rate="1/min", max_wait="2s", on_reject="respond", clock=clock)
    session.hooks["response"].append(lambda response, **_: hooked.append(response))
    session.get(server.url)
    response = session.get(f"{server.url}/refused")
    assert (response.status_code, response.reason) == (429, "Too Many Requests")
    assert response.headers["retry-after"] == "58"
    assert response.json() == {"code": "queue_full", "key": HOST, "retry_after": 58.0}
    assert response.url == response.request.url == f"{server.url}/refused"
    assert response.shapekit.key == HOST
    assert hooked[1] is response
    with pytest.raises(requests.HTTPError):
        response.raise_for_status()
    assert len(server.arrivals) == 1


def test_a_response_carries_its_admission(server, session, clock):
    mounted(session, rate="1/s", clock=clock)
    first, second = session.get(server.url), session.get(server.url)
    assert (first.shapekit.delay, second.shapekit.delay, second.shapekit.key) == (0.0, 1.0, HOST)
    assert second.shapekit.decision.allowed


def test_responses_are_streamed(session):
    class Endless:
        """A body that can be read up to its end, where reading fails."""

        def read(self, size=-1):
            assert size > 0
            return b"x" * size

        def close(self):
            closed.append(self)

    closed = []
    mounted(session, Sink(Endless()), rate="1/s")
    with session.get("http://host/", stream=True) as response:
        assert next(response.iter_content(3)) == b"xxx"
        assert closed == []
    assert len(closed) == 1


def test_a_response_that_cannot_be_returned_is_closed(server, session, monkeypatch):
    responses = []

    class Inner(HTTPAdapter):
        def send(self, *args, **arguments):
            responses.append(super().send(*args, **arguments))
            return responses[-1]

    def interrupted(_):
        raise KeyboardInterrupt

    mounted(session, Inner(), rate="1/s")
    monkeypatch.setattr(ShapingInfo, "of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.get(server.url)
    assert responses[0].raw.closed


def test_a_failed_connection_counts_unless_refund_on_excludes_it(session):
    for refund_on, delay in ((None, 1.0), (requests.ConnectionError, 0.0)):
        policy = Policy("1/s", clock=ManualClock(), refund_on=refund_on)
        mounted(session, Sink(error=requests.ConnectionError("gone")), policy=policy, key="default")
        with pytest.raises(requests.ConnectionError, match="gone"):
            session.get("http://host/")
        assert policy.forecast().first_in == delay


def test_an_interrupted_wait_sends_nothing_and_gives_its_slot_back(session):
    class Interrupting(ManualClock):
        def sleep(self, seconds, alarm):
            raise KeyboardInterrupt

    sink, policy = Sink(), Policy("1/s", clock=Interrupting())
    mounted(session, sink, policy=policy, key="default")
    session.get("http://host/")
    with pytest.raises(KeyboardInterrupt):
        session.get("http://host/")
    assert len(sink.requests) == 1
    assert policy.forecast().first_in == 1.0


def test_the_arguments_of_a_session_reach_the_inner_adapter(session):
    sink = Sink()
    mounted(session, sink, rate="1/s")
    session.get(
        "http://host/", timeout=3, verify=False, cert="a.pem", proxies={"http": "http://p"}, stream=True
    )
    assert sink.arguments == [
        {"stream": True, "timeout": 3, "verify": False, "cert": "a.pem", "proxies": {"http": "http://p"}}
    ]


def test_closing_closes_the_inner_adapter_once(session):
    sink = Sink()
    mounted(session, sink, rate="1/s")
    session.close()
    assert sink.closed == 1


def test_other_attributes_and_arguments_reach_the_inner_adapter():
    inner = HTTPAdapter(max_retries=3)
    adapter = ShapedAdapter(inner, rate="1/s")
    assert adapter.max_retries is inner.max_retries
    adapter.max_retries = Retry(7)
    assert inner.max_retries.total == 7
    assert not hasattr(adapter, "nonsense")
    assert ShapedAdapter(rate="1/s", pool_maxsize=3)._pool_maxsize == 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_subclass_may_set_attributes_before_and_after_ours(server, when):
    class TimeoutAdapter(ShapedAdapter):
        def __init__(self, *args, timeout=5, **options):
            if when == "before":
                self.timeout = timeout
            super().__init__(*args, **options)
            if when == "after":
                self.timeout = timeout

        def send(self, request, **arguments):
            return super().send(request, **{**arguments, "timeout": self.timeout})

    sink = Sink()
    for adapter in (made := TimeoutAdapter(sink, timeout=3, rate="10/s"), copy.copy(made)):
        adapter.send(requests.Request("GET", server.url).prepare())
    assert [arguments["timeout"] for arguments in sink.arguments] == [3, 3]
    assert (made.timeout, sink.timeout) == (3, 3)


def test_an_adapter_without_init_raises_an_error_that_names_it():
    with pytest.raises(AttributeError, match="_adapter before its __init__"):
        ShapedAdapter.__new__(ShapedAdapter).timeout  # noqa: B018


def test_shape_makes_one_limit_for_all_mounted_adapters(server, session, clock, left):
    session.mount(f"{server.url}/special", HTTPAdapter(max_retries=3))
    assert shape(session, rate="1/s", clock=clock) is session
    assert session.get_adapter(f"{server.url}/special").max_retries.total == 3
    for path in ("/", "/special", "/"):
        session.get(server.url + path)
    assert left == [0.0, 1.0, 2.0]
    assert isinstance(session.get_adapter("https://host"), ShapedAdapter)


def test_wrong_arguments_are_refused_when_the_adapter_is_made(refused):
    refused(lambda: ShapedAdapter("10/s"), "adapter")
    refused(lambda: ShapedAdapter(object(), rate="1/s"), "adapter")
    refused(lambda: ShapedAdapter(HTTPAdapter(), rate="1/s", max_retries=3), "max_retries")
    refused(lambda: ShapedAdapter(rate="1/s", nonsense=3), "nonsense")
    refused(ShapedAdapter, "rate")
    refused(lambda: shape(requests.Session()), "rate")
    refused(lambda: shape("10/s", rate="1/s"), "session")
    refused(lambda: shape(shape(requests.Session(), rate="1/s"), rate="1/s"), "session")


class Sink(BaseAdapter):
    """An adapter that sends nothing."""

    def __init__(self, raw=None, error=None):
        super().__init__()
        self.raw, self.error = raw, error
        self.requests, self.arguments, self.closed = [], [], 0

    def send(self, request, **arguments):
        self.requests.append(request)
        self.arguments.append(arguments)
        if self.error is not None:
            raise self.error
        response = requests.Response()
        response.status_code, response.request, response.url = 200, request, request.url
        response.raw = self.raw
        if self.raw is None:
            response._content = b""
        return response

    def close(self):
        self.closed += 1
