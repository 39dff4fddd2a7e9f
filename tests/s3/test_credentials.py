"""Credentials that end, on a server: through batches, readers, a worker's task and the command line."""

import logging
import time
from pathlib import Path

import pytest

import statebackend as sb
from benchmarks.servers import Server
from statebackend import Settings, cli
from statebackend.objectstore.cloud import renewal
from statebackend.settings import CredentialSource, S3Credentials
from tests.knobs import replaced
from tests.spark.test_worker import Adding, attempts, unfrozen

__all__ = ["unfrozen"]

SECRET = "hush-hush-hush"
asked: list[str] = []
life_s = [3600.0]


def fetch() -> S3Credentials:
    """Keys of an hour, or those that end at once: the server takes any."""
    asked.append(f"key{len(asked) + 1}")
    return S3Credentials(access_key_id=asked[-1], secret_access_key=SECRET, ends_at_s=time.time() + life_s[0])


async def fetch_later() -> S3Credentials:
    """The same, asynchronously."""
    return fetch()


@pytest.fixture(params=[fetch, fetch_later, f"{__name__}:fetch"], ids=["sync", "async", "by name"])
def vended(any_keys: None, settings: Settings, request: pytest.FixtureRequest) -> Settings:
    """The job of the test, with credentials from a function."""
    asked.clear()
    life_s[0] = 3600.0
    return replaced(
        settings,
        s3__access_key_id="",
        s3__secret_access_key=None,
        s3__credentials=CredentialSource(request.param),
    )


async def test_batches_and_readers_go_on_while_keys_are_renewed(
    vended: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here each request finds them due. Nothing fails, and nothing is shown."""
    monkeypatch.setattr(renewal, "RENEW_BEFORE_S", 1e9)
    life_s[0] = 1e-5
    with caplog.at_level(logging.DEBUG, logger="statebackend"):
        async with sb.open_backend(vended) as backend:
            counts = backend.value_state("counts", int)
            for batch in range(3):
                counts["a"] = batch
                await backend.checkpoint(batch, source=sb.SourceMark("q", batch))
        renewed = len(asked)
        assert renewed > 3
        async with sb.open_backend(vended, read_only=True) as backend:
            assert dict(backend.value_state("counts", int)) == {"a": 2}
        assert len(asked) > renewed
    assert SECRET not in caplog.text


async def test_a_worker_and_the_driver_share_what_was_asked(vended: Settings, tmp_path: Path) -> None:
    """Its settings have been pickled, and its tasks open stores anew."""
    await attempts(vended, Adding(1), [["a", "b"], ["a"]])
    assert len(asked) <= 2  # the driver's loop, and the worker's
    async with sb.open_backend(vended, read_only=True) as backend:
        assert dict(backend.value_state("counts", int)) == {"a": 2, "b": 1}


def test_the_command_line_finds_the_function_by_its_name(
    settings: Settings, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the environment, as in a container."""
    asked.clear()
    assert settings.s3.secret_access_key is not None
    for name, value in {
        "S3__ENDPOINT": server.endpoint,
        "S3__REGION": "us-east-1",
        "S3__CREDENTIALS": f"{__name__}:fetch",
    }.items():
        monkeypatch.setenv(f"STATEBACKEND_{name}", value)
    place = ["--primary", settings.primary, "--job", settings.job]
    assert cli.main(["inspect", *place]) != cli.OK  # no job yet
    assert asked
    assert SECRET not in "".join(capsys.readouterr())
    monkeypatch.setenv("STATEBACKEND_S3__CREDENTIALS", "no_such_module:fetch")
    assert cli.main(["inspect", *place]) == cli.WRONG_CALL
    assert "no_such_module" in "".join(capsys.readouterr())
