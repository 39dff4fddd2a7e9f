"""The same state with `--lookups`: where an aircraft is comes from a service that is slow, refuses, and dies.

The service (`benchmarks.slow_service`) says for an airport that it is that airport. So the result can be compared, and
is wrong if an answer has gone to another question, or is lost.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import statebackend as sb
from benchmarks.demo.aircraft import STATE_NAME, Aircraft, after

DELAY_MS: Final = 20
REFUSE_EVERY: Final = 11
DIE_AFTER: Final = 150
CONCURRENCY: Final = 64


async def airport_of(port: int, airport: str) -> str:
    """Ask the service. Raises an `OSError` if it refuses, has died, or dies meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{airport}\n".encode())
        answer = await reader.readline()
    finally:
        writer.close()
    if not answer.endswith(b"\n"):
        raise ConnectionResetError("the service has closed the connection before it answered")
    return answer.decode().strip()


class FleetThatAsks(sb.spark.KeyedProcessor):
    """Flies each aircraft by itself, and asks for each airport that it comes to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._airport_of = sb.spark.lookup(
            airport_of, timeout_s=2.0, attempts_max=30, retry_delay_s=0.1, retries_max=3000
        )

    def open(self, context: sb.spark.ProcessorContext) -> None:
        """Declare one state, by tail number."""
        self.fleet = context.value_state(STATE_NAME, Aircraft)

    async def process(self, key: Any, rows: Sequence[Any], context: sb.spark.ProcessorContext) -> None:
        """Fly one day of one aircraft."""
        for row in rows:
            if row["departed"] is not None:
                airport = await self._airport_of(self._port, row["dest"])
                late_minutes = max(row["delay_minutes"], 0)
                self.fleet[key] = after(self.fleet.get(key), row["origin"], airport, row["arrived"], late_minutes)
