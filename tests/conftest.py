"""Checks around every test: nothing may be left behind; and which tests run, in which order."""

import asyncio
import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support import breaks
from tests.support.etcd import EtcdCluster
from tests.support.leaks import SETTLE_S, Holdings, end_children_since, settled_leaks_since

# A suite that nohup started, or a script in the background, would hand what is ignored on to every
# process of its tests.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # while tests are collected: nothing of it is garbage

# A host may stand still for seconds, whatever a test does then.
settings.register_profile("no deadline", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one option: write the golden output of scripted stories anew."""
    parser.addoption("--rewrite", action="store_true", help="write the output of stories anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``soak``, unless it was asked for; put what may take long first.

    So that no worker of pytest has a long test before it when the others have none left.
    """
    if "soak" not in config.getoption("-m"):
        left_out = [item for item in items if item.get_closest_marker("soak") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_timeout_s, reverse=True)


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else float(item.config.getini("timeout"))


def pytest_collection_finish() -> None:
    """Leave out what lives to the end whenever a test looks for garbage."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_core_breaks_unseen() -> Iterator[None]:
    """Fail a test in which a core raises, although the product would go on."""
    with breaks.loud():
        yield


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdCluster]:
    """One member for all tests that let it live, each below a prefix of its own."""
    from tests.support.etcd import EtcdCluster, needs_etcd

    if needs_etcd.args[0]:
        pytest.skip(needs_etcd.kwargs["reason"])
    with EtcdCluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a descriptor or a thread.

    Automatic fixtures are set up first and torn down last, so this sees what is
    left after the fixtures of the test, and after its loop was closed.
    """
    before = Holdings.now()
    yield
    leaks = settled_leaks_since(before)
    if leaks:
        end_children_since(before)
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture(autouse=True)
def _no_task_left_behind(
    request: pytest.FixtureRequest, _nothing_left_behind: None
) -> Iterator[None]:
    """Fail a test that leaves a pending task, which closing its loop would hide."""
    names = [name for name in request.fixturenames if name.endswith("_scoped_runner")]
    # Asked for here, the loop outlives this check and every fixture of the test.
    runner: asyncio.Runner | None = request.getfixturevalue(names[0]) if names else None
    before = asyncio.all_tasks(runner.get_loop()) if runner else set()
    yield
    if runner is None:
        return
    pending = asyncio.all_tasks(runner.get_loop()) - before
    if pending:
        _, pending = runner.run(asyncio.wait(pending, timeout=SETTLE_S))
    if pending:
        lines = sorted(f"task {task.get_name()}: {task.get_coro()}" for task in pending)
        pytest.fail("the test left behind:\n  " + "\n  ".join(lines), pytrace=False)
