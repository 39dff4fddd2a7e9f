"""The life of a process that keeps committing batches to Azure until somebody kills it, possibly it itself."""

import asyncio
from typing import Any

import statebackend as sb
from benchmarks.azurite import Azurite
from statebackend.objectstore.azure import open_azure_store
from tests.azure.clients import settings_for
from tests.mortal_jobs import commit_for_ever
from tests.mortals import Report


def settings_of(server: Azurite, container: str, prefix: str) -> sb.Settings:
    """Without a local copy: what comes back comes from Azure."""
    return settings_for(server, container, prefix=prefix, preemptive_persist_threshold_bytes=2_000)


def live(report: Report, server: Azurite, container: str, prefix: str, **death: Any) -> None:
    """Commit batches for ever. With `nth` and `moment` it ends itself, once opened."""
    settings = settings_of(server, container, prefix)
    opening = open_azure_store(settings.primary, settings.azure, probe_key="probe")
    asyncio.run(commit_for_ever(report, settings, opening, death))
