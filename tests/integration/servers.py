"""What servers of annotation tools share: an environment of their own, a free port, a start."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
from filelock import FileLock

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labelguard-integration"


def installed(name, program, *requirements):
    """The programs of an environment of that name, which is made where `program` is missing."""
    environment = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / f"{name}.environment.lock"):
        if not (environment / "bin" / program).exists():
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            pip = [environment / "bin/python", "-m", "pip", "install", "--quiet"]
            pip.append("--disable-pip-version-check")
            # A Python's own pip may be too old to build what comes without a wheel.
            subprocess.run([*pip, "pip>=25.1", "wheel"], check=True)
            subprocess.run([*pip, *requirements], check=True)
    return environment / "bin"


def free_port():
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_for(address, process, log, seconds):
    """Wait until a server answers there. Raises `RuntimeError` if it ends or takes longer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(address, timeout=5).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{address} did not start:\n{log.read_text(errors='replace')[-4000:]}")
