"""A process that calls without a pause: `python worker.py KIND TARGET STORE SECONDS`.

Prints "ready", waits for a line, and then prints how many of its calls were answered and how many refused.
KIND is how its channel is limited: "shared" by all processes, "apart" in each, or "none", and then the
process obeys a refusal itself.
"""

import json
import sys
import time

import grpc

from shapekit.integrations.grpc import shape

PAUSE_S = 1.0
"""The wait that the server asks for."""

if __name__ == "__main__":
    kind, target, store, seconds = sys.argv[1:]
    channel = grpc.insecure_channel(target)
    if kind == "shared":
        channel = shape(channel, rate="20/s", name="grpc", store=store)
    elif kind == "apart":
        channel = shape(channel, rate="20/s")
    call = channel.unary_unary("/echo.Echo/UnaryUnary")
    print("ready", flush=True)
    sys.stdin.readline()
    answered = refused = 0
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            call(b"x")
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            refused += 1
            if kind == "none":
                time.sleep(PAUSE_S)
        else:
            answered += 1
    print(json.dumps([answered, refused]), flush=True)
