"""A bucket of Google Cloud Storage as its documentation has it: the part of the JSON API that a store needs.

Honest about conditions: whether there is an object is looked at and changed in one step, between two awaits. It says
nothing about Google's own service.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

PAGE_OBJECTS: Final = 20


class Bucket:
    """Objects by name: their content and when they were written."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, datetime]] = {}

    async def upload(self, request: web.Request) -> web.Response:
        """`POST /upload/storage/v1/b/BUCKET/o?uploadType=media&name=NAME[&ifGenerationMatch=0]`."""
        content, name = await request.read(), request.query["name"]
        condition = request.query.get("ifGenerationMatch")
        if condition not in (None, "0"):
            return web.Response(status=501)
        if condition == "0" and name in self._objects:
            return web.Response(status=412)
        self._objects[name] = content, datetime.now(UTC)
        return web.json_response({"generation": "1"})

    async def get(self, request: web.Request) -> web.Response:
        """`GET .../o/NAME`, with `alt=media` for the content."""
        name = request.match_info["name"]
        if name not in self._objects:
            return web.Response(status=404)
        content = self._objects[name][0]
        if request.query.get("alt") != "media":
            return web.json_response(self._facts(name))
        if (asked := request.headers.get("Range")) is None:
            return web.Response(body=content)
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        assert found is not None
        first, last = int(found[1]), int(found[2])
        if first >= len(content):
            return web.Response(status=416)
        return web.Response(status=206, body=content[first : last + 1])

    async def delete(self, request: web.Request) -> web.Response:
        """`DELETE .../o/NAME`."""
        return web.Response(status=404 if self._objects.pop(request.match_info["name"], None) is None else 204)

    async def list(self, request: web.Request) -> web.Response:
        """`GET .../o?prefix=PREFIX[&pageToken=TOKEN]`: a page of names, in their order. A token is the last name."""
        after = request.query.get("pageToken", "")
        names = sorted(name for name in self._objects if name.startswith(request.query["prefix"]) and name > after)
        page: dict[str, Any] = {"items": [self._facts(name) for name in names[:PAGE_OBJECTS]]} if names else {}
        if len(names) > PAGE_OBJECTS:
            page["nextPageToken"] = names[PAGE_OBJECTS - 1]
        return web.json_response(page)

    def _facts(self, name: str) -> dict[str, str]:
        content, updated = self._objects[name]
        return {"name": name, "size": str(len(content)), "updated": updated.isoformat()}


@asynccontextmanager
async def serving_bucket() -> AsyncGenerator[str]:
    """Serve an empty bucket on loopback meanwhile; give the endpoint."""
    bucket, app = Bucket(), web.Application(client_max_size=1 << 30)
    app.add_routes(
        [
            web.post("/upload/storage/v1/b/bucket/o", bucket.upload),
            web.get("/storage/v1/b/bucket/o", bucket.list),
            web.get("/storage/v1/b/bucket/o/{name:.+}", bucket.get),
            web.delete("/storage/v1/b/bucket/o/{name:.+}", bucket.delete),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
