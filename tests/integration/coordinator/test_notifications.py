"""Notifications on their way to an endpoint, be it there, away, silent or unwilling."""

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from drumbeat.coordinator.command import cli
from drumbeat.coordinator.config import NOTIFY_MAX, CoordinatorConfig
from drumbeat.coordinator.errors import NotificationsUnusable
from drumbeat.coordinator.limits import Limits
from drumbeat.coordinator.notify import notifier as notifiers
from drumbeat.coordinator.notify import queue
from drumbeat.coordinator.notify.endpoints import FILE_BYTES_MAX, endpoints_of
from drumbeat.coordinator.notify.notifier import Notifier
from drumbeat.v1 import session_pb2
from tests.support.coordinators import coordinator_of
from tests.support.etcd_model import EtcdModel
from tests.support.operator_commands import Operator
from tests.support.waiting import MS, wait_until
from tests.support.webhook import DEADLINE_S, SECRET, Webhook, webhook
from tests.support.wire import Client, FakeAgent, coordinator

MANY_CALLS = Limits(calls_per_connection_max=5_000)


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as hook:
        yield hook


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "RETRY_FIRST_S", 10 * MS)
    monkeypatch.setattr(queue, "RETRY_MAX_S", 50 * MS)


@asynccontextmanager
async def notifying(**settings: Any) -> AsyncIterator[Notifier]:
    notifier = Notifier(CoordinatorConfig(**settings), lambda: True)
    notifier.start()
    try:
        yield notifier
    finally:
        await notifier.close()


async def fail(client: Client, run_id: str) -> None:
    """Let a run of one worker fail."""
    agent = await client.agent(run_id=run_id).join()
    await agent.run()
    await report_failure(client, agent)
    await agent.desired("exit")


async def report_failure(client: Client, agent: FakeAgent) -> None:
    record = agent.failure(1, message="ValueError: nan")
    assert await client.report(record, key=agent.key) == [True]
    await agent.say(session_pb2.GROUP_STATE_FAILED, workers_alive=0, failures_written=1)


async def received(hook: Webhook, count: int) -> None:
    await wait_until(lambda: len(hook.messages) >= count, DEADLINE_S, describe=hook.titles)


async def test_a_failed_run_is_told_as_json(tmp_path: Path, hook: Webhook) -> None:
    async with coordinator(tmp_path, notify=(hook.url,)) as client:
        await fail(client, "mt5")
        await received(hook, 1)
    (message,) = hook.messages
    assert hook.tokens == {SECRET}
    assert (message["title"], message["type"]) == ("run mt5: failed", "failure")
    assert "Reason: " in message["message"]
    assert "Root cause: rank 0 on alice (exit code 1, ValueError: nan)" in message["message"]
    assert "Restarts: 0 of 0 used" in message["message"]


async def test_what_was_sent_and_what_is_wrong_now_is_listed(
    tmp_path: Path, hook: Webhook, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path, notify=(hook.url,)) as client:
        await fail(client, "mt5")
        await received(hook, 1)
        agent = client.agent(run_id="sick")
        await agent.join()
        await agent.run()
        agent.beat.health.state = session_pb2.HEALTH_STATE_UNHEALTHY
        agent.beat.health.reason = "disk full"
        await agent.say(session_pb2.GROUP_STATE_RUNNING)
        operator = Operator(client.port, capsys)
        assert await client.report(agent.failure(1)) == [True]  # the beat was read
        document = (await operator("notifications -o json")).documents[0]
        (firing,) = document["firing"]
        assert (firing["run_id"], firing["health"]) == ("sick", "degraded")
        (sent,) = document["notifications"]
        assert (sent["title"], sent["outcome"]) == ("run mt5: failed", "sent")
        assert SECRET not in sent["endpoint"]
        text = (await operator("notifications")).out
        assert text[0].split() == ["FIRING", "HEALTH", "REASON"]
        assert text[3].split() == ["AGE", "TO", "OUTCOME", "TITLE"]


