"""In a Celery worker: what becomes of the messages of shaped tasks, between the broker and the pool."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import bootsteps
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.strategy import default
from kombu.exceptions import ContentDisallowed, DecodeError

from shapekit.errors import ConfigError, RateLimitedError, StoreUnavailableError
from shapekit.integrations.celery import attach_all
from shapekit.integrations.celery_holds import Holds, group_of
from shapekit.integrations.celery_parking import GONE, Park, park_of
from shapekit.integrations.celery_shape import SLIP, Settings, Shaped, Slip, attempt_of
from shapekit.reservation import Reservation
from shapekit.stores.parking import Taker
from shapekit.ticket import received

__all__ = ["ShapingStep", "strategy"]

log = logging.getLogger("shapekit.celery")

AGAIN_S = 1.0
"""When to try again what could not be done because a server is gone."""
REST = 4
"""How many times as long as it took to hear that the store is gone it is left alone, so that a worker that
waits for it still does other things."""
AHEAD = 0.8
"""How long before its slot a parked message comes back, in parts of the longest wait in a worker."""
LOOKS = 4
"""How often in that time a worker looks for what has to come back."""
LEAST_LOOK_S = 0.02
MOST_AT_ONCE = 200
"""How many it brings back at a look."""


def strategy(task: Any, app: Any, consumer: Any, **_: Any) -> Callable[..., Any]:
    """What a worker does with the messages of a shaped task: `Task.Strategy`."""
    handle = default(task, app, consumer)
    if not task.shaped.policy.enforce:
        return handle  # it is measured where it runs
    lobby: Lobby = consumer.shapekit

    def received_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        if body is not None:
            # The old protocol, in which there is no place for a turn: the pool waits for it.
            handle(message, body, ack, reject, callbacks)
            return
        start = partial(handle, message, None, ack, reject, callbacks)
        refuse = partial(reject, log, consumer.connection_errors)
        lobby.receive(Delivery(task.shaped, message, refuse, start))

    return received_message


class ShapingStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Opens the lobby when a worker has its connection, and closes it when it loses that, or ends."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        attach_all(parent.app)
        parent.shapekit = Lobby(parent)
        super().__init__(parent, **kwargs)

    def start(self, parent: Any) -> None:
        """With a new connection."""
        parent.shapekit.open()

    def stop(self, parent: Any) -> None:
        """The broker will deliver again what is not acknowledged."""
        parent.shapekit.close()


class Delivery:
    """A message that was delivered."""

    __slots__ = ("_reject", "brings_turn", "message", "shaped", "start", "turn")

    def __init__(self, shaped: Shaped, message: Any, reject: Any, start: Callable[[], Any]) -> None:
        self.shaped = shaped
        self.message = message
        self._reject = reject
        self.start = start
        """To the pool, or away if it was revoked or has expired."""
        self.turn: Reservation | None = None
        self.brings_turn = False
        """Whether its turn travels with it."""
        slip = Slip.of(message.headers)
        if slip is None:
            return
        headers, info = message.headers, message.delivery_info
        again = headers.get("redelivered") or info.get("redelivered")
        if slip.was_redelivered:
            headers["redelivered"] = info["redelivered"] = True
        if slip.turn is not None:
            headers["eta"] = None  # for workers that know nothing of turns
            # Who had it before may have used its turn, or be alive and still about to. Brokers in memory
            # or in files give back the very headers that were at the door of the pool.
            if not again and slip.slot is None:
                self.turn, self.brings_turn = received(shaped.policy.shaper, slip.turn), True

    @property
    def name(self) -> str:
        """What tells this attempt at this task from all others."""
        return attempt_of(self.message.headers)

    @property
    def is_over(self) -> bool:
        """Whether nobody will run it."""
        headers = self.message.headers
        return headers["id"] in state.revoked or (_seconds_to(headers.get("expires")) or 1.0) <= 0

    @property
    def early_s(self) -> float:
        """For how long its own eta forbids it to run."""
        return _seconds_to(self.message.headers.get("eta")) or 0.0

    def take_turn(self) -> float:
        """Reserve; returns how long until the turn comes."""
        args, kwargs, _ = self.message.payload
        admission = self.shaped.admission_of(self.message.headers, args, kwargs)
        shaper = self.shaped.policy.shaper
        turn = shaper.reserve(admission.key, cost=admission.cost)
        if not turn:
            shaper.depart(admission.key, turn.granted)
        self.turn, self.brings_turn = turn, False
        self.message.headers["eta"] = None  # it has passed
        return turn.delay

    def remaining(self) -> float:
        """How long until the turn comes; another is taken if there is none, or it came too long ago."""
        if self.turn is None:
            return self.take_turn()
        remaining_s = self.shaped.policy.shaper.remaining(self.turn)
        return self.take_turn() if remaining_s < -self.shaped.grace_s else remaining_s

    def give_back(self) -> bool:
        """Nobody will use the turn; False if the store is gone, so that it expires unused."""
        if self.turn is not None:
            try:
                self.turn.cancel()
            except StoreUnavailableError as error:
                log.info("the turn of task %s could not be given back: %s", self.name, error)
                return False
        return True

    def go(self, remaining_s: float) -> None:
        """To the pool, now that the turn has come, `remaining_s` before now."""
        if self.turn is not None:
            slip = Slip.travelling(self.message.headers, self.turn)
            self._carry(slip.at(time.monotonic() + remaining_s))
        self.start()

    def refuse(self, error: RateLimitedError) -> None:
        """There will be no turn."""
        if self.shaped.on_reject == "reject":
            log.error("task %s is rejected: %s", self.name, error)
            self._reject(requeue=False)
            return
        self._carry(Slip.refused(self.message.headers, error))
        self.start()

    def park(self, park: Park, holds: Holds, remaining_s: float) -> None:
        """Away, with the turn, until that is near."""
        is_ours, name = self.turn is not None and not self.brings_turn, self.name
        if self.turn is not None:
            shaper = self.shaped.policy.shaper
            if self.turn.granted[3] or self.brings_turn:
                holds.note(shaper, self.turn, park)
            name = f"{group_of(shaper, self.turn.key)}\n{name}"
            self._carry(Slip.travelling(self.message.headers, self.turn))
            # Even where no answer comes, it may be parked, and have the turn.
            self.brings_turn = True
        if not park.put(name, remaining_s, self.message) and is_ours:
            # Delivered twice, and parked before: that one has a turn.
            self.give_back()

    def _carry(self, slip: Slip) -> None:
        self.message.headers[SLIP] = slip.text()


class Lobby:
    """Where messages wait whose turn is near; those whose turn is far away are parked from here.

    What waits here is not acknowledged, and is let off the worker's prefetch count, so that it keeps no
    other task from coming. Where the broker knows no event loop, those who wake up do so in another thread.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._settings = Settings(consumer.app)
        self._longest_s = min(self._settings.block_below_s, self._settings.max_eta_s)
        self._gone = (*GONE, *consumer.connection_errors, *consumer.channel_errors)
        self._park: Park
        self._taker = Taker()
        self._holds = Holds()
        self._fanouts: set[str] = set()
        self._lock = threading.Lock()
        self._waiting: dict[Delivery, tuple[Any, bool]] = {}
        self._left: list[str] = []
        self._look: Any = None
        self._is_open = False
        self._rests_until = 0.0

    def open(self) -> None:
        """Begin to look for what has to come back."""
        consumer = self._consumer
        shaped = [task.shaped for task in consumer.app.tasks.values() if hasattr(task, "shaped")]
        for one in shaped:
            if not one.policy.shaper.shared:
                raise ConfigError(
                    "store",
                    one.policy.name,
                    "is in the memory of each process",
                    "give the policy a shared one",
                )
        if shaped:
            exchanges = [queue.exchange for queue in consumer.task_consumer.queues]
            self._fanouts = {exchange.name for exchange in exchanges if exchange.type == "fanout"}
            self._park = park_of(consumer.app, consumer.task_consumer.channel, self._taker)
            self._park.take_up(self._left)
            self._left = []
            self._is_open = True
            self._look_in(0.0)

    def close(self) -> None:
        """Forget who waits: the messages are the broker's again, and whoever gets them takes other turns."""
        timer = self._consumer.timer
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._is_open = False
            if self._look is not None:
                timer.cancel(self._look)
        self._left = [delivery.message.delivery_tag for delivery in waiting]
        for entry, _ in waiting.values():
            timer.cancel(entry)
        for delivery in waiting:
            if not delivery.give_back():
                break  # the store is gone for the others, too

    def receive(self, delivery: Delivery) -> None:
        """Take a message from the broker."""
        if delivery.is_over:
            delivery.give_back()
            delivery.start()
        elif delivery.turn is None and delivery.early_s > 0:
            self._settle(delivery, delivery.early_s)
        else:
            self._go_on(delivery)

    def _go_on(self, delivery: Delivery) -> None:
        """Find out when the turn of a message comes."""
        asked = time.monotonic()
        if asked < self._rests_until:
            self._wait(delivery, self._rests_until - asked)
            return
        try:
            remaining_s = delivery.remaining()
        except RateLimitedError as error:
            delivery.refuse(error)
        except StoreUnavailableError as error:
            heard = time.monotonic()
            rest_s = max(AGAIN_S, REST * (heard - asked))
            log.warning("shaped tasks wait %.1f s for the store: %s", rest_s, error)
            self._rests_until = heard + rest_s
            self._wait(delivery, rest_s)
        except Exception:
            # No key or cost by these arguments: the task is told so, in the pool.
            log.debug("task %s goes to the pool as it is", delivery.name, exc_info=True)
            delivery.start()
        else:
            self._settle(delivery, remaining_s)

    def _settle(self, delivery: Delivery, remaining_s: float) -> None:
        """Let a message go, wait, or be parked."""
        if remaining_s <= 0:
            delivery.go(remaining_s)
        elif self._stays(delivery, remaining_s):
            self._wait(delivery, remaining_s)
        else:
            try:
                delivery.park(self._park, self._holds, remaining_s)
            except self._gone as error:
                log.warning("task %s could not be parked: %s", delivery.name, error)
                self._wait(delivery, min(remaining_s, AGAIN_S))

    def _stays(self, delivery: Delivery, remaining_s: float) -> bool:
        """Whether a message waits here: its turn is near, or it is one that every worker gets a copy of."""
        is_near = remaining_s <= self._longest_s and self._room > 0
        return is_near or delivery.message.delivery_info.get("exchange") in self._fanouts

    @property
    def _room(self) -> int:
        return self._settings.most_waiting - len(self._waiting)

    def _wait(self, delivery: Delivery, length_s: float) -> None:
        # Those for whom no other was let in are not taken off again: there is an upper limit.
        qos = self._consumer.qos
        lets_other_in = self._room > 0 and qos.value < qos.increment_eventually()
        with self._lock:
            entry = self._consumer.timer.call_after(length_s, self._wake, (delivery,))
            self._waiting[delivery] = entry, lets_other_in

    def _wake(self, delivery: Delivery) -> None:
        with self._lock:
            known = self._waiting.pop(delivery, None)
        if known is None:
            return
        try:
            self.receive(delivery)
        except (InvalidTaskError, ContentDisallowed) as error:
            self._consumer.on_invalid_task(None, delivery.message, error)
        except DecodeError as error:
            self._consumer.on_decode_error(delivery.message, error)
        finally:
            if known[1]:
                self._consumer.qos.decrement_eventually()

    def _look_in(self, length_s: float) -> None:
        with self._lock:
            if self._is_open:
                self._look = self._consumer.timer.call_after(length_s, self._bring_back)

    def _bring_back(self) -> None:
        room, found = min(self._room, MOST_AT_ONCE) if self._park.has_room else 0, 0
        try:
            if room > 0:
                self._holds.look(self._park)
                found = self._park.bring_back(self._longest_s * AHEAD, room)
        except self._gone as error:
            log.warning("cannot look for parked tasks: %s", error)
        finally:
            # Where there is no room for all who are due, there will be soon.
            is_full = found >= room
            self._look_in(LEAST_LOOK_S if is_full else max(self._longest_s / LOOKS, LEAST_LOOK_S))


def _seconds_to(instant: str | None) -> float | None:
    """Until when, from a message; None if it says nothing, or nothing that can be read."""
    if instant is None:
        return None
    try:
        at = datetime.fromisoformat(instant)
    except (TypeError, ValueError):
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time()
