"""niquests, apart from the others: it puts a package of its own in the place of urllib3."""

import pytest

from ..cookbook.recipes import left


def niquests(made, url):
    made["session"].get(url)


async def niquests_async(made, url):
    await made["asession"].get(url)


@pytest.fixture(params=[niquests, niquests_async], ids=lambda call: call.__name__)
def call(request):
    return request.param


def test_each_attempt_takes_a_slot(call, shapekit_time):
    instants = left("niquests", call, shapekit_time.now, ["/one", "/moved"])
    assert instants == pytest.approx([0.0, 0.1, 0.2])


def test_a_refusal_holds_the_next_request(call, shapekit_time):
    instants = left("niquests", call, shapekit_time.now, ["/one", "/two"], refused=1)
    assert instants == pytest.approx([0.0, 7.1])
