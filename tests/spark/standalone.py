"""A Spark cluster of a master and two workers with an address each, like two hosts: only then does it speculate.

`local-cluster` has all its executors on one host, and Spark makes a speculative attempt on another host only.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

HOSTS = ("127.0.0.2", "127.0.0.3")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.executor.cores": "2",
}


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """The master's URL. The processes end with the context."""
    with ExitStack() as running:
        port = _free_port()
        _start(running, folder, "master.Master", "--host", "127.0.0.1", "--port", str(port))
        url = f"spark://127.0.0.1:{port}"
        for host in HOSTS:
            room = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / f"work-{host}"))
            _start(running, folder, "worker.Worker", "--host", host, "--port", "0", *room, url)
        yield url


def _start(running: ExitStack, folder: Path, name: str, *arguments: str) -> None:
    home = Path(pyspark.__file__).parent
    log = running.enter_context((folder / f"{name}.log").open("ab"))
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1"},
    )
    running.callback(process.wait)
    running.callback(process.kill)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
