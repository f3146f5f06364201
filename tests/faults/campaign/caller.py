"""A caller: one of several processes that share two limits and call as often as these allow.

`python caller.py JSON` checks a gate all the time, and has a shaper with several waiting calls; each call
that is admitted goes to the receiving server. Half of the callers do so in threads, half on an event loop. A
caller prints a line when it loses its store, when that is back, and at the end its longest question.
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

PATIENCE_S = 20.0
GATE, SHAPER = "gate", "shaper"
WAITERS = 2
"""Calls that wait for slots of the shaper at once, in each process."""
PAUSE_S = 0.008
"""Between two questions of the gate, and after a call that nothing delayed."""
MAX_WAIT_S = 5.0


class Caller:
    """The process, from the side that started it."""

    def __init__(self, number, url, **options):
        what = json.dumps({"number": number, "url": url, **options})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, str(Path(__file__)), what], **pipes)
        self.number = number
        self.began_at = None
        self.killed_at = None
        self.outages = []
        """When it has lost its store, and when it was back; None while it is not."""
        self.longest = (0.0, 0.0)
        """From when to when it has waited for its longest answer."""
        self.in_vain = 0
        """Questions that have failed; each may have been charged all the same."""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self._process.pid

    @property
    def is_lost(self):
        """Whether it is without its store now."""
        return bool(self.outages) and self.outages[-1][1] is None

    def wait(self, done):
        """Wait until its lines make this true."""
        with self._news:
            assert self._news.wait_for(done, PATIENCE_S), self._errors("it never happened")

    def begin(self):
        """Wait until it is ready, and let it call."""
        self.wait(lambda: self.began_at is not None)
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill(self):
        """Kill it, as the system does when it needs the memory."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self.killed_at = time.monotonic()
        self._reader.join(PATIENCE_S)

    def end(self):
        """Let it make no more calls, and wait for its last line."""
        if self.killed_at is None:
            self._process.stdin.close()
            self._reader.join(PATIENCE_S)
            assert self._process.wait(PATIENCE_S) == 0, self._errors("it has failed")

    def close(self):
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            pipe.close()

    def _read(self):
        for line in self._process.stdout:
            word, *values = json.loads(line)
            with self._news:
                match word:
                    case "ready":
                        self.began_at = time.monotonic()
                    case "lost":
                        self.outages.append([values[0], None])
                    case "back":
                        self.outages[-1][1] = values[0]
                    case "end":
                        self.longest, self.in_vain = values
                self._news.notify_all()

    def _errors(self, what):
        self._process.kill()
        return f"{what}: {self._process.stderr.read()}"


class _Work:
    """What a caller does, in threads or in tasks."""

    def __init__(self, options):
        from shapekit import GCRA, Gate, ResilientStore, Shaper, listen  # noqa: PLC0415 - the process alone
        from shapekit.stores.redis import RedisStore  # noqa: PLC0415

        self.number = options["number"]
        self.port = options["port"]
        mode = options["mode"]
        self.admits_itself = mode in ("open", "local")
        """Whether something other than the store admits calls while the store is lost."""
        self.primary = RedisStore.from_url(options["url"], prefix=options["prefix"])
        share = options["share"] if mode == "local" else None
        self.store = ResilientStore(self.primary, on_outage=mode, share=share, timeout=options["timeout"])
        rate = f"{options['rate']}/s"
        self.gate_of = partial(Gate, GCRA(rate, burst=options["burst"]), name=GATE)
        self.gate = self.gate_of(store=self.store)
        self.shaper = Shaper(rate, name=SHAPER, max_wait=MAX_WAIT_S, store=self.store)
        self.over = threading.Event()
        self.longest = (0.0, 0.0)
        self.in_vain = 0
        self._changed_at = 0.0
        breaker = self.store._whole.breaker
        self._lost, breaker.lost = breaker.lost, self._count
        listen(self._note)

    def _count(self, term, cause):
        """A question has failed; the breaker learns of each."""
        self.in_vain += 1
        self._lost(term, cause)

    def _note(self, event):
        word = {"StoreLost": "lost", "StoreBack": "back"}.get(type(event).__name__)
        if word is not None:
            self._changed_at = time.monotonic()
            print_line(word, self._changed_at)

    def answered(self, asked_at, delay=0.0):
        """Note how long a question took; returns when a call was due that came of it without a wait."""
        now = time.monotonic()
        since, until = self.longest
        # A call that has waited asks again before it leaves.
        questions = 2 if delay else 1
        if (now - asked_at - delay) / questions > until - since:
            self.longest = (now - (now - asked_at - delay) / questions, now)
        # What was admitted instead of the store was so just now; what the store admits, it may have before.
        is_just_now = self.admits_itself and (self.store.is_lost or self._changed_at >= asked_at)
        return now if is_just_now else asked_at

    def departed(self, asked_at, slot):
        """The same of a call that had a slot. A call whose last question failed has left late."""
        self.answered(asked_at, slot.delay)
        return slot.departs_at - time.time() + time.monotonic()

    def line(self, kind, due):
        return f"{self.number} {kind} {due!r}\n".encode()


