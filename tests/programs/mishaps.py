"""A batch meets a mishap: a row fails, the process is killed, the query is stopped, the primary is in bad weather."""

from typing import TYPE_CHECKING

from tests.programs.processors import FAILING, OnPurposeError, fail
from tests.programs.program import Batch
from tests.programs.weather import WEATHERS, is_of_weather, weather

if TYPE_CHECKING:
    from tests.programs.running import Running


def deliver(running: "Running", step: Batch, batch_id: int) -> None:
    """Deliver a batch with its mishap. Whether the state has it then is open: the batch is to be delivered again."""

    def die() -> None:
        running.copy_home()
        fail()

    if step.mishap in ("output raises", "publish raises"):
        running.failing_output = 1
    elif step.mishap == "killed before the commit":
        FAILING["now"] = die
    elif step.mishap == "killed after the commit":
        running.told.on_commit = running.copy_home
    elif step.mishap == "stopped":
        FAILING["now"] = running.session.stop_query
    try:
        with weather(step.mishap, step.fate, running.copy_home):
            _try(running, step, batch_id)
    finally:
        running.told.on_commit = None
        running.failing_output = 0
        FAILING.pop("now", None)
    if running.is_copied:
        running.go_back()
    if step.mishap.startswith("killed"):
        running.next_run()


def _try(running: "Running", step: Batch, batch_id: int) -> None:
    """Deliver it once; in bad weather up to three times, each in a run of its own."""
    for _ in range(3 if step.mishap in WEATHERS else 1):
        try:
            running.sink(running.frame(step, batch_id, raises=True), batch_id)
        except Exception as error:  # a user's own, in the driver or from a worker, or Spark's
            if not _is_expected(error, step.mishap):
                raise
        else:
            return
        if step.mishap in WEATHERS:
            running.begin_run()


def _is_expected(error: Exception, mishap: str) -> bool:
    if mishap in WEATHERS or mishap == "killed at a request":
        return is_of_weather(error)
    return isinstance(error, OnPurposeError) or "on purpose" in str(error) or mishap == "stopped"
