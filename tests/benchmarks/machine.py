"""Machine: what the figures were measured on, and with."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..redis_server import redis_program
from .library import MODULES

BESIDE = ("anyio", "httpx", "requests", "aiohttp", "celery", "redis")
"""Packages between a call and its server."""


def machine() -> dict[str, str]:
    """The processor, the system, and the version of everything that was measured."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = named[0].partition(":")[2].strip() if named else cpu
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "Redis": _redis_version(),
        **{name: _version(name) for name in (*MODULES, *BESIDE)},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _redis_version() -> str:
    output = subprocess.run([redis_program(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", output)
    return found[1] if found else output.strip()
