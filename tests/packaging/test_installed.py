"""The built wheel works in an environment that contains only the wheel and its dependencies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ..redis_server import shared_server

pytestmark = pytest.mark.long

EVERYTHING_BUT = {"all", "bench", "dev", "docs", "heavy"}
"""The extras that are no third party; the third parties are in `all`."""

FIRST_STEPS = """
import asyncio, pathlib, sys, tempfile
from importlib.metadata import entry_points
import shapekit
from shapekit import GCRA, Gate, ManualClock, Policy, Quota, SQLiteStore, Shaper, all_of, shaped
from shapekit.feedback import Feedback
from shapekit.testing import check_pace

assert pathlib.Path(shapekit.__file__).is_relative_to(sys.prefix), shapekit.__file__
clock = ManualClock(autojump=True)
shaper, left = Shaper("10/s", clock=clock), []
for _ in range(20):
    with shaper:
        left.append(clock.now())
check_pace(left, "10/s")

policy = Policy("10/s", quota=Quota("2/month", tz=None), clock=clock)
async def twice():
    for _ in range(2):
        async with policy.aadmit():
            ...
asyncio.run(twice())

assert {plugin.module for plugin in entry_points(group="pytest11", name="shapekit")} == {"_shapekit_pytest"}

with tempfile.TemporaryDirectory() as folder:
    store = SQLiteStore(f"{folder}/limits.db")
    assert Gate(all_of(a=GCRA("1/h"), b=GCRA("2/h")), name="smoke", store=store).check()
    store.close()
assert shaped("10/s")(len)("four") == 4
assert Feedback().read(429, {"Retry-After": "2"}, sent_at=0.0, received_at=0.0).hold_s == 2.0
for name in ("httpx", "celery", "tenacity"):
    try:
        __import__(f"shapekit.integrations.{name}")
    except ImportError as error:
        assert f'pip install "shapekit[{name}]"' in str(error), error
    else:
        raise AssertionError(f"{name} should be missing here")
print("fine")
"""

WITH_REDIS = """
import sys
from shapekit import Policy, Quota, RedisStore

store = RedisStore.from_url(sys.argv[1], prefix="smoke")
policy = Policy("25/s; 1000/min", name="smoke", quota="1_000_000/month", store=store)
with policy.admit() as admission:
    assert admission.delay == 0
store.reset_all()
store.close()
print("fine")
"""


class Environment:
    """A Python of its own without packages, not even pip."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.bin = folder / "bin"
        self._packages = Path(self.run("import sysconfig; print(sysconfig.get_path('purelib'))").strip())

    def run(self, code: str, *args: str) -> str:
        return self._output_of(self.bin / "python", "-I", "-c", code, *args)

    def command(self, *args: str) -> str:
        return self._output_of(self.bin / "shapekit", *args)

    def install(self, wheel: Path) -> None:
        self._pip("install", "-q", "--no-index", "--no-deps", str(wheel))

    def provide(self, extras: Collection[str] = ()) -> None:
        """All dependencies of shapekit, copied from this environment, without downloads."""
        [ours] = distributions(name="shapekit", path=[str(self._packages)])
        for name in _needed_by(ours, extras):
            for file in distribution(name).files or ():
                if ".." not in file.parts:
                    target = self._packages / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(str(file.locate()), target)
        self._pip("check")

    def _pip(self, *args: str) -> None:
        self._output_of(sys.executable, "-m", "pip", "--python", self.bin / "python", *args)

    @staticmethod
    def _output_of(*command: str | Path) -> str:
        run = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout


def _needed_by(ours: Distribution, extras: Collection[str]) -> set[str]:
    """The names of all packages that a package with these extras depends on, directly or not."""
    pending = [*_required(ours, extras)]
    found: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, with_extras = pending.pop()
        if (name, with_extras) not in found:
            found.add((name, with_extras))
            pending += _required(distribution(name), with_extras)
    return {name for name, _ in found}


def _required(package: Distribution, extras: Collection[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for needed in map(Requirement, package.requires or ()):
        if not needed.marker or any(needed.marker.evaluate({"extra": each}) for each in extras or {""}):
            yield needed.name, frozenset(needed.extras)


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "env")
    made.install(wheel)
    return made


def test_the_wheel_works_in_an_empty_environment(environment: Environment) -> None:
    environment.provide()
    assert environment.run(FIRST_STEPS) == "fine\n"

    environment.provide({"cli", "redis"})
    plan = json.loads(environment.command("plan", "10/s", "--calls", "11", "--json"))
    assert plan
    assert environment.run(WITH_REDIS, f"redis://127.0.0.1:{shared_server().port}") == "fine\n"


def declared(root: Path) -> dict[str, list[str]]:
    """The extras, and their contents."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    extras: dict[str, list[str]] = tomllib.loads(text)["project"]["optional-dependencies"]
    return extras


def test_the_extra_all_contains_every_third_party(root: Path) -> None:
    extras = declared(root)
    [everything] = map(Requirement, extras["all"])
    assert everything.name == "shapekit"
    assert everything.extras == extras.keys() - EVERYTHING_BUT
    assert extras.keys() > EVERYTHING_BUT


def test_the_extra_dev_contains_what_builds_the_pages(root: Path) -> None:
    assert {*declared(root)["docs"]} <= {*declared(root)["dev"]}