async def test_an_endpoint_that_refuses_gets_a_message_again_and_then_once(hook: Webhook) -> None:
    hook.status = 500
    with structlog.testing.capture_logs() as logged:
        async with notifying(notify=(hook.url,)) as notifier:
            notifier.journal_changed("the disk is full")
            await wait_until(lambda: hook.refused >= 3, DEADLINE_S)
            hook.status = 200
            await received(hook, 1)
            await wait_until(lambda: notifier.counts["sent"], DEADLINE_S)
    assert hook.titles() == ["coordinator: the journal cannot be written"]
    assert [each["event"] for each in logged] == [
        "notifications do not arrive",
        "notifications arrive again",
    ]
    assert {each["endpoint"] for each in logged} == {"json://127.0.0.1 (number 1)"}


async def test_an_endpoint_that_comes_late_gets_what_waits(hook: Webhook) -> None:
    with webhook() as gone:
        port, url = gone.port, gone.url
    async with notifying(notify=(url, hook.url)) as notifier:
        notifier.journal_changed("the disk is full")
        await received(hook, 1)  # another endpoint waits for none
        with webhook(port) as late:
            await received(late, 1)


async def test_a_silent_endpoint_keeps_no_one_waiting_and_not_the_end(
    hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "CLOSE_WITHIN_S", 100 * MS)
    hook.be_silent()
    with webhook() as other, structlog.testing.capture_logs() as logged:
        began = time.monotonic()
        async with notifying(notify=(hook.url, other.url)) as notifier:
            for _ in range(3 * queue.WAITING_MAX):
                notifier.journal_changed("the disk is full")
            assert time.monotonic() - began < 1000 * MS
            await received(other, 1)
            silent, _ = notifier._senders
            assert silent.queue.size <= queue.WAITING_MAX + 1
            assert notifier.counts["dropped"] >= queue.WAITING_MAX
            ending = time.monotonic()
        assert time.monotonic() - ending < 2000 * MS
    assert logged[-1]["event"] == "notifications not sent"
    assert " notifications not sent to json://127.0.0.1 (number 1) " in logged[-1]["message"]


async def test_a_message_that_is_never_answered_is_given_up_and_not_repeated(
    hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "SEND_WITHIN_S", 50 * MS)
    hook.be_silent()
    async with notifying(notify=(hook.url,)) as notifier:
        notifier.journal_changed("the disk is full")
        await wait_until(lambda: notifier.counts["failed"], DEADLINE_S)
        notifier.journal_changed("")
        hook.speak()
        await received(hook, 2)
    assert len(hook.messages) == 2
    assert hook.messages[1]["message"].endswith("1 earlier message did not arrive here")


async def test_what_waits_is_sent_at_the_end(hook: Webhook) -> None:
    async with notifying(notify=(hook.url,)) as notifier:
        for _ in range(queue.RATE_MAX + 5):
            notifier.journal_changed("the disk is full")
        await asyncio.sleep(0)
    assert notifier.counts == {"sent": queue.RATE_MAX + 5}


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["silent", "dead", "refusing"])
async def test_a_flood_of_runs_that_fail_at_once_delays_no_decision(
    tmp_path: Path, hook: Webhook, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "CLOSE_WITHIN_S", 100 * MS)
    if answers == "silent":
        hook.be_silent()
    elif answers == "refusing":
        hook.status = 500
    url = "json://127.0.0.1:9/x" if answers == "dead" else hook.url
    async with AsyncExitStack() as stack:
        serving = coordinator(tmp_path, notify=(url,), lease=600.0)
        asking = await stack.enter_async_context(serving)
        clients = [await stack.enter_async_context(Client(asking.port)) for _ in range(10)]
        agents = [
            (client, await client.agent(run_id=f"run-{number}-{which}").join())
            for number, client in enumerate(clients)
            for which in range(20)
        ]
        for _, agent in agents:
            await agent.run()
        failing = asyncio.gather(*(report_failure(*each) for each in agents))
        while not failing.done():
            await asking.run("run-0-0")  # with a deadline, as all calls here
            await asyncio.sleep(10 * MS)
        await failing
        await asyncio.gather(*(agent.desired("exit") for _, agent in agents))


