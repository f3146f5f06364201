"""Folders as a broker, like kombu's filesystem transport, but readers find only whole messages.

kombu writes a message into a file that other processes may already be reading.
"""

import os
import uuid
from pathlib import Path
from time import monotonic_ns

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    def _put(self, queue, payload, **kwargs):
        name = f"{monotonic_ns()}_{uuid.uuid4()}.{queue}.msg"
        draft = Path(self.control_folder, name)
        draft.write_text(dumps(payload))
        os.rename(draft, Path(self.data_folder_out, name))


class Transport(filesystem.Transport):
    Channel = Channel


TRANSPORT_ALIASES["files"] = f"{__name__}:Transport"
