"""The tutorial is walked through: files are saved under their names, commands run, and print what it says."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..redis_server import RedisServer, free_port
from .test_markdown import FENCE, LOCAL_REDIS, NOT_RUN, ROOT

pytestmark = pytest.mark.long

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
PATIENCE_S = 120.0
PORT = "8000"
"""The address of the API on the pages: here it is another one, which is free."""
TITLE = re.compile(r'```python title="([\w.]+)"\n')


class Walk:
    """One reader's folder, shell, API and Redis."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self._port = free_port()
        self._redis_url = redis_url
        self._steps = 0
        self._groups: list[int] = []
        """Commands that are still running."""
        here = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        proxies = ("http_proxy", "https_proxy", "all_proxy")
        kept = {name: value for name, value in os.environ.items() if name.lower() not in proxies}
        self._environment = {**kept, "PATH": os.pathsep.join(here), "NO_COLOR": "1"}

    def save(self, name: str, code: str) -> None:
        (self.folder / name).write_text(self._ours(code), encoding="utf-8")

    def run(self, commands: str) -> str:
        """The output of the commands. Commands in the background go on until the end."""
        self._steps += 1
        printed = self.folder / f"printed-{self._steps}.txt"
        with printed.open("w") as out:
            shell = subprocess.Popen(
                ["bash", "-ec", self._ours(commands)],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if commands.rstrip().endswith("&"):
                self._groups.append(shell.pid)
            status = shell.wait(PATIENCE_S)
        if "api.py" in commands:
            self._wait_for_api()
        output = printed.read_text(encoding="utf-8")
        assert status == 0, output
        return output

    def end(self) -> None:
        """End the commands that are still running."""
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _ours(self, text: str) -> str:
        """With our port and our Redis."""
        return text.replace(PORT, str(self._port)).replace(LOCAL_REDIS, self._redis_url)

    def _wait_for_api(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            else:
                return


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    with RedisServer() as server:
        reader = Walk(tmp_path, server.url)
        yield reader
        reader.end()


def alike(text: str) -> list[str]:
    """The lines in any order, without their numbers."""
    return sorted(" ".join(re.sub(r"\d+(\.\d+)?", "#", line).split()) for line in text.splitlines())


def test_every_step_prints_what_the_tutorial_says(walk: Walk) -> None:
    output = ""
    refused: dict[str, int] = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for fence in FENCE.finditer(text):
            if NOT_RUN.search(text, 0, fence.start()):
                continue
            language, code = fence.groups()
            if language == "python":
                title = TITLE.match(fence[0])
                assert title is not None, "code of a tutorial is a file, and has its name above it"
                walk.save(title[1], code)
            elif language == "sh":
                output = walk.run(code)
                refused[code.strip()] = sum(map(int, re.findall(r"(\d+) refused", output)))
            else:
                assert alike(output) == alike(code), f"{page.name} shows what it did not print"
    assert refused.pop("python script.py") > 0
    refused.pop("for worker in 1 2 3 4; do python shaped.py & done; wait")  # some, if they start together
    assert set(refused.values()) == {0}
    assert len(refused) == 9
