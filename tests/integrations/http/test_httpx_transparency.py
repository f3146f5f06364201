"""A wrapper that never has to delay a request changes nothing, neither for the caller nor for the server."""

import copy
import hashlib
import pickle

import anyio
import pytest

from ...adapters.http.server import PATIENCE_S, SILENCE, Reply

UNLIMITED = "1000000/s"


def answer(arrival):
    """A small site."""
    match arrival.path.partition("?")[0]:
        case "/moved":
            return Reply(302, {"Location": "/end", "Set-Cookie": "seen=yes; Path=/"})
        case "/loop":
            return Reply(307, {"Location": "/loop"})
        case "/digest" if "authorization" not in arrival.headers:
            challenge = 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'
            return Reply(401, {"WWW-Authenticate": challenge})
        case "/big":
            return Reply(body=b"x" * 300_000)
        case "/silent":
            return SILENCE
        case "/gone":
            return Reply(404)
    return Reply(body=arrival.body or b"ok", headers={"X-Cookie": arrival.headers.get("cookie", "")})


@pytest.fixture
def site(server):
    server.answer = answer
    return server


def described(response):
    return response.status_code, response.headers.get("x-cookie"), response.read(), len(response.history)


def gets(library, client, site):
    return described(client.get(f"{site.url}/a?b=%20"))


def posts(library, client, site):
    return described(client.post(site.url, json={"a": 1}, params={"q": "é"}))


def sends_files(library, client, site):
    response = client.post(site.url, files={"f": ("name", b"content")}, headers={"X-Boundary": "b"})
    return response.status_code, len(response.content)


def uploads_a_stream(library, client, site):
    return described(client.put(site.url, content=(b"part" for _ in range(1_000))))


def downloads_a_stream(library, client, site):
    with client.stream("GET", f"{site.url}/big") as response:
        early = response.is_closed, response.num_bytes_downloaded
        parts = sum(map(len, response.iter_bytes(1_000)))
    return early, parts, response.is_closed, response.elapsed.total_seconds() > 0


def leaves_a_stream_unread(library, client, site):
    with client.stream("GET", f"{site.url}/big") as response:
        pass
    return response.is_closed, described(client.get(site.url))


def follows_with_cookies(library, client, site):
    return (
        described(client.get(f"{site.url}/moved", follow_redirects=True)),
        dict(client.cookies),
        described(client.get(site.url)),
    )


def runs_in_circles(library, client, site):
    client.max_redirects = 3
    with pytest.raises(library.TooManyRedirects) as caught:
        client.get(f"{site.url}/loop", follow_redirects=True)
    return str(caught.value), str(caught.value.request.url).removeprefix(site.url)


def authenticates(library, client, site):
    return described(client.get(f"{site.url}/digest", auth=library.DigestAuth("me", "secret")))


def loses_patience(library, client, site):
    before = len(site.arrivals)
    with pytest.raises(library.ReadTimeout) as caught:
        client.get(f"{site.url}/silent", timeout=library.Timeout(PATIENCE_S, read=0.05))
    site.wait_for(lambda site: len(site.arrivals) > before)
    return type(caught.value), str(caught.value), caught.value.request.method


def finds_no_server(library, client, site):
    with pytest.raises(library.ConnectError) as caught:
        client.get("http://127.0.0.1:1/")
    return type(caught.value), caught.value.request.url


def knows_no_such_scheme(library, client, site):
    with pytest.raises(library.UnsupportedProtocol) as caught:
        client.get("gopher://x/")
    return type(caught.value), str(caught.value)


def raises_for_status(library, client, site):
    with pytest.raises(library.HTTPStatusError) as caught:
        client.get(f"{site.url}/gone").raise_for_status()
    return caught.value.response.status_code, str(caught.value).replace(site.url, "")


def calls_hooks(library, client, site):
    seen = []
    client.event_hooks = {
        "request": [lambda request: seen.append(request.method)],
        "response": [lambda response: seen.append((response.status_code, response.is_closed))],
    }
    client.get(f"{site.url}/moved", follow_redirects=True)
    return seen


def shows_the_wire(library, client, site):
    response = client.get(site.url, extensions={"trace": lambda *_: None})
    outcome = {
        name: value
        for name, value in response.extensions.items()
        if name in ("http_version", "reason_phrase")
    }
    return (
        outcome,
        response.http_version,
        "network_stream" in response.extensions,
        type(response.stream).__name__,
    )


def pickles_what_it_got(library, client, site):
    response = client.get(site.url)
    again = pickle.loads(pickle.dumps(response))
    return described(again), again.extensions, pickle.loads(pickle.dumps(response.request)).extensions


def refuses_once_closed(library, client, site):
    client.get(site.url)
    client.close()
    with pytest.raises(RuntimeError) as caught:
        client.get(site.url)
    return client.is_closed, str(caught.value)


def refuses_to_be_copied(library, client, site):
    with pytest.raises(TypeError) as caught:
        copy.deepcopy(client)
    return type(caught.value)


SCENARIOS = (
    *(gets, posts, sends_files, uploads_a_stream, downloads_a_stream, leaves_a_stream_unread),
    *(follows_with_cookies, runs_in_circles, authenticates, loses_patience, finds_no_server),
    *(knows_no_such_scheme, raises_for_status, calls_hooks, shows_the_wire, pickles_what_it_got),
    *(refuses_once_closed, refuses_to_be_copied),
)


