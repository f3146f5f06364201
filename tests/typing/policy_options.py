"""Checked by mypy and pyright, never run: type checkers find a wrong option wherever options are passed."""

from typing import Unpack

from shapekit import Policy, shaped
from shapekit.config import PolicyOptions
from shapekit.integrations.httpx import ShapedTransport
from shapekit.integrations.requests import request_options


def search(**options: Unpack[PolicyOptions]) -> Policy:
    """Options travel with their types."""
    return Policy("25/s", **options)


Policy("10/s", burst=5, pace="burst", max_wait=None, prefetch="1s", refund_on=(OSError, ValueError))
Policy(rate="10/s", quota="5/day", spread=True, key=str, feedback=None)
shaped("10/s", key="{user}", cost=len, feedback="hold", per="instance")
shaped(policy=search(name="search", concurrency=3), cost=2)
ShapedTransport(rate="10/s", prefetch="1s", key="origin", http2=True)
ShapedTransport(rate="10/s").policy.shaper.resume(key="api.example.com")
request_options(cost=2, max_wait=None)  # as `admit(max_wait=None)`: no bound

Policy("10/s", brust=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Policy("10/s", burst="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
search(lease="1s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
shaped("10/s", longest_sleep=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
shaped("10/s", enforce="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ShapedTransport(rate="10/s", prefetch=[])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ShapedTransport(rate="10/s", brust=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
