"""Credentials for Azure that end: a signature that is renewed, on Azurite; and a token, which goes by https only."""

import datetime as dt
import logging
import time

import pytest

import statebackend as sb
from statebackend import Settings
from statebackend.errors import StoreAccessError

pytest.importorskip("azure.storage.blob", reason="no extra `azure`")

from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from benchmarks.azurite import Azurite
from statebackend.settings import AzureCredentials, CredentialSource
from tests.knobs import replaced


def vended(settings: Settings, function: object) -> Settings:
    """The job, with credentials from a function."""
    return replaced(settings, azure__account_key=None, azure__credentials=CredentialSource(function))  # type: ignore[arg-type]


async def test_a_signature_is_renewed_in_mid_stream(
    settings: Settings, server: Azurite, container: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is due at once. Nothing fails, and nothing is shown."""
    signatures: list[str] = []

    async def fetch() -> AzureCredentials:
        until = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1, seconds=len(signatures))
        signed = generate_container_sas(
            server.account,
            container,
            account_key=server.account_key,
            permission=ContainerSasPermissions.from_string("racwdl"),
            expiry=until,
        )
        signatures.append(signed)
        return AzureCredentials(sas_token=signed, ends_at_s=time.time() + 1e-5)

    renewed = vended(settings, fetch)
    with caplog.at_level(logging.DEBUG, logger="statebackend"):
        async with sb.open_backend(renewed) as backend:
            counts = backend.value_state("counts", int)
            for batch in range(3):
                counts["a"] = batch
                await backend.checkpoint(batch, source=sb.SourceMark("q", batch))
        async with sb.open_backend(renewed, read_only=True) as backend:
            assert dict(backend.value_state("counts", int)) == {"a": 2}
    assert len(set(signatures)) > 3
    assert "sig=" not in caplog.text


async def test_a_signature_that_azure_refuses_is_told_without_it(settings: Settings) -> None:
    """At once, as for one in the settings."""

    def fetch() -> AzureCredentials:
        return AzureCredentials(sas_token="sv=2021-08-06&sr=c&sp=r&sig=hush", ends_at_s=time.time() + 3600)

    with pytest.raises(StoreAccessError) as caught:
        async with sb.open_backend(vended(settings, fetch)):
            pass
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("given", [{}, {"sas_token": "sig=x", "bearer_token": "y"}, {"bearer_token": "y"}])
async def test_a_token_is_not_sent_in_the_clear(settings: Settings, given: dict[str, str]) -> None:
    """And there is just one of the two."""
    with pytest.raises(StoreAccessError, match=r"either a sas_token|by https only"):
        async with sb.open_backend(vended(settings, lambda: AzureCredentials(**given, ends_at_s=4e9))):
            pass
