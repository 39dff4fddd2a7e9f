"""What a store that keeps its contract holds, and how it answers a request. Pure."""

from statebackend.abc import ObjectInfo
from statebackend.errors import ObjectExistsError, ObjectNotFoundError
from tests.explore.processes import Answer, Request

Objects = dict[str, tuple[bytes, float]]
"""By key: the bytes of each object, and when it was made."""


def apply(objects: Objects, request: Request, now_s: float) -> tuple[Answer, Objects | None]:
    """The answer of a store that keeps its contract, and what it holds then; `None`: what it held before."""
    operation, key, body = request
    if operation == "get":
        return (Answer(objects[key][0]) if key in objects else Answer(error=ObjectNotFoundError)), None
    if operation == "head":
        return Answer(_info(key, objects[key]) if key in objects else None), None
    if operation == "list":
        return Answer(tuple(_info(each, objects[each]) for each in sorted(objects) if each.startswith(key))), None
    if operation == "put_if_absent" and key in objects:
        return Answer(error=ObjectExistsError), None
    if operation == "delete":
        return Answer(), {each: held for each, held in objects.items() if each != key}
    return Answer(), {**objects, key: (body, now_s)}


def _info(key: str, held: tuple[bytes, float]) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(held[0]), modified_s=held[1])
