"""Answers that a server may give, made with the libraries that servers use."""

import time

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode
from grpc_status import rpc_status


def packed(*details):
    """A google.rpc.Status with these details, in its wire form."""
    status = Status(code=8, message="slow down")
    for detail in details:
        into = Any()
        into.Pack(detail)
        status.details.append(into)
    return status


def retry_in(seconds, nanos=0):
    return RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos))


def refusing(code, details="no", *, pushback=None, retry_info=()):
    """A function that makes a server end a call with this status."""

    def says(context):
        metadata = []
        if retry_info:
            metadata += rpc_status.to_status(packed(*retry_info)).trailing_metadata
        if pushback is not None:
            metadata.append(("grpc-retry-pushback-ms", pushback))
        context.set_trailing_metadata(tuple(metadata))
        context.abort(code, details)

    return says


EXHAUSTED, UNAVAILABLE = StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE
INFO = ErrorInfo(reason="RATE_LIMIT_EXCEEDED", domain="example.com", metadata={"quota": "calls"})

HOLDS = {
    "RetryInfo": ({"code": EXHAUSTED, "retry_info": [retry_in(7)]}, 7.0),
    "RetryInfo after others": ({"code": EXHAUSTED, "retry_info": [INFO, retry_in(2, 500_000_000)]}, 2.5),
    "pushback": ({"code": EXHAUSTED, "pushback": "1500"}, 1.5),
    "both": ({"code": EXHAUSTED, "pushback": "1500", "retry_info": [retry_in(3)]}, 3.0),
    "unavailable": ({"code": UNAVAILABLE, "retry_info": [retry_in(7)]}, 7.0),
    "no time": ({"code": EXHAUSTED}, 1.0),
    "do not repeat": ({"code": EXHAUSTED, "pushback": "-1"}, 1.0),
    "far away": ({"code": EXHAUSTED, "retry_info": [retry_in(315_576_000_000)]}, 900.0),
}
"""Answers of a server, and for how many seconds each holds calls."""

NO_HOLDS = {
    "unavailable": {"code": UNAVAILABLE},
    "not found": {"code": StatusCode.NOT_FOUND},
    "internal": {"code": StatusCode.INTERNAL},
    "not found, with a time": {"code": StatusCode.NOT_FOUND, "retry_info": [retry_in(7)]},
}


def until(condition):
    """Wait for the work that another thread does after a call has ended."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
