"""An AMQP 0-9-1 server for tests: as much of one as Celery uses, on a real socket.

It has to behave as a RabbitMQ does: with the URL of one in SHAPEKIT_AMQP, the same tests use that instead.
"""

import os
import socket
import struct
import threading
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from socketserver import StreamRequestHandler, ThreadingTCPServer

from pamqp import frame
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue
from pamqp.header import ContentHeader

GREETING = b"AMQP\x00\x00\x09\x01"
MOST_BYTES = 131_072


@dataclass
class Message:
    """A published message, and whether it was delivered before."""

    exchange: str
    routing_key: str
    properties: Basic.Properties
    body: bytes
    redelivered: bool = False


@dataclass
class Consumer:
    """A consumer of a queue, and its channel."""

    tag: str
    line: "Line"
    queue: str
    no_ack: bool
    most: int
    unacknowledged: int = 0

    def has_room(self):
        """Whether one more message may wait for its acknowledgement."""
        is_free = not self.most or self.unacknowledged < self.most
        return self.no_ack or (is_free and self.line.has_room())


@dataclass
class Line:
    """One channel of a connection."""

    peer: "Peer"
    number: int
    consumers: dict[str, Consumer] = field(default_factory=dict)
    unacknowledged: dict[int, tuple[Consumer, Message]] = field(default_factory=dict)
    most: int = 0
    most_each: int = 0
    tags: count = field(default_factory=lambda: count(1))
    confirms: count | None = None
    publishing: tuple[Basic.Publish, ContentHeader, bytes] | None = None

    def send(self, *what):
        """Answer on this channel."""
        for one in what:
            self.peer.wfile.write(frame.marshal(one, self.number))

    def has_room(self):
        """Whether one more message may wait for its acknowledgement."""
        return not self.most or len(self.unacknowledged) < self.most


class Books:
    """Queues and their bindings. Changes need the `lock`."""

    def __init__(self):
        self.lock = threading.RLock()
        self.queues = {}
        self.exchanges = {"": "direct"}
        self.bindings = []
        self.consumers = []
        self.peers = set()
        self.losing = 0

    def publish(self, message):
        """Once to each queue."""
        if message.exchange:
            kind = self.exchanges[message.exchange]
            found = {
                queue
                for exchange, pattern, queue in self.bindings
                if exchange == message.exchange and is_match(kind, pattern, message.routing_key)
            }
        else:
            found = {message.routing_key}
        for queue in found & self.queues.keys():
            self.queues[queue].append(replace(message))
            self.deliver(queue)

    def deliver(self, queue):
        """As many as consumers have room for, in turns."""
        waiting = self.queues.get(queue, ())
        while waiting:
            free = [one for one in self.consumers if one.queue == queue and one.has_room()]
            if not free:
                return
            self.consumers.remove(free[0])
            self.consumers.append(free[0])
            self.send(free[0], waiting.popleft())

    def send(self, consumer, message):
        """Deliver one."""
        line, tag = consumer.line, next(consumer.line.tags)
        if not consumer.no_ack:
            line.unacknowledged[tag] = consumer, message
            consumer.unacknowledged += 1
        delivery = (consumer.tag, tag, message.redelivered, message.exchange, message.routing_key)
        # A peer that is gone: its unacknowledged messages go back when its end is noticed.
        with suppress(OSError):
            line.send(Basic.Deliver(*delivery), *content(message))

    def settle(self, line, tag, *, multiple=False, requeue=False):
        """Forget acknowledged messages, or put them back where they were."""
        tags = [known for known in line.unacknowledged if known == tag or (multiple and known <= tag)]
        for known in reversed(tags):
            consumer, message = line.unacknowledged.pop(known)
            consumer.unacknowledged -= 1
            if requeue and consumer.queue in self.queues:
                message.redelivered = True
                self.queues[consumer.queue].appendleft(message)
        for queue in {consumer.queue for consumer in self.consumers}:
            self.deliver(queue)

    def end(self, line):
        """A channel ends: its unacknowledged messages go back."""
        self.consumers = [consumer for consumer in self.consumers if consumer.line is not line]
        self.settle(line, max(line.unacknowledged, default=0), multiple=True, requeue=True)


def is_match(kind, pattern, key):
    """Whether a routing key is one of a binding's."""
    if kind == "topic":
        return is_topic(pattern.split("."), key.split("."))
    return kind == "fanout" or pattern == key