def seen(server, start):
    """The requests that arrived, without the parts that differ from time to time."""
    return [
        (
            arrival.method,
            arrival.path,
            sorted(arrival.headers),
            len(arrival.body),
            arrival.headers.get("cookie"),
        )
        for arrival in server.arrivals[start:]
    ]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_wrapper_changes_nothing(both, site, scenario):
    library, wrapper = both
    outcomes = []
    for transport in (None, wrapper.ShapedTransport(rate=UNLIMITED)):
        start = len(site.arrivals)
        with library.Client(transport=transport) as client:
            result = scenario(library, client, site)
        connections = len({arrival.peer for arrival in site.arrivals[start:]})
        outcomes.append((result, seen(site, start), connections))
    assert outcomes[0] == outcomes[1]


async def adescribed(response):
    return response.status_code, await response.aread(), len(response.history)


async def agets(library, client, site):
    return await adescribed(await client.get(f"{site.url}/moved", follow_redirects=True))


async def auploads(library, client, site):
    async def parts():
        for _ in range(100):
            yield b"part"

    return await adescribed(await client.put(site.url, content=parts()))


async def adownloads(library, client, site):
    async with client.stream("GET", f"{site.url}/big") as response:
        return response.is_closed, sum([len(part) async for part in response.aiter_bytes(1_000)])


async def aloses_patience(library, client, site):
    before = len(site.arrivals)
    with pytest.raises(library.ReadTimeout) as caught:
        await client.get(f"{site.url}/silent", timeout=library.Timeout(PATIENCE_S, read=0.05))
    site.wait_for(lambda site: len(site.arrivals) > before)
    return type(caught.value)


async def ais_cancelled_while_it_is_answered(library, client, site):
    before = len(site.arrivals)
    with anyio.CancelScope() as scope:

        async def cancel(event, _):
            if event == "http11.receive_response_headers.started":
                scope.cancel()

        await client.get(f"{site.url}/silent", extensions={"trace": cancel})
    site.wait_for(lambda site: len(site.arrivals) > before)
    return scope.cancelled_caught, await adescribed(await client.get(site.url))


AWAITED = (agets, auploads, adownloads, aloses_patience, ais_cancelled_while_it_is_answered)


@pytest.mark.parametrize("scenario", AWAITED, ids=lambda scenario: scenario.__name__)
def test_the_wrapper_changes_nothing_when_awaited(both, site, scenario, anyio_backend):
    library, wrapper = both

    async def run(transport):
        start = len(site.arrivals)
        async with library.AsyncClient(transport=transport) as client:
            return await scenario(library, client, site), seen(site, start)

    bare = anyio.run(run, None, backend=anyio_backend)
    assert anyio.run(run, wrapper.ShapedTransport(rate=UNLIMITED), backend=anyio_backend) == bare


# each request that the server counts is counted


@pytest.mark.parametrize(
    ("path", "options", "calls"),
    [("/a", {}, 1), ("/moved", {"follow_redirects": True}, 2), ("/digest", {"auth": True}, 2)],
)
def test_shapekit_counts_the_requests_that_the_server_counts(both, site, path, options, calls):
    library, wrapper = both
    if "auth" in options:
        options = {"auth": library.DigestAuth("me", "secret")}
    transport = wrapper.ShapedTransport(rate="1/h", burst=10)
    with library.Client(transport=transport) as client:
        client.get(f"{site.url}{path}", **options)
        left = client.get(site.url).extensions["shapekit"].decision.remaining
    assert len(site.arrivals) == calls + 1
    assert left == 10 - calls - 1


# life


class Noting:
    """A transport that records how it is entered and left."""

    def __init__(self):
        self.notes = []

    def __enter__(self):
        self.notes.append("enter")

    def __exit__(self, *_):
        self.notes.append("exit")

    def close(self):
        self.notes.append("close")

    async def __aenter__(self):
        self.notes.append("aenter")

    async def __aexit__(self, *_):
        self.notes.append("aexit")

    async def aclose(self):
        self.notes.append("aclose")

    def handle_request(self, request):
        raise NotImplementedError

    handle_async_request = handle_request


def test_the_inner_transport_is_entered_and_closed_as_often_as_without_the_wrapper(both):
    library, wrapper = both

    def notes(wrapped):
        inner = Noting()
        with library.Client(transport=wrapped(inner)):
            pass
        library.Client(transport=wrapped(inner)).close()

        async def work():
            async with library.AsyncClient(transport=wrapped(inner)):
                pass
            await library.AsyncClient(transport=wrapped(inner)).aclose()

        anyio.run(work)
        return inner.notes

    expected = notes(lambda inner: inner)
    assert expected == ["enter", "exit", "close", "aenter", "aexit", "aclose"]
    assert notes(lambda inner: wrapper.ShapedTransport(inner, rate=1)) == expected


def test_an_unused_transport_is_never_made(both):
    transport = both[1].ShapedTransport(rate=1, verify="a file that is not there")
    transport.close()
    anyio.run(transport.aclose)
    assert repr(transport) == "ShapedTransport(verify=(not shown))"


def test_the_inner_transport_receives_its_arguments(both, site):
    library, wrapper = both
    with library.Client(transport=wrapper.ShapedTransport(rate=1, proxy=site.url)) as client:
        client.get("http://api.x/")
    assert site.arrivals[0].path == "http://api.x/"


def test_digests_of_bodies_survive(both, site):
    library, wrapper = both
    body = bytes(range(256)) * 4_000
    with library.Client(transport=wrapper.ShapedTransport(rate=UNLIMITED)) as client:
        echoed = client.post(site.url, content=body).content
    assert hashlib.sha256(echoed).digest() == hashlib.sha256(body).digest()
