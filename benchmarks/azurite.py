"""Azurite, a server that speaks Azure Blob Storage, on the loopback: started, awaited, stopped.

It keeps everything in memory, and put-if-absent under a race. It comes from npm: `python -m benchmarks.azurite FOLDER`
installs it there, or says why not and exits with `NO_NODE_STATUS`.
"""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from azure.storage.blob.aio import ContainerClient

from benchmarks.servers import HOST, STARTS_MAX, ServerError, answers, free_port

AZURITE_ROOT: Final = "AZURITE_ROOT"
"""The environment variable that says where Azurite is installed. `nox` sets it."""
VERSION: Final = "3.37.0"
NO_NODE_STATUS: Final = 3
_MAIN: Final = "node_modules/azurite/dist/src/blob/main.js"
_ACCOUNT: Final = "fleetaccount"


@dataclass(frozen=True)
class Azurite:
    """A running one. `endpoint` ends with the account, as this server wants it."""

    endpoint: str
    account: str
    account_key: str = field(repr=False)


@contextmanager
def run_azurite(root: Path, log: Path) -> Generator[Azurite]:
    """Run a server without containers, installed in `root`. Its output goes to `log`."""
    key = base64.b64encode(os.urandom(32)).decode()
    for start in range(1, STARTS_MAX + 1):
        port = free_port()
        process = _start(root, port, key, log)
        try:
            if answers(process, port, f"/{_ACCOUNT}?comp=list", status=403):  # nobody who is known asks
                yield Azurite(f"http://{HOST}:{port}/{_ACCOUNT}", _ACCOUNT, key)
                return
        finally:
            process.terminate()
            process.wait()
        if start == STARTS_MAX:
            raise ServerError(f"Azurite does not start: {log.read_text(errors='replace')[-2000:]}")


async def make_container(server: Azurite, name: str) -> None:
    """A container that is new."""
    credential = {"account_name": server.account, "account_key": server.account_key}
    async with ContainerClient(server.endpoint, name, credential=credential) as client:
        await client.create_container()


def _start(root: Path, port: int, key: str, log: Path) -> subprocess.Popen[bytes]:
    command = ["node", str(root / _MAIN), "--blobHost", HOST, "--blobPort", str(port)]
    variables = {"PATH": os.environ.get("PATH", ""), "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{key}"}
    with log.open("ab") as out:
        return subprocess.Popen(
            [*command, "--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck"],
            env=variables,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
        )


def install(root: Path) -> str:
    """Install it in `root` unless it is there. Returns why not, empty if it is."""
    if (root / _MAIN).exists():
        return ""
    if (npm := shutil.which("npm")) is None or shutil.which("node") is None:
        return "there is no npm"
    root.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--prefix", str(root), "--no-audit", "--no-fund", f"azurite@{VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"npm cannot install it: {done.stderr[-500:]}"


if __name__ == "__main__":
    if missing := install(Path(sys.argv[1])):
        print(missing)
        sys.exit(NO_NODE_STATUS)
