"""No repr, error, pickle, log or output of the command contains a secret."""

from __future__ import annotations

import logging
import pickle
from contextlib import closing, suppress
from functools import partial
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from shapekit import (
    ConfigError,
    Gate,
    RedisStore,
    ResilientStore,
    ShapekitError,
    Shaper,
    StoreUnavailableError,
)
from shapekit.algorithms.gcra import GCRA
from shapekit.cli.main import cli
from shapekit.cli.top import place_of
from shapekit.integrations.aiohttp import shaped_middleware
from shapekit.integrations.httpx import ShapedTransport, shape
from shapekit.integrations.requests import ShapedAdapter
from shapekit.stores.redis.connections import unavailable

SECRET = "s3cr3t-t0k3n"


def urls() -> list[str]:
    """Places for a password or a token; no server listens there."""
    at = "127.0.0.1:1"
    short = "socket_timeout=0.2&socket_connect_timeout=0.2"
    return [
        f"redis://:{SECRET}@{at}/0?{short}",
        f"redis://{SECRET}:{SECRET}@{at}/0?{short}",
        f"redis://{at}/0?password={SECRET}&{short}",
        f"redis://{at}/0?username={SECRET}&client_name={SECRET}&{short}",
        f"unix://:{SECRET}@/nowhere/redis.sock?{short}",
        f"redis://:{SECRET}@{at}/0?token={SECRET}",
        f"redis://:{SECRET}@{at}/0?socket_timeout={SECRET}",
        f"redis://{at}/{SECRET}",
        f"redis://:#{SECRET}@{at}",
    ]


def check_silent(*values: object) -> None:
    for text in values:
        for form in (text if isinstance(text, bytes) else str(text).encode(), repr(text).encode()):
            assert SECRET.encode() not in form


def contents_of(error: BaseException) -> list[object]:
    """Everything that an error and its causes contain."""
    values: list[object] = []
    cause: BaseException | None = error
    while cause is not None:
        values += [cause, cause.args, vars(cause)]
        cause = cause.__cause__ or cause.__context__
    return values


@pytest.mark.parametrize("number", range(len(urls())))
def test_stores_and_their_errors_contain_no_secret(number: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    try:
        store = RedisStore.from_url(urls()[number])
    except ShapekitError as error:
        check_silent(*contents_of(error), pickle.dumps(error), caplog.text)
        return
    with closing(store):
        gate, shaper = Gate(GCRA("1/s"), name="gate", store=store), Shaper("1/s", name="s", store=store)
        check_silent(store, gate, shaper, shaper.core.queue)
        for ask in (gate.check, shaper.reserve, store.reset_all, lambda: list(store.survey())):
            with pytest.raises(StoreUnavailableError) as caught:
                ask()
            check_silent(*contents_of(caught.value), pickle.dumps(caught.value))
        with closing(ResilientStore(store, on_outage="open", timeout=0.2)) as resilient:
            guarded = Gate(GCRA("1/s"), name="gate", store=resilient)
            assert guarded.check()
            check_silent(resilient, guarded)
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)) as refused:
            pickle.dumps(store)
        check_silent(*contents_of(refused.value))
    check_silent(caplog.text)


@pytest.mark.parametrize("number", range(len(urls())))
@pytest.mark.parametrize("command", ["top", "hold", "resume", "reset"])
@pytest.mark.parametrize("by", ["option", "variable"])
def test_the_command_prints_no_secret(number: int, command: str, by: str) -> None:
    url = urls()[number]
    more = {"top": ["--once"], "hold": ["s:k", "1s"], "resume": ["s:k"], "reset": ["s:k"]}
    words = [command, *more[command]]
    if by == "option":
        result = CliRunner(env={"SHAPEKIT_STORE": ""}).invoke(cli, [*words, "--store", url])
    else:
        result = CliRunner(env={"SHAPEKIT_STORE": url}).invoke(cli, words)
    assert result.exit_code == 2
    assert result.stderr.startswith("shapekit: ")
    check_silent(result.stdout, result.stderr)


@pytest.mark.parametrize(
    "where",
    [
        f"http://someone:{SECRET}@host/0",
        f"redis+tls://:{SECRET}@host",
        f"redis:/:{SECRET}@host",
        f"rediss:///{SECRET}@host",
        f"ftp://host?token={SECRET}",
        f":{SECRET}@localhost:6379",
    ],
)
def test_the_error_about_a_misspelt_store_contains_no_secret(where: str) -> None:
    result = CliRunner().invoke(cli, ["top", "--once", "--store", where])
    assert result.exit_code == 2
    check_silent(result.stdout, result.stderr)


@pytest.mark.parametrize("number", range(7))
def test_the_headline_of_the_table_contains_no_secret(number: int) -> None:
    check_silent(place_of(urls()[number]))


def test_the_errors_of_clients_are_passed_on_without_secrets() -> None:
    error = unavailable(ConnectionError("Error 111 connecting to 127.0.0.1:6379. Connection refused."))
    assert "ConnectionError" in str(error)


@pytest.mark.parametrize(
    "options",
    [{"proxy": f"http://me:{SECRET}@proxy:1"}, {"cert": ("a", "b", SECRET)}, {"auth": ("me", SECRET)}],
)
def test_wrappers_of_clients_and_their_errors_contain_no_secret(options: Any) -> None:
    with suppress(ConfigError):
        check_silent(ShapedTransport(rate="1/s", **options))
    for make in (
        partial(ShapedTransport, httpx.MockTransport(lambda _: httpx.Response(200)), rate="1/s", **options),
        partial(ShapedAdapter, rate="1/s", **options),
        partial(shaped_middleware, rate="1/s", **options),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        check_silent(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ShapedTransport(routes={f"https://me:{SECRET}@api.x/": "1/s"}),
        lambda: ShapedTransport(routes={f"https://me:{SECRET}@api.x/": "1/parsec"}),
        lambda: ShapedTransport(routes={f"https://me:{SECRET}@api.x:99999/": "1/s"}),
        lambda: ShapedTransport(routes={f"https://api.x/?token={SECRET}": "1/s"}),
        lambda: ShapedTransport(f"https://me:{SECRET}@api.x/", rate="1/s"),  # type: ignore[arg-type]
        lambda: ShapedAdapter(f"https://me:{SECRET}@api.x/", rate="1/s"),  # type: ignore[arg-type]
        lambda: shape(f"https://api.x/?token={SECRET}", rate="1/s"),  # type: ignore[type-var]
    ],
)
def test_errors_show_no_secret_of_a_url(make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    check_silent(*contents_of(caught.value))
    assert "api.x" in str(caught.value)


def test_the_error_about_an_unknown_option_of_a_request_contains_no_secret() -> None:
    transport = ShapedTransport(httpx.MockTransport(lambda _: httpx.Response(200)), rate="1/s")
    with httpx.Client(transport=transport) as client, pytest.raises(ConfigError) as caught:
        client.get("https://api.x", extensions={"shapekit": {"token": SECRET}})
    check_silent(*contents_of(caught.value))