def is_topic(pattern, words):
    """`*` is one word, `#` any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(is_topic(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and is_topic(pattern[1:], words[1:])


def content(message):
    """The frames that follow the method."""
    yield ContentHeader(body_size=len(message.body), properties=message.properties)
    most = MOST_BYTES - 8
    for start in range(0, len(message.body), most):
        yield ContentBody(message.body[start : start + most])


class Peer(StreamRequestHandler):
    """One connection."""

    def handle(self):
        """Serve the connection until it ends, whichever way."""
        self.books = self.server.books
        self.lines = {}
        with suppress(OSError, EOFError):
            self._greet()
        with self.books.lock:
            self.books.peers.discard(self)
            for line in self.lines.values():
                self.books.end(line)

    def _greet(self):
        if self.rfile.read(len(GREETING)) != GREETING:
            return
        with self.books.lock:
            self.books.peers.add(self)
        about = {
            "product": "RabbitMQ",
            "version": "4.3.0",
            "capabilities": {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True},
        }
        self.wfile.write(frame.marshal(Connection.Start(server_properties=about), 0))
        while True:
            number, received = self._read()
            with self.books.lock:
                if not self._answer(number, received):
                    return

    def _read(self):
        start = self.rfile.read(7)
        if len(start) < 7:
            raise EOFError
        (size,) = struct.unpack(">xxxI", start)
        _, number, received = frame.unmarshal(start + self.rfile.read(size + 1))
        return number, received

    def _answer(self, number, received):
        """False if that was the end."""
        line = self.lines.get(number)
        match received:
            case Connection.StartOk():
                answer = Connection.Tune(channel_max=2047, frame_max=MOST_BYTES)
            case Connection.Open():
                answer = Connection.OpenOk()
            case Connection.Close():
                answer = Connection.CloseOk()
            case Channel.Open():
                line = self.lines[number] = Line(self, number)
                answer = Channel.OpenOk()
            case Channel.Close():
                self.books.end(self.lines.pop(number))
                answer = Channel.CloseOk()
            case ContentHeader() | ContentBody() | Basic.Publish():
                answer = self._published(line, received)
            case Basic.Ack() | Basic.Nack() | Basic.Reject():
                self.books.settle(
                    line,
                    received.delivery_tag,
                    multiple=getattr(received, "multiple", False),
                    requeue=getattr(received, "requeue", False),
                )
                answer = None
            case Basic.Qos() | Basic.Consume() | Basic.Cancel() | Confirm.Select():
                answer = self._listened(line, received)
            case Exchange.Declare() | Queue.Declare() | Queue.Bind() | Queue.Delete():
                answer = self._declared(received)
            case _:
                answer = None
        if answer is not None and not getattr(received, "nowait", False):
            self.wfile.write(frame.marshal(answer, number))
        if isinstance(received, Basic.Consume):
            self.books.deliver(received.queue)
        return not isinstance(received, Connection.Close)

    def _published(self, line, received):
        """The confirmation, once the whole message has arrived."""
        if isinstance(received, Basic.Publish):
            line.publishing = received, None, b""
            return None
        method, header, body = line.publishing
        if isinstance(received, ContentHeader):
            header = received
        else:
            body += received.value
        line.publishing = method, header, body
        if len(body) < header.body_size:
            return None
        if self.books.losing:
            self.books.losing -= 1
            raise EOFError
        self.books.publish(Message(method.exchange, method.routing_key, header.properties, body))
        return None if line.confirms is None else Basic.Ack(next(line.confirms))

    def _listened(self, line, received):
        match received:
            case Basic.Qos():
                if received.global_:
                    line.most = received.prefetch_count
                    for consumer in line.consumers.values():
                        self.books.deliver(consumer.queue)
                else:
                    line.most_each = received.prefetch_count
                return Basic.QosOk()
            case Basic.Consume():
                consumer = Consumer(
                    received.consumer_tag, line, received.queue, received.no_ack, line.most_each
                )
                line.consumers[received.consumer_tag] = consumer
                self.books.consumers.append(consumer)
                return Basic.ConsumeOk(received.consumer_tag)
            case Basic.Cancel():
                self.books.consumers.remove(line.consumers.pop(received.consumer_tag))
                return Basic.CancelOk(received.consumer_tag)
            case _:
                line.confirms = count(1)
                return Confirm.SelectOk()

    def _declared(self, received):
        books = self.books
        match received:
            case Exchange.Declare():
                books.exchanges[received.exchange] = received.exchange_type
                return Exchange.DeclareOk()
            case Queue.Declare():
                queue = received.queue or f"amq.gen-{uuid.uuid4()}"
                waiting = books.queues.setdefault(queue, deque())
                return Queue.DeclareOk(queue, len(waiting), 0)
            case Queue.Bind():
                binding = received.exchange, received.routing_key, received.queue
                if binding not in books.bindings:
                    books.bindings.append(binding)
                return Queue.BindOk()
            case _:
                return Queue.DeleteOk(len(books.queues.pop(received.queue, ())))


class _Server(ThreadingTCPServer):
    daemon_threads = True


class AmqpServer:
    """A server, or the RabbitMQ of SHAPEKIT_AMQP."""

    def __init__(self, *, is_own=False):
        self.url = None if is_own else os.environ.get("SHAPEKIT_AMQP")
        self._server = None
        if self.url is None:
            self._server = _Server(("127.0.0.1", 0), Peer)
            self._server.books = Books()
            self.url = f"amqp://guest:guest@127.0.0.1:{self._server.server_address[1]}//"
            threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def lose(self, count):
        """Lose the next messages that are published, and the connections that they come by."""
        self._server.books.losing = count

    def drop(self):
        """Close all connections at once."""
        with self._server.books.lock:
            for peer in list(self._server.books.peers):
                with suppress(OSError):
                    peer.connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        """Stop the server, if the test started it."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
