"""The conversation with the agent, with a real server on a real socket."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from drumbeat.worker.v1 import worker_pb2, worker_pb2_grpc
from tests.support.boards import BoardDirectory, leave
from tests.support.waiting import MS
from worker_sdk import acquire, attach, context, release, runtime

WAIT_S = 20_000 * MS


class Agent(worker_pb2_grpc.WorkerServiceServicer):
    """Notes what it is told, and answers if it shall."""

    def __init__(self, is_answering: bool, refusal: grpc.StatusCode | None) -> None:
        self.is_answering = is_answering
        self.refusal = refusal
        self.heard: queue.Queue[worker_pb2.AttachRequest] = queue.Queue()
        self.tokens: list[object] = []

    def Attach(  # noqa: N802 - a name of the protocol
        self,
        request_iterator: Iterator[worker_pb2.AttachRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[worker_pb2.AttachResponse]:
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        if self.refusal is not None:
            context.abort(self.refusal, "no")
        for request in request_iterator:
            self.heard.put(request)
            if request.WhichOneof("kind") == "greeting":
                yield worker_pb2.AttachResponse()  # of a kind that is not known here
                yield worker_pb2.AttachResponse(greeted=worker_pb2.Greeted())
            elif self.is_answering:
                synced = worker_pb2.Synced(sequence=request.sync.sequence)
                yield worker_pb2.AttachResponse(synced=synced)

    def hears(self) -> tuple[str, int]:
        """Return the next thing heard: its kind, and its number."""
        request = self.heard.get(timeout=WAIT_S)
        return request.WhichOneof("kind") or "", request.sync.sequence


@contextmanager
def serving(
    path: Path, *, is_answering: bool = True, refusal: grpc.StatusCode | None = None
) -> Iterator[Agent]:
    pool = futures.ThreadPoolExecutor(4)
    server = grpc.server(pool)
    agent = Agent(is_answering, refusal)  # type: ignore[abstract] # of what is not called
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(agent, server)
    assert server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield agent
    finally:
        server.stop(None).wait(WAIT_S)
        pool.shutdown()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.fixture
def attachment(path: Path) -> Iterator[attach.Attachment]:
    made = attach.Attachment(f"unix:{path}", "sesame")
    yield made
    thread = made._thread
    made.close()
    if thread is not None:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture
def _board(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    leave()
    with BoardDirectory(tmp_path / "worker") as made:
        monkeypatch.setenv(context.WORKER_DIR, str(made.path))
        monkeypatch.setenv(context.WORKER_SOCKET, str(path))
        monkeypatch.setenv(context.WORKER_TOKEN, "sesame")
        yield
        thread = runtime.STATE.attachment._thread if runtime.STATE.attachment else None
        leave()
        if thread is not None:
            thread.join(WAIT_S)


@pytest.mark.usefixtures("_board")
def test_a_timer_is_confirmed_by_the_agent(path: Path) -> None:
    with serving(path) as agent:
        assert acquire("a", 60, confirm=True) is True
        assert acquire("a", 60, confirm=True) is True
        assert agent.heard.get().greeting.pid == os.getpid()
        assert [agent.hears(), agent.hears()] == [("sync", 1), ("sync", 2)]
        assert agent.tokens == ["Bearer sesame"]
        release("a")
        leave()


FORK = """
import os, sys, worker_sdk
assert worker_sdk.acquire("a", 60, confirm=True)
child = os.fork()
if not child:
    sys.exit(bool(worker_sdk.acquire("a", 60, confirm=True)))
assert os.waitpid(child, 0)[1] == 0
assert worker_sdk.acquire("a", 60, confirm=True)
"""


@pytest.mark.usefixtures("_board")
def test_a_forked_child_leaves_the_conversation_to_its_parent(path: Path) -> None:
    with serving(path) as agent:
        done = subprocess.run([sys.executable, "-c", FORK], timeout=WAIT_S, check=False)
        assert done.returncode == 0
        heard = [agent.hears() for _ in range(3)]
        assert heard == [("greeting", 0), ("sync", 1), ("sync", 2)]
        assert agent.heard.empty()


def test_what_was_not_answered_is_asked_again_of_the_next(
    path: Path, attachment: attach.Attachment
) -> None:
    answers = []
    asker = threading.Thread(target=lambda: answers.append(attachment.confirm(WAIT_S)))
    with serving(path, is_answering=False) as agent:
        assert attachment.confirm(1 * MS) is False
        assert [agent.hears(), agent.hears()] == [("greeting", 0), ("sync", 1)]
        asker.start()
        assert agent.hears() == ("sync", 2)
    with serving(path) as agent:
        asker.join(WAIT_S)
        assert answers == [True]
        assert [agent.hears(), agent.hears()] == [("greeting", 0), ("sync", 2)]


def test_an_agent_that_does_not_answer_is_not_waited_for_longer(
    path: Path, attachment: attach.Attachment
) -> None:
    assert attachment.confirm(10 * MS) is False
    with serving(path, is_answering=False):
        assert attachment.confirm(10 * MS) is False


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION]
)
def test_a_refusal_is_not_waited_out(
    path: Path, attachment: attach.Attachment, code: grpc.StatusCode
) -> None:
    with serving(path, refusal=code) as agent:
        # Without a limit that could end it: only the refusal does.
        assert attachment.confirm(1e6) is False
        assert len(agent.tokens) == 1


def test_closing_ends_a_wait_at_once(path: Path, attachment: attach.Attachment) -> None:
    answers = []
    asker = threading.Thread(target=lambda: answers.append(attachment.confirm(1e6)))
    with serving(path, is_answering=False) as agent:
        asker.start()
        assert [agent.hears(), agent.hears()] == [("greeting", 0), ("sync", 1)]
        attachment.close()
        asker.join(WAIT_S)
    assert answers == [False]
    assert attachment.confirm(1e6) is False


LOCKED = """
import threading, time
from worker_sdk import runtime

attachment = runtime.attachment()
assert attachment.greeting({wait})
lock = attachment._stream._state.condition
attachment.close()
is_held = threading.Event()


def hold():
    with lock:
        is_held.set()
        while True:
            time.sleep(0.001)


threading.Thread(target=hold, daemon=True).start()
assert is_held.wait({wait})
"""


@pytest.mark.usefixtures("_board")
def test_a_process_ends_whatever_the_threads_of_grpc_hold(path: Path) -> None:
    # The interpreter's end stops them where they are; a lock of theirs can't be had any more.
    with serving(path):
        command = [sys.executable, "-c", LOCKED.format(wait=WAIT_S)]
        assert subprocess.run(command, timeout=WAIT_S, check=False).returncode == 0
