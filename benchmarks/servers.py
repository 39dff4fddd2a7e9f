"""Servers that speak S3, as programs on the loopback, for tests, demo and benchmarks: started, awaited, stopped.

MiniStack keeps everything in memory, starts in a third of a second, and keeps put-if-absent under a race; it takes any
credentials. It pins a botocore of its own, so it lives in an environment of its own: `python` is the interpreter there.
"""

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
MINISTACK: Final = "ministack==1.5.33"
MINISTACK_PYTHON: Final = "MINISTACK_PYTHON"
"""The environment variable that says where the interpreter is that has MiniStack. `nox` sets it."""
CEPH_ROOT: Final = "CEPH_ROOT"
"""The environment variable that says where Debian's packages of radosgw are unpacked. `nox -s integration` sets it."""
START_TIMEOUT_S: Final = 60.0
STARTS_MAX: Final = 5  # another program may take the port between our looking and the server's


@dataclass(frozen=True)
class Server:
    """Where it is, and who may use it."""

    name: str
    endpoint: str
    access_key_id: str
    secret_access_key: str = field(repr=False)


class ServerError(Exception):
    """A server does not start. The message has what it printed."""


@contextmanager
def run_ministack(python: str | Path, log: Path) -> Generator[Server]:
    """An S3 without buckets. `log` takes what the server prints."""
    for start in range(1, STARTS_MAX + 1):
        port = free_port()
        process = _start_ministack(python, port, log)
        try:
            if _answers(process, port):
                yield Server("MiniStack", f"http://{HOST}:{port}", "anybody", "anything")
                return
        finally:
            process.terminate()
            process.wait()
        if start == STARTS_MAX:
            raise ServerError(f"MiniStack does not start: {log.read_text(errors='replace')[-2000:]}")


def free_port() -> int:
    """A port nobody listens on at this moment."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _start_ministack(python: str | Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    variables = {
        "PATH": os.environ.get("PATH", ""),
        "GATEWAY_PORT": str(port),
        "BIND_HOST": HOST,
        "SERVICES": "s3",
        "LOG_LEVEL": "WARNING",
    }
    with log.open("ab") as out:
        return subprocess.Popen([python, "-m", "ministack"], env=variables, stdout=out, stderr=subprocess.STDOUT)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers; false where it has ended instead."""
    end = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end:
        try:
            with closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
                connection.request("GET", "/_ministack/health")
                if connection.getresponse().status == 200:
                    return True
        except OSError:
            time.sleep(0.05)
    return False


def run_radosgw(root, directory):
    raise NotImplementedError
