"""A page of a coordinator that something is wrong with, and that has sent a notification of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from drumbeat.v1 import control_pb2, session_pb2
from tests.support.pages import site
from tests.support.waiting import wait_until
from tests.support.webhook import DEADLINE_S, webhook
from tests.support.wire import Client

SICK, FAILED, DRAINED = "sick", "mt5", "gpu7"


@asynccontextmanager
async def troubled_site(directory: Path) -> AsyncIterator[str]:
    """Serve the page; return its origin."""
    with webhook() as hook:
        async with (
            site(directory, insecure=True, lease=600.0, notify=(hook.url,)) as made,
            Client(made.port) as client,
        ):
            failing = await client.agent(run_id=FAILED).join()
            await failing.run()
            record = failing.failure(1, message="ValueError: nan")
            assert await client.report(record, key=failing.key) == [True]
            state = session_pb2.GROUP_STATE_FAILED
            await failing.say(state, workers_alive=0, failures_written=1)
            await failing.desired("exit")
            await wait_until(lambda: hook.messages, DEADLINE_S, describe=hook.titles)
            sick = await client.agent(run_id=SICK).join()
            await sick.run()
            sick.beat.health.state = session_pb2.HEALTH_STATE_UNHEALTHY
            sick.beat.health.reason = "disk full"
            await sick.say(session_pb2.GROUP_STATE_RUNNING)
            drain = control_pb2.DrainAgentRequest(name=DRAINED, run_id="other", reason="memory")
            await client.control.DrainAgent(drain)
            yield made.origin
