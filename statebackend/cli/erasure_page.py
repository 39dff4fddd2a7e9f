"""Draws what an erasure did, or what proves it, as a page of HTML for an auditor. The keys are not on it."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

import msgspec

from statebackend.cli.page import document, table
from statebackend.cli.progress_bar import size
from statebackend.cli.text import erase_lines, proof_lines, utc
from statebackend.reports import EraseReport, ErasureProof, KeyHolder

_BEYOND: Final = (
    "<p>An erasure knows what the job keeps. It says nothing of local copies on hosts that were not given to it, of "
    "caches of running processes, receivers of output, mirrors, exports and clones, of versions and backups of the "
    "bucket, of Spark's checkpoint and of the source.</p>"
)


def erasure_page(done: EraseReport) -> str:
    """The page on an erasure or a dry run."""
    return document(f"erasure in job {done.job}", _erasure(done))


def _erasure(done: EraseReport) -> Iterator[str]:
    yield "<ul>"
    for line in erase_lines(msgspec.structs.replace(done, holders=())):
        yield f"<li>{escape(line)}</li>"
    yield f"<li>states: {escape(', '.join(done.states))}</li></ul>"
    yield "<h2>Objects that were written again without the keys</h2>"
    yield table(("object",), ((key,) for key in done.rewritten))
    yield "<h2>Objects that have the keys until a sweep deletes them</h2>"
    yield _holders(done.holders)
    yield _BEYOND


def proof_page(job: str, proof: ErasureProof) -> str:
    """The page on the proof."""
    *_, verdict = proof_lines(proof)
    parts = [f"<p><b>{escape(verdict)}</b></p>", "<h2>Objects that may have the keys</h2>", _holders(proof.holders)]
    return document(f"proof of an erasure in job {job}", [*parts, _BEYOND])


def _holders(holders: Iterable[KeyHolder]) -> str:
    return table(
        ("object", "bytes", "a sweep may delete it from", "why"),
        ((each.key, size(each.size_bytes), utc(each.sweepable_from_s), each.reason) for each in holders),
    )
