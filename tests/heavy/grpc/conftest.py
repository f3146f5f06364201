"""A real gRPC server on loopback, of generic handlers: methods are named after the four kinds of call."""

import threading
from concurrent import futures

import grpc
import pytest

from shapekit import ManualClock, Policy


class Service(grpc.GenericRpcHandler):
    """Echoes bytes, and records the calls. The function that `says` returns is applied to the context."""

    def __init__(self):
        self.calls = []
        """Method, request and seconds of the deadline left, of each call that arrived."""
        self.says = lambda context: None
        self.cancelled = threading.Event()
        """Whether a client gave up an endless call."""

    def service(self, handler_call_details):
        method = handler_call_details.method.rpartition("/")[2]
        handlers = {
            "UnaryUnary": (grpc.unary_unary_rpc_method_handler, self._one),
            "UnaryStream": (grpc.unary_stream_rpc_method_handler, self._many),
            "StreamUnary": (grpc.stream_unary_rpc_method_handler, self._one),
            "StreamStream": (grpc.stream_stream_rpc_method_handler, self._many),
            "Endless": (grpc.unary_stream_rpc_method_handler, self._endless),
        }
        make, answer = handlers[method]

        def answered(request, context):
            request = request if isinstance(request, bytes) else b"".join(request)
            self.calls.append((handler_call_details.method, request, context.time_remaining()))
            self.says(context)
            return answer(request, context)

        return make(answered)

    def _one(self, request, context):
        return request

    def _many(self, request, context):
        return iter([request, request])

    def _endless(self, request, context):
        context.add_callback(self.cancelled.set)
        yield request
        self.cancelled.wait(30)


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def target(service):
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    service.cancelled.set()
    server.stop(None).wait()


@pytest.fixture
def policy():
    """One call a minute, of virtual time: a call that may wait for its slot gets there at once."""
    return Policy("1/min", name="api", clock=ManualClock(autojump=True))