async def test_a_flood_is_told_in_a_few_messages(tmp_path: Path, hook: Webhook) -> None:
    async with coordinator(tmp_path, limits=MANY_CALLS, notify=(hook.url,)) as client:
        await asyncio.gather(*(fail(client, f"run-{i}") for i in range(100)))
    assert len(hook.messages) <= queue.RATE_MAX + 1, "the last one is of the end"
    gathered = [each["title"] for each in hook.messages if each["title"].startswith("drumbeat: ")]
    singles = len(hook.messages) - len(gathered)
    assert singles + sum(int(title.split()[1]) for title in gathered) == 100


async def test_only_the_leader_tells_and_nothing_is_told_twice(hook: Webhook) -> None:
    model = EtcdModel()
    # A busy machine must not take the lead away before it is handed over.
    given: dict[str, Any] = {"notify": (hook.url,), "http_port": 0, "ttl_s": 30.0}
    async with coordinator_of(model, **given) as first:
        await first.leads()
        await fail(first.client, "one")
        await received(hook, 1)
        async with coordinator_of(model, **given) as second:
            await second.follows(first)
            await wait_until(lambda: len(first.membership.members) == 2, DEADLINE_S)
            await first.membership.step_down("test")
            await second.leads()
            await fail(second.client, "two")
            await received(hook, 2)
        assert second.page is not None
        link = f"Page: http://127.0.0.1:{second.page.port}/runs/two"
    assert hook.titles() == ["run one: failed", "run two: failed"]
    assert hook.messages[1]["message"].splitlines()[-1] == link


async def test_a_coordinator_that_starts_again_tells_nothing_again(
    tmp_path: Path, hook: Webhook
) -> None:
    for number in range(2):
        async with coordinator(tmp_path, notify=(hook.url,)) as client:
            await fail(client, f"run-{number}")
    assert hook.titles() == ["run run-0: failed", "run run-1: failed"]


async def test_the_heartbeat_comes_only_while_all_is_well(hook: Webhook) -> None:
    is_well = True
    config = CoordinatorConfig(
        notify_heartbeat=hook.heartbeat, notify_heartbeat_interval=0.1 * MS * 1000
    )
    notifier = Notifier(config, lambda: is_well)
    notifier.start()
    await wait_until(lambda: hook.heartbeats >= 2, DEADLINE_S)
    is_well = False
    await asyncio.sleep(200 * MS)
    before = hook.heartbeats
    await asyncio.sleep(400 * MS)
    assert hook.heartbeats == before
    is_well = True
    await wait_until(lambda: hook.heartbeats > before, DEADLINE_S)
    hook.status = 404
    with structlog.testing.capture_logs() as logged:
        await wait_until(lambda: logged, DEADLINE_S)
        hook.status = 200
        await wait_until(lambda: len(logged) == 2, DEADLINE_S)
        await notifier.close()
    assert logged[0] == {
        "event": "the heartbeat does not arrive",
        "log_level": "warning",
        "message": "the heartbeat does not arrive at http://127.0.0.1: the answer is 404",
        "endpoint": "http://127.0.0.1",
    }
    assert logged[1]["event"] == "the heartbeat arrives again"


