"""The app of `running.py` in a worker that receives SIGTERM at the moment when a slot has come.

It receives the signal once the pool has accepted all of its tasks. Celery takes other tasks for unsent, and
those may run twice, shaped or not.
"""

import os
import signal
from itertools import count

from celery.worker import state

from shapekit.integrations.celery.worker import MessageBuffer

from . import running

LEAST_BEFORE = 8


def make_app(url):
    came, receive = count(1), MessageBuffer.receive

    def received(self, delivery):
        is_accepted = state.reserved_requests <= state.active_requests
        if delivery.reservation is not None and next(came) > LEAST_BEFORE and is_accepted:
            os.kill(os.getpid(), signal.SIGTERM)
        receive(self, delivery)

    MessageBuffer.receive = received
    return running.make_app(url)
