"""The wait in a `google.rpc.Status` is read as protobuf itself reads it, and no bytes do any harm."""

import math

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import QuotaFailure
from hypothesis import example, given
from hypothesis import strategies as st

from shapekit.integrations.grpc import _retry_info_ms

from .answers import INFO, packed, retry_in

OTHERS = st.sampled_from([INFO, QuotaFailure(violations=[{"subject": "project", "description": "é" * 200}])])


def wait_ms(status):
    return _retry_info_ms({"grpc-status-details-bin": status})


@given(
    st.lists(OTHERS, max_size=2),
    st.integers(-10, 315_576_000_000),
    st.integers(0, 999_999_999),
    st.lists(OTHERS, max_size=2),
)
def test_the_wait_is_found_among_the_details(before, seconds, nanos, after):
    delay = Duration(seconds=seconds, nanos=nanos)
    status = packed(*before, retry_in(seconds, nanos), *after).SerializeToString()
    assert wait_ms(status) == math.ceil(delay.seconds * 1_000 + delay.nanos / 1_000_000)


@given(st.lists(OTHERS, max_size=3))
def test_a_status_without_a_wait_reads_as_zero(details):
    assert wait_ms(packed(*details).SerializeToString()) == 0


@given(st.binary(max_size=200))
@example(b"\x1a\xf5" + b"\xff" * 8 + b"\x01")  # a length of -11, which leads back to the beginning
def test_no_bytes_do_any_harm(status):
    assert isinstance(wait_ms(status), int)


@given(st.data())
def test_a_damaged_status_does_no_harm(data):
    status = bytearray(packed(INFO, retry_in(3)).SerializeToString())
    at = data.draw(st.integers(0, len(status) - 1))
    status[at] = data.draw(st.integers(0, 255))
    assert isinstance(wait_ms(bytes(status[: data.draw(st.integers(0, len(status)))])), int)
