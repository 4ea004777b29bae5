"""What our DAGs wait for. A task that waits gives its worker back and goes on in the triggerer, where waiting costs
next to nothing. Triggers run there together, so they must not block."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException
from airflow.triggers.base import BaseTrigger, TriggerEvent


class BacklogTrigger(BaseTrigger):
    """Fires with True once there is something for a batch run to do, and with False at ``deadline`` (Unix time).

    It knows nothing but the deadline: started anew, in another triggerer, it goes on waiting for the same.
    """

    def __init__(self, deadline: float, poll_seconds: float = 2.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own lack
        self.deadline = deadline
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments, as Airflow keeps them in its metadata."""
        return f"{__name__}.{type(self).__name__}", {"deadline": self.deadline, "poll_seconds": self.poll_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask the operations database until there is an answer. A database that is away is asked again."""
        from batch.backlog import has_work
        from runtime.errors import TransientError
        from runtime.settings import Settings

        settings = Settings()
        while True:
            try:
                if await asyncio.to_thread(has_work, settings):
                    yield TriggerEvent(True)
                    return
            except TransientError as error:
                self.log.warning("%s", error)
            if time.time() >= self.deadline:
                yield TriggerEvent(False)
                return
            await asyncio.sleep(self.poll_seconds)


class AwaitBacklog(BaseOperator):
    """Succeeds once there is something for a batch run to do. If nothing comes for ``idle_seconds`` it is skipped, and
    so is what follows; a run that was not needed is no failure. Run again, it asks anew."""

    def __init__(self, idle_seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.idle_seconds = idle_seconds

    def execute(self, context: Context) -> None:
        """Ask once, and leave the waiting to the triggerer."""
        from batch.backlog import has_work
        from runtime.settings import Settings

        if not has_work(Settings()):
            self.defer(trigger=BacklogTrigger(time.time() + self.idle_seconds), method_name="resume")

    def resume(self, context: Context, event: bool) -> None:
        """Called with what the trigger found."""
        if not event:
            raise AirflowSkipException(f"nothing new was archived for {self.idle_seconds:.0f} s")
