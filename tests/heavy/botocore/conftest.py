from types import SimpleNamespace

import boto3
import pytest
from aiobotocore.session import get_session
from botocore.config import Config

from .server import Server


@pytest.fixture
def server():
    with Server() as server:
        yield server


@pytest.fixture
def options(server):
    """Options that lead a client to the server. It makes up to three attempts."""
    return {
        "endpoint_url": server.url,
        "region_name": "eu-west-1",
        "aws_access_key_id": "AKID",
        "aws_secret_access_key": "secret",
        "config": Config(retries={"mode": "standard", "total_max_attempts": 3}),
    }


@pytest.fixture
def client(options):
    """A client for SQS that is not shaped yet."""
    client = boto3.client("sqs", **options)
    yield client
    client.close()


@pytest.fixture
def aclient(options):
    """A context of an unshaped client of aiobotocore."""
    return lambda: get_session().create_client("sqs", **options)


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch):
    """botocore retries at once, not after a random time."""
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
