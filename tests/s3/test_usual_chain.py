"""Credentials of the usual AWS chain that end are renewed by botocore: each of its renewing providers, on a server.

Who vends them is a server of the test's own, which answers as Amazon's reference says: the endpoint of containers, the
metadata of a machine, and the token service. What it vends ends in a minute, which botocore takes for "now".
"""

import datetime as dt
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from aiobotocore.credentials import AioRefreshableCredentials

import statebackend as sb
from statebackend import Settings
from tests.knobs import replaced

LIFE = dt.timedelta(minutes=1)
ROLE = "arn:aws:iam::123456789012:role/job"


class Vendor(ThreadingHTTPServer):
    """Vends keys, and remembers which it has vended."""

    vended: list[str]

    def keys(self) -> dict[str, str]:
        """Another key each time, in the form of containers and machines."""
        self.vended.append(f"ASIA{len(self.vended):016}")
        ends = (dt.datetime.now(dt.UTC) + LIFE).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"AccessKeyId": self.vended[-1], "SecretAccessKey": "hush", "Token": "token", "Expiration": ends}


class Answers(BaseHTTPRequestHandler):
    """What the three of them are asked."""

    server: Vendor

    def do_GET(self) -> None:  # of the base
        if self.path.endswith("/security-credentials/"):
            self._say("job")
        elif self.path == "/container" or self.path.endswith("/security-credentials/job"):
            self._say(json.dumps({"Code": "Success", "Type": "AWS-HMAC", **self.server.keys()}))
        else:
            self.send_error(404)

    def do_PUT(self) -> None:  # the token of a machine's metadata
        self._say("token")

    def do_POST(self) -> None:  # the token service
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        assert asked["RoleArn"] == [ROLE]
        keys = self.server.keys()
        keys["SessionToken"] = keys.pop("Token")
        held = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
        action = asked["Action"][0]
        user = f"<AssumedRoleUser><Arn>{ROLE}</Arn><AssumedRoleId>A:B</AssumedRoleId></AssumedRoleUser>"
        self._say(
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>'
            f"<Credentials>{held}</Credentials>{user}</{action}Result></{action}Response>"
        )

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    server = Vendor(("127.0.0.1", 0), Answers)
    server.vended = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def container(url: str, folder: Path) -> dict[str, str]:
    """A task of ECS, or a pod of EKS with an identity."""
    return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/container"}


def instance(url: str, folder: Path) -> dict[str, str]:
    """A machine with a role."""
    return {"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{url}/"}


def web_identity(url: str, folder: Path) -> dict[str, str]:
    """A service account of Kubernetes."""
    (folder / "token").write_text("a token")
    return {
        "AWS_ROLE_ARN": ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "token"),
        "AWS_ENDPOINT_URL_STS": url,
    }


def profile(url: str, folder: Path) -> dict[str, str]:
    """A profile that assumes a role by the keys of another."""
    (folder / "config").write_text(
        f"[profile job]\nrole_arn = {ROLE}\nsource_profile = base\n"
        "[profile base]\naws_access_key_id = AKIA\naws_secret_access_key = hush\n"
    )
    return {"AWS_PROFILE": "job", "AWS_ENDPOINT_URL_STS": url}


def process(url: str, folder: Path) -> dict[str, str]:
    """A profile that has a program vend them."""
    ask = f"import urllib.request as r, json; k = json.load(r.urlopen('{url}/container')); "
    ask += "print(json.dumps({**k, 'Version': 1, 'SessionToken': k['Token']}))"
    (folder / "vend.py").write_text(ask)
    (folder / "config").write_text(f"[profile job]\ncredential_process = {sys.executable} {folder}/vend.py\n")
    return {"AWS_PROFILE": "job"}


@pytest.mark.usefixtures("any_keys")
@pytest.mark.parametrize(
    "provider", [container, instance, web_identity, profile, process], ids=lambda provider: provider.__name__
)
async def test_what_the_usual_chain_vends_is_renewed(
    provider: Callable[[str, Path], dict[str, str]],
    settings: Settings,
    vendor: Vendor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a backend's life: its later batches are signed with later keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    placed = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        **provider(f"http://127.0.0.1:{vendor.server_port}", tmp_path),
    }
    for name, value in placed.items():
        monkeypatch.setenv(name, value)
    # That of machines stretches the life of keys that end soon; so everything is renewed that ends within an hour.
    monkeypatch.setattr(AioRefreshableCredentials, "_advisory_refresh_timeout", 3600)
    found = replaced(settings, s3__access_key_id="", s3__secret_access_key=None)
    async with sb.open_backend(found) as backend:
        opened = len(vendor.vended)
        assert opened
        for batch in range(3):
            backend.value_state("counts", int)["a"] = batch
            await backend.checkpoint(batch)
        assert len(vendor.vended) > opened
    async with sb.open_backend(found, read_only=True) as backend:
        assert backend.value_state("counts", int)["a"] == 2
