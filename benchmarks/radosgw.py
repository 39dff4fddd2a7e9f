"""Ceph's gateway for S3, from Debian's packages, unpacked into a folder: no root, no service, nothing left behind.

    python -m benchmarks.radosgw FOLDER     unpack them there, unless done already; status 3 if this machine cannot

A real object store, unlike MiniStack: another code base, checked signatures, disks of its own, if only in memory. It is
a monitor, one disk and the gateway, on the loopback, up in some fifteen seconds. `run_radosgw` runs it.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.debian import run_program, unpack
from benchmarks.servers import HOST, Server, ServerError, answers, free_port

CEPH_ROOT: Final = "CEPH_ROOT"
"""The environment variable that says where the packages are unpacked. `nox -s integration` sets it."""
CANNOT_STATUS: Final = 3
PACKAGES: Final = ("radosgw", "ceph-mon", "ceph-osd")
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
ACCESS_KEY_ID, SECRET_ACCESS_KEY = "tester", "a-secret-for-tests"

# What is not said by its name: without `crc` the gateway insists on encryption, which needs the authentication that is
# off; without `tcp_nodelay` small answers wait 40 ms for an acknowledgement; one disk takes one copy, on one host.
CONFIGURATION: Final = """
[global]
fsid = {fsid}
mon host = v2:{host}:{mon_port}/0
public addr = {host}
cluster addr = {host}
ms bind msgr1 = false
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms mon cluster mode = crc
ms mon service mode = crc
ms cluster mode = crc
ms service mode = crc
ms client mode = crc
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 2147483648
mon allow pool size one = true
mon max pg per osd = 1000
mon data = {directory}/mon
osd data = {directory}/osd
run dir = {directory}
crash dir = {directory}
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
keyring = {directory}/keyring
plugin dir = {root}/usr/lib/x86_64-linux-gnu/ceph
erasure code dir = {root}/usr/lib/x86_64-linux-gnu/ceph/erasure-code
osd class dir = {root}/usr/lib/x86_64-linux-gnu/rados-classes
rgw frontends = beast endpoint={host}:{port} tcp_nodelay=1
"""


@contextmanager
def run_radosgw(root: Path, directory: Path) -> Generator[Server]:
    """A gateway without buckets, which keeps its files in the empty `directory`. Its processes end with the context."""
    for name in ("mon", "osd"):
        (directory / name).mkdir()
    port, mon_port, fsid = free_port(), free_port(), str(uuid.uuid4())
    configuration = CONFIGURATION.format(
        fsid=fsid, host=HOST, mon_port=mon_port, port=port, directory=directory, root=root
    )
    (directory / "ceph.conf").write_text(configuration, encoding="utf-8")
    variables = _variables(root, directory)
    programs = root / "usr" / "bin"

    def run(program: str, *arguments: str) -> None:
        run_program([f"{programs}/{program}", *arguments], variables, directory)

    def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (directory / f"{program}.out").open("ab") as out:
            process = subprocess.Popen(
                [f"{programs}/{program}", *arguments], env=variables, stdout=out, stderr=subprocess.STDOUT
            )
        running.callback(_end, process)
        return process

    with ExitStack() as running:
        run("ceph-authtool", "--create-keyring", "keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        run("monmaptool", "--create", "--addv", "a", f"[v2:{HOST}:{mon_port}/0]", "--fsid", fsid, "monmap")
        run("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring")
        start("ceph-mon", "-i", "a", "-f")
        disk = str(uuid.uuid4())
        # The one program in Python, built for Debian's.
        run_program(
            ["/usr/bin/python3", f"{programs}/ceph", "--connect-timeout", "60", "osd", "new", disk],
            variables,
            directory,
        )
        run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        start("ceph-osd", "-i", "0", "-f")
        keys = ("--access-key", ACCESS_KEY_ID, "--secret-key", SECRET_ACCESS_KEY)
        run("radosgw-admin", "user", "create", "--uid=tester", "--display-name=tester", *keys)
        gateway = start("radosgw", "-n", "client.rgw", "-f")
        if not answers(gateway, port, "/"):
            raise ServerError(f"radosgw does not answer; its logs are in {directory}")
        yield Server("radosgw", f"http://{HOST}:{port}", ACCESS_KEY_ID, SECRET_ACCESS_KEY)


def _variables(root: Path, directory: Path) -> Mapping[str, str]:
    libraries = (root / "lib/x86_64-linux-gnu", root / LIBRARIES, root / LIBRARIES / "ceph")
    return {
        "PATH": os.environ.get("PATH", ""),
        "LD_LIBRARY_PATH": ":".join(str(each) for each in libraries),
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
        "CEPH_CONF": str(directory / "ceph.conf"),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its data is in memory, and not needed any more
    process.wait()


def main() -> int:
    """Unpack into the folder that is given."""
    try:
        unpack(Path(sys.argv[1]).absolute(), *PACKAGES)
    except ServerError as error:
        print(error)
        return CANNOT_STATUS
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
