"""Credentials are shown to nobody: not in a text, not in an error, not in a pickle."""

import copy
import json
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statebackend as sb
from statebackend import Settings
from statebackend.errors import PrimaryUrlError, SettingsError, StoreAccessError, StoreError
from statebackend.objectstore.s3 import open_s3_store
from statebackend.settings import S3Settings, Secret
from tests.knobs import replaced

SECRET, TOKEN = "hush-hush-hush", "a-token-to-be-kept"
NOBODY = "http://127.0.0.1:1"
WITH_SECRETS: dict[str, Any] = {
    "job": "fleet",
    "primary": "s3://bucket/prefix",
    "s3.endpoint": NOBODY,
    "s3.region": "eu-central-1",
    "s3.access_key_id": "somebody",
    "s3.secret_access_key": SECRET,
    "s3.session_token": TOKEN,
}


@pytest.fixture(autouse=True)
def no_aws_chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's own credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def directly(values: dict[str, Any]) -> Settings:
    """By keyword arguments."""
    s3 = {name.removeprefix("s3."): value for name, value in values.items() if name.startswith("s3.")}
    plain = {name: value for name, value in values.items() if not name.startswith("s3.")}
    return Settings(**plain, s3=S3Settings(**s3))


def is_kept(text: object) -> bool:
    return SECRET not in str(text) and TOKEN not in str(text)


def test_settings_with_secrets_come_from_everywhere(tmp_path: Path) -> None:
    """Keyword arguments, the environment, TOML and a Spark configuration mean the same."""
    made = directly(WITH_SECRETS | {"s3.secret_access_key": Secret(SECRET), "s3.session_token": Secret(TOKEN)})
    file = tmp_path / "settings.toml"
    file.write_text(
        "[statebackend]\n" + "".join(f"{name} = {json.dumps(text)}\n" for name, text in WITH_SECRETS.items())
    )
    environment = {f"STATEBACKEND_{name.replace('.', '__').upper()}": text for name, text in WITH_SECRETS.items()}
    conf = [(f"spark.statebackend.{name}", text) for name, text in WITH_SECRETS.items()]
    for other in (
        directly(WITH_SECRETS),
        Settings.from_mapping(WITH_SECRETS),
        Settings.from_toml(file),
        Settings.from_env(environment),
        Settings.from_spark_conf(conf),
    ):
        assert other == made
        assert other.s3.secret_access_key is not None
        assert other.s3.secret_access_key.reveal() == SECRET


def test_no_text_of_settings_holds_a_secret() -> None:
    """What is printed, logged or formatted."""
    settings = directly(WITH_SECRETS)
    assert is_kept(repr(settings))
    assert is_kept(f"{settings} {settings.s3.secret_access_key!r} {settings.s3.session_token}")
    assert is_kept(msgspec.structs.asdict(settings))
    with pytest.raises(TypeError):
        msgspec.json.encode(settings)


def test_a_pickle_leaves_the_secrets_behind_and_a_copy_does_not() -> None:
    """A pickle goes to other machines and into files; a copy stays here."""
    settings = directly(WITH_SECRETS)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(settings, protocol)
        assert SECRET.encode() not in data
        assert TOKEN.encode() not in data
        arrived = pickle.loads(data)
        assert arrived.s3.secret_access_key.reveal() is None
        assert replaced(arrived, s3__secret_access_key=Secret(SECRET), s3__session_token=Secret(TOKEN)) == settings
    assert copy.deepcopy(settings) == copy.copy(settings) == settings


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"s3.secret_access_key": SECRET.encode()}, SettingsError),
        ({"s3.secret_access_key": [SECRET]}, SettingsError),
        ({"s3.secret_access_key": ""}, SettingsError),
        ({"s3.access_key_id": ""}, SettingsError),
        ({"s3.access_key_id": "", "s3.secret_access_key": None}, SettingsError),
        ({"s3.endpoint": f"http://somebody:{SECRET}@127.0.0.1"}, SettingsError),
        ({"primary": f"s3://somebody:{SECRET}@bucket/prefix"}, PrimaryUrlError),
        ({"primary": f"s3://somebody:{SECRET}@bucket:x/prefix"}, PrimaryUrlError),
    ],
)
def test_no_complaint_about_settings_shows_a_secret(changes: dict[str, Any], error: type[SettingsError]) -> None:
    """Not even about the very setting that holds it."""
    for make in (directly, Settings.from_mapping):
        with pytest.raises(error) as caught:
            make({**WITH_SECRETS, **changes})
        assert is_kept("".join(traceback.format_exception(caught.value)))
        assert is_kept(caught.value.facts)


async def test_no_error_and_no_log_of_a_store_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Of the library, at any level."""
    settings = directly(WITH_SECRETS | {"s3.outage_s": 0.0})
    with caplog.at_level(logging.DEBUG, logger="statebackend"), pytest.raises(StoreError) as caught:
        async with open_s3_store(settings.primary, settings.s3, probe_key="probe"):
            pass
    assert is_kept("".join(traceback.format_exception(caught.value)))
    assert is_kept(caught.value.facts)
    assert is_kept([record.getMessage() for record in caplog.records if record.name.startswith("statebackend")])
    pickle.dumps(caught.value)


async def test_what_a_pickle_left_behind_comes_from_the_usual_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that has nothing, the error says why the settings have nothing either."""
    arrived = pickle.loads(pickle.dumps(directly(WITH_SECRETS)))
    with pytest.raises(StoreAccessError, match="do not travel in a pickle"):
        async with open_s3_store(arrived.primary, arrived.s3):
            pass
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-here")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    async with open_s3_store(arrived.primary, arrived.s3):
        pass


async def test_no_credentials_anywhere_are_told_at_once() -> None:
    """And that they were looked for in both places."""
    settings = Settings(job="fleet", primary="s3://bucket", s3=S3Settings(endpoint=NOBODY))
    with pytest.raises(StoreAccessError, match="neither in the settings nor in the usual AWS chain"):
        async with sb.open_backend(settings):
            pass
