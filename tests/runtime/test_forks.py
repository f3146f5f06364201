"""A forked child uses nothing that its parent goes on using, whichever of its threads comes first."""

import subprocess
import sys

from ..redis_server import shared_server


def assert_prints(word, script):
    """Run the script in a process of its own, for it forks."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, shared_server().url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"{word}\n", done.stderr


SCRIPT = """
import os, signal, sys, threading
from redis.connection import Connection
from shapekit import GCRA, Gate
from shapekit.stores.redis import RedisStore

used = []
send = Connection.send_packed_command

def noted(self, *args, **options):
    # Itself: the number of a connection that the collector has taken would be given out again.
    used.append(self)
    return send(self, *args, **options)

Connection.send_packed_command = noted
gate = Gate(GCRA("1000000/s", burst=1_000_000), name="gate", store=RedisStore.from_url(sys.argv[1]))
gate.check()
parents = set(used)
used.clear()

def another():
    thread = threading.Thread(target=gate.check, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()

def traced(frame, event, arg):
    global lines
    if "stores/redis/connections" in frame.f_code.co_filename and event == "line":
        lines -= 1
        if lines == 0:
            another()
    return traced

for at in range(1, 300):
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        lines = at
        sys.settrace(traced)
        gate.check()
        sys.settrace(None)
        os._exit(1 if parents & set(used) else 2 if lines > 0 else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 2:
        break
    assert code == 0, f"a thread of the child has used a connection of the parent, at line {at}"
assert 10 < at < 299
print("apart")
"""


def test_no_thread_of_a_child_uses_a_connection_of_its_parent():
    """At every line by which the child's first call comes, another thread calls."""
    assert_prints("apart", SCRIPT)


CONFIRMING = """
import os, signal, sys, threading
from shapekit import Shaper
from shapekit._runtime.drivers import Twin, run
from shapekit.stores.redis import RedisStore

asking, answer = threading.Event(), threading.Event()
store = RedisStore.from_url(sys.argv[1])
shaper = Shaper("10/s", name="asked", store=store)
confirmations = shaper.core.status
confirm = confirmations._confirm.call
parent = os.getpid()

def slowly(key):
    if os.getpid() == parent:
        asking.set()
        assert answer.wait(20)
    return confirm(key)

confirmations._confirm = Twin(slowly, None)
# The same instant for all: the child asks while the answer of the parent would still be fresh.
confirmations._clock = type("Still", (), {"now_us": lambda self: 1_000})()
asker = threading.Thread(target=run, args=(confirmations.ask, "key"))
asker.start()
assert asking.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)
    threading.Event.wait = lambda *_: os._exit(1)
    run(confirmations.ask, "key")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "a child waits for an answer to its parent"
answer.set()
asker.join(20)
print("apart")
"""


def test_no_child_waits_for_the_answer_to_a_request_of_its_parent():
    assert_prints("apart", CONFIRMING)


HELD = """
import os, signal, sys, threading
from shapekit import Policy, shaped
from shapekit._runtime import process
from shapekit.stores.redis import RedisStore
from shapekit.stores.resilient import ResilientStore

def used(policy):
    listening = policy.listen(lambda event: None)
    with policy.admit() as admission:
        admission.settle(2)
    with policy.admit():
        policy.shaper.hold(0.01)
    listening.close()

store = ResilientStore(RedisStore.from_url(sys.argv[1]), on_outage="raise")
policies = [
    Policy("200/s", quota="1000000/day", name="held", store=store, concurrency=5),
    Policy("200/s", name="held here", concurrency=5),
]
for policy in policies:
    used(policy)
held, forked = threading.Event(), threading.Event()

def hold():
    locks = list(process._LOCKS)
    assert len(locks) > 10
    for lock in locks:
        lock.acquire()
    held.set()
    forked.wait(20)
    for lock in locks:
        lock.release()

threading.Thread(target=hold, daemon=True).start()
assert held.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)
    for policy in policies:
        used(policy)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
forked.set()
assert code == 0, code
print("free")
"""


def test_a_child_finds_no_lock_taken_by_a_thread_that_it_does_not_have():
    assert_prints("free", HELD)


SCOPED = """
import os, signal, sys, threading
from shapekit import Policy
from shapekit._runtime.drivers import run
from shapekit.keys import Target

policy = Policy("1000/s", name="scoped")
scoped, target = policy.scoped, Target("GET", "https", "api", None, "/search")
scoped.scopes.learn("default", target, "search")
run(scoped.hold, 1.0, "default", "search")

def ask():
    assert run(scoped.schedule, "default", target, 1)

waiting = threading.Thread(target=ask, daemon=True)
waiting.start()
while not scoped._lines._lines:
    pass
held, forked = threading.Event(), threading.Event()

def hold():
    with scoped.scopes._lock:
        held.set()
        forked.wait(20)

threading.Thread(target=hold, daemon=True).start()
assert held.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(20)
    ask()
    scoped.scopes.learn("default", target, "other")
    os._exit(0)
forked.set()
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
waiting.join(20)
assert not waiting.is_alive()
assert code == 0, code
print("left")
"""


def test_no_child_stands_in_line_behind_the_requests_of_its_parent():
    assert_prints("left", SCOPED)


ASLEEP = """
import os, signal, threading
from shapekit import Policy, StoreUnavailableError

policy = Policy("1/h", name="asleep")
sleepers = policy.shaper.core.sleepers
with policy.admit():
    pass

def wait():
    try:
        policy.shaper.schedule()
    except StoreUnavailableError:
        pass

waiting = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
for thread in waiting:
    thread.start()
while sleepers.sleeping < 3:
    pass
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(sleepers.sleeping)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert sleepers.sleeping == 3
policy.close()
for thread in waiting:
    thread.join(20)
    assert not thread.is_alive()
assert code == 0, code
print("nobody")
"""


def test_no_child_counts_calls_that_sleep_in_its_parent():
    assert_prints("nobody", ASLEEP)


UNANNOUNCED = """
import ctypes, os, sqlite3, sys, types
from pathlib import Path
from tempfile import TemporaryDirectory
from redis.connection import Connection

called, used = [], []
uwsgi = sys.modules["uwsgi"] = types.ModuleType("uwsgi")
decorators = sys.modules["uwsgidecorators"] = types.ModuleType("uwsgidecorators")
uwsgi.masterpid = os.getpid
uwsgi.post_fork_hook = lambda: called.append("the program's own")

from shapekit import Shaper
from shapekit.stores.redis import RedisStore
from shapekit.stores.sqlite import SQLiteStore
from shapekit._runtime import process

send, connect = Connection.send_packed_command, sqlite3.connect

def noted_send(self, *args, **options):
    used.append(self)
    return send(self, *args, **options)

def noted_connect(*args, **options):
    used.append("a connection to the file")
    return connect(*args, **options)

Connection.send_packed_command, sqlite3.connect = noted_send, noted_connect
folder = TemporaryDirectory()
stores = RedisStore.from_url(sys.argv[1]), SQLiteStore(Path(folder.name) / "limits.db")
shapers = [Shaper("1/min", name="forked", store=store) for store in stores]
for shaper in shapers:
    shaper.reset()
    assert shaper.reserve().delay == 0
theirs = {one for one in used if isinstance(one, Connection)}
used.clear()
last = process.fresh_id()
child = ctypes.PyDLL(None).fork()  # as uWSGI forks: what is registered with `os` is not called
if child == 0:
    code = 1
    try:
        uwsgi.post_fork_hook()
        assert called == ["the program's own"]
        assert process.fresh_id() != last + 1
        assert [0 < shaper.reserve().delay <= 60 for shaper in shapers] == [True, True]
        assert "a connection to the file" in used and not theirs.intersection(used)
        began = process.fresh_id()
        uwsgi.post_fork_hook()  # in a process that has begun, nothing begins anew
        assert process.fresh_id() == began + 1
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert [60 < shaper.reserve().delay <= 120 for shaper in shapers] == [True, True]
print("anew" if code == 0 else code)
"""


def test_a_worker_of_uwsgi_begins_anew_although_its_fork_calls_no_hook_of_python():
    assert_prints("anew", UNANNOUNCED)