def _in_threads(work, begin):
    crew = [threading.Thread(target=_ask_gate, args=(work, begin))]
    crew += [threading.Thread(target=_ask_shaper, args=(work, begin)) for _ in range(WAITERS)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()


def _ask_gate(work, begin):
    from shapekit import StoreUnavailableError  # noqa: PLC0415

    with socket.create_connection(("127.0.0.1", work.port)) as server:
        begin.wait()
        while not work.over.is_set():
            asked_at = time.monotonic()
            try:
                is_admitted = work.gate.check().allowed
            except StoreUnavailableError:
                is_admitted = False
            due = work.answered(asked_at)
            if is_admitted:
                server.sendall(work.line(GATE, due))
                server.recv(1)
            time.sleep(PAUSE_S)


def _ask_shaper(work, begin):
    from shapekit import QueueFullError, StoreUnavailableError  # noqa: PLC0415

    with socket.create_connection(("127.0.0.1", work.port)) as server:
        begin.wait()
        while not work.over.is_set():
            asked_at, slot = time.monotonic(), None
            try:
                slot = work.shaper.schedule()
            except (QueueFullError, StoreUnavailableError):
                work.answered(asked_at)
            else:
                server.sendall(work.line(SHAPER, work.departed(asked_at, slot)))
                server.recv(1)
            if slot is None or not slot.delay:
                time.sleep(PAUSE_S)


async def _in_tasks(work, begin):
    callers = [_aask_gate(work, begin), *[_aask_shaper(work, begin) for _ in range(WAITERS)]]
    await asyncio.gather(*callers)


async def _aask_gate(work, begin):
    from shapekit import StoreUnavailableError  # noqa: PLC0415

    reader, writer = await asyncio.open_connection("127.0.0.1", work.port)
    await begin.wait()
    while not work.over.is_set():
        asked_at = time.monotonic()
        try:
            is_admitted = (await work.gate.acheck()).allowed
        except StoreUnavailableError:
            is_admitted = False
        due = work.answered(asked_at)
        if is_admitted:
            writer.write(work.line(GATE, due))
            await reader.readexactly(1)
        await asyncio.sleep(PAUSE_S)
    writer.close()


async def _aask_shaper(work, begin):
    from shapekit import QueueFullError, StoreUnavailableError  # noqa: PLC0415

    reader, writer = await asyncio.open_connection("127.0.0.1", work.port)
    await begin.wait()
    while not work.over.is_set():
        asked_at, slot = time.monotonic(), None
        try:
            slot = await work.shaper.aschedule()
        except (QueueFullError, StoreUnavailableError):
            work.answered(asked_at)
        else:
            writer.write(work.line(SHAPER, work.departed(asked_at, slot)))
            await reader.readexactly(1)
        if slot is None or not slot.delay:
            await asyncio.sleep(PAUSE_S)
    writer.close()


def _warm(work):
    """Connect and load the script before the load begins; a machine that is busy may take its time."""
    from shapekit import StoreUnavailableError  # noqa: PLC0415

    while True:
        with suppress(StoreUnavailableError):
            return work.gate_of(store=work.primary).peek("another key")
        time.sleep(PAUSE_S)


async def _awarm(work):
    from shapekit import StoreUnavailableError  # noqa: PLC0415

    while True:
        with suppress(StoreUnavailableError):
            return await work.gate_of(store=work.primary).apeek("another key")
        await asyncio.sleep(PAUSE_S)


async def _on_a_loop(work):
    begin = asyncio.Event()
    loop = asyncio.get_running_loop()
    await _awarm(work)
    _listen_to_orders(work, partial(loop.call_soon_threadsafe, begin.set))
    await _in_tasks(work, begin)


def _listen_to_orders(work, begin):
    print_line("ready")

    def read():
        sys.stdin.readline()
        begin()
        sys.stdin.read()
        work.over.set()

    threading.Thread(target=read, daemon=True).start()


def print_line(*words):
    """Print a line for the process that has started this one."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _main(options):
    work = _Work(options)
    if options["number"] % 2:
        asyncio.run(_on_a_loop(work))
    else:
        begin = threading.Event()
        _warm(work)
        _listen_to_orders(work, begin.set)
        _in_threads(work, begin)
    print_line("end", work.longest, work.in_vain)
    work.store.close()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