async def test_no_secret_of_a_url_is_logged_by_us_or_a_library(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with webhook() as gone:
        url, heartbeat = gone.url, gone.heartbeat
    with structlog.testing.capture_logs() as logged:
        settings = {"notify_heartbeat": heartbeat, "notify_heartbeat_interval": 0.1}
        async with notifying(notify=(url,), **settings) as notifier:
            notifier.journal_changed("the disk is full")
            await wait_until(lambda: len(logged) >= 2, DEADLINE_S)
    output = capfd.readouterr()
    assert SECRET not in f"{logged}{caplog.text}{output.out}{output.err}"
    assert {each["event"] for each in logged} >= {
        "notifications do not arrive",
        "the heartbeat does not arrive",
    }


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"slack://T1JJ3T3L2/A1BRTD4JD/{SECRET}{SECRET[:4]}", "slack://… (number 1)"),
        (f"discord://{SECRET}/{SECRET}", "discord://… (number 1)"),
        (f"https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}", "https://… (number 1)"),
        (f"mailtos://me:{SECRET}@example.com?to=a@b.c", "mailtos://example.com (number 1)"),
        (f"jsons://me:{SECRET}@head:8443/{SECRET}", "jsons://head (number 1)"),
    ],
)
def test_an_endpoint_is_named_without_its_secrets(url: str, name: str) -> None:
    (endpoint,) = endpoints_of([url], None)
    assert endpoint.name == name


@pytest.mark.parametrize(
    ("url", "count"),
    [(f"pagerduty://{SECRET}@key", 1), (f"opsgenie://{SECRET}", 1), ("json://a", 2)],
)
async def test_who_is_woken_up_gets_no_good_news(url: str, count: int) -> None:
    notifier = Notifier(CoordinatorConfig(notify=(url,)), lambda: True)
    notifier.journal_changed("the disk is full")
    notifier.journal_changed("")
    assert [sender.queue.size for sender in notifier._senders] == [count]


def test_a_file_has_one_url_per_line_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "urls"
    path.touch(mode=0o600)
    path.write_text("# ours\n\njson://one/x\r\n  jsons://two\njson://one/x\n")
    found = endpoints_of(["json://zero"], str(path))
    assert [each.name for each in found] == [
        "json://zero (number 1)",
        "json://one (number 2)",
        "jsons://two (number 3)",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--notify", SECRET), ("'--notify'", "allowed is a URL, SCHEME://...")),
        (("--notify-heartbeat", f"ftp://{SECRET}"), ("begins with http:// or https://",)),
    ],
)
def test_what_cannot_be_an_endpoint_is_refused_without_being_shown(
    options: tuple[str, str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--port", "0", *options]) == 2
    said = capsys.readouterr()
    assert [word for word in words if word not in said.err] == [], said.err
    assert all(line.startswith("coordinator: ") for line in said.err.splitlines()), said.err
    assert SECRET not in said.err + said.out


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("json://one\n", 0o644, "is open to other users: its mode is 0644"),
        ("json://one\n" + SECRET, 0o600, "line 2 of "),
        ("", 0o600, "is empty"),
        (f"nonsense://{SECRET}", 0o600, "apprise cannot use the URL nonsense://… (number 1)"),
        ("#" * (FILE_BYTES_MAX + 1), 0o600, "is larger than"),
        ("\n".join(f"json://{i}" for i in range(NOTIFY_MAX + 1)), 0o600, "17 endpoints are given"),
        (None, 0o600, "does not exist"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str | None, mode: int, problem: str
) -> None:
    path = tmp_path / "urls"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(NotificationsUnusable, match="notifications cannot be sent: ") as refused:
        endpoints_of([], str(path))
    assert problem in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "urls"
    path.touch(mode=0o600)
    path.write_text("json://one\n")
    os.chown(path, 12345, 12345)
    with pytest.raises(NotificationsUnusable, match="belongs to the user 12345"):
        endpoints_of([], str(path))


@pytest.mark.parametrize("package", ["apprise", "aiohttp"])
def test_a_missing_package_is_named_with_what_brings_it(package: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from drumbeat.coordinator.command.cli import main\n"
        "sys.exit(main(['serve', '--port', '0', '--notify', 'json://hook/secret']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert f"needs the package {package}, which is not installed" in done.stderr
    assert "hint: pip install 'drumbeat[notify]'\n" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_coordinator_without_notifications_loads_nothing_for_them() -> None:
    program = (
        "import sys; sys.modules['apprise'] = None\n"
        "from drumbeat.coordinator.config import CoordinatorConfig\n"
        "from drumbeat.coordinator.cluster.server import Server\n"
        "assert Server(CoordinatorConfig(), None).notifier is None"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
