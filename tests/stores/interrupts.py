"""Exceptions where CPython lets a signal handler raise: at the entry of a function and after a call.

A profile function comes by exactly there, and what it raises counts as raised by the call itself, which has
been made. So a `with` of a lock of C is entered and left as it is under a real signal.
"""

import dis
import gc
import os
import sys
from functools import cache
from inspect import CO_GENERATOR
from pathlib import Path

import shapekit
from shapekit._runtime import process

OURS = str(Path(shapekit.__file__).parent)
TESTS = str(Path(__file__).parent)
TAKES_A_LOCK = process.WholeLock.__enter__.__code__


class Interrupt:
    """Raises KeyboardInterrupt at the n-th such place of ours; and once more, `then` calls later."""

    def __init__(self, at, then=0):
        self.left = at
        self.then = then
        self.where = None
        self._tracer = None

    def __enter__(self):
        # Coverage is measured by a trace, too.
        self._tracer = sys.gettrace()
        # Libraries have callbacks for each collection. An error in there goes nowhere, but pytest keeps it,
        # and with it the frames that were running.
        gc.disable()
        sys.setprofile(self._came_by)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        sys.settrace(self._tracer)
        gc.enable()

    def _came_by(self, frame, event, arg):
        if event == "c_call" or not frame.f_code.co_filename.startswith(OURS) or _is_finalizing(frame):
            return
        if event == "return" and frame.f_code is TAKES_A_LOCK:
            return  # its `with` goes on without a look at signals
        self.left -= 1
        if self.left == 0:
            self.where = f"{event} at {frame.f_code.co_filename}:{frame.f_lineno}"
            if self.then:
                sys.settrace(self._called)
            raise KeyboardInterrupt

    def _called(self, frame, event, arg):
        if event == "call" and not frame.f_code.co_filename.startswith(TESTS) and not _is_finalizing(frame):
            self.then -= 1
            if self.then == 0:
                sys.settrace(None)
                self.where += f", and at {frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt


class CalledInBetween:
    """Makes a call at the n-th place of ours where a signal handler or the collector may come in: where a
    function begins, after a call, at a jump back, and where something is made that the collector knows of.
    """

    def __init__(self, call, at):
        self.call = call
        self.left = at
        self.where = None
        self._before = {}
        self._tracer = None

    def __enter__(self):
        self._tracer = sys.gettrace()
        gc.disable()
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_):
        sys.settrace(self._tracer)
        gc.enable()

    def _entered(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._came_by(frame)
        return self._inside

    def _inside(self, frame, event, arg):
        if event == "opcode":
            offset = frame.f_lasti
            opcode = _opcodes(frame.f_code)[offset]
            before, at = self._before.get(frame, ("", offset))
            self._before[frame] = opcode, offset
            has_jumped_back = offset < at and "JUMP_BACKWARD" in before
            if has_jumped_back or before.startswith("CALL") or opcode.startswith(("BUILD_", "MAKE_")):
                self._came_by(frame)
        return self._inside

    def _came_by(self, frame):
        self.left -= 1
        if self.left == 0:
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            sys.settrace(None)
            self.call()


@cache
def _opcodes(code):
    return {step.offset: step.opname for step in dis.get_instructions(code)}


def _is_finalizing(frame):
    """Whether what is raised there may go nowhere: a generator may be closed because it is garbage."""
    if frame.f_code.co_flags & CO_GENERATOR:
        return True
    while frame is not None:
        if frame.f_code.co_name in ("__del__", "_exitfunc", "unraisable_hook"):
            return True
        frame = frame.f_back
    return False


def open_files(before=0):
    """How many descriptors this process has; those of garbage are looked for where there are more."""
    found = len(os.listdir("/dev/fd"))
    if found > before:
        gc.collect()
        found = len(os.listdir("/dev/fd"))
    return found
