"""Real workers that end in all ways, and what is told of it further out."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 90.0

AGENT = (sys.executable, "-m", "drumbeat.agent", "join", "--standalone")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


def environment(**more: str) -> dict[str, str]:
    """The sources, and nothing that a launcher around the tests may have set."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DRUMBEAT_", "TORCHELASTIC_", "PYTHONFAULT"))
    }
    return {**kept, "PYTHONPATH": f"{ROOT}", **more}


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def script(folder: Path, body: str, name: str = "train.py", sdk: str = "worker_sdk") -> str:
    """Write a program whose entry point is recorded."""
    lines = ["import ctypes, faulthandler, os, signal, sys, threading", f"from {sdk} import record"]
    lines += ["@record", "def main():", *(f"    {line}" for line in body.splitlines()), "main()"]
    path = folder / name
    path.write_text("\n".join([*lines, ""]))
    return str(path)


def report_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the agent's readable report: what stands between the last two borders.

    An inner agent's report may be quoted in it, among the last lines of standard error.
    """
    parts = re.split(r"^={72}$", done.stderr, flags=re.MULTILINE)
    assert len(parts) >= 3, done.stderr
    return parts[-2]


def test_an_error_is_reported_with_message_and_traceback(tmp_path: Path) -> None:
    done = run(*AGENT, script(tmp_path, "raise ValueError('boom')"), cwd=tmp_path)
    assert done.returncode == 1
    report = report_of(done)
    assert "ended by  : exit code 1 (pid " in report
    assert "message   : ValueError: boom\n" in report
    assert "traceback :\n    Traceback (most recent call last):\n" in report
    assert "    ValueError: boom\n" in report


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ("sys.exit('no data')", "exit code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
def test_an_exit_is_reported_without_an_error(body: str, ending: str, tmp_path: Path) -> None:
    done = run(*AGENT, script(tmp_path, body), cwd=tmp_path)
    assert done.returncode == 1
    report = report_of(done)
    assert f"ended by  : {ending} (pid " in report
    assert "message   :" not in report


def test_a_good_end_stays_one(tmp_path: Path) -> None:
    done = run(*AGENT, "--log-dir", "logs", script(tmp_path, "return 7"), cwd=tmp_path)
    assert (done.returncode, "FAILED" in done.stderr) == (0, False)
    assert not [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]


def test_a_crash_is_reported_with_the_stacks_of_all_threads(tmp_path: Path) -> None:
    body = (
        "up = threading.Event()\n"
        "def bystander():\n"
        "    up.set()\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=bystander, daemon=True).start()\n"
        "up.wait()\nctypes.string_at(0)"
    )
    done = run(*AGENT, "--log-dir", "logs", script(tmp_path, body), cwd=tmp_path)
    assert done.returncode == 1
    report = report_of(done)
    message = "Fatal Python error: Segmentation fault"
    assert "ended by  : SIGSEGV (pid " in report
    assert f"message   : {message}\n" in report
    assert re.search(
        r"Current thread \S+ \(most recent call first\):\n(.*\n)*?.* in main\n", report
    )
    assert " in bystander\n" in report
    # Users look for it on the standard error, where Python itself would write it; moved in, for
    # what a worker left must not look like a line of the log.
    assert f"\n  {message}\n\n  Current thread" in done.stderr
    (left,) = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert left.name == "error.json.faulthandler"


def test_a_crash_without_an_agent_is_told_on_the_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    program = script(tmp_path, "ctypes.string_at(0)")
    done = run(sys.executable, program, cwd=tmp_path, TORCHELASTIC_ERROR_FILE=str(path))
    assert done.returncode == -11
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["train.py"]


def test_a_failing_thread_is_the_cause_of_the_exit_after_it(tmp_path: Path) -> None:
    body = (
        "@record\n"
        "def work():\n"
        "    raise ValueError('in a thread')\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "sys.exit(1)"
    )
    report = report_of(run(*AGENT, script(tmp_path, body), cwd=tmp_path))
    assert "message   : ValueError: in a thread\n" in report
    assert " in work\n" in report


def test_a_forked_childs_end_is_not_taken_for_its_parents(tmp_path: Path) -> None:
    body = (
        "if not os.fork():\n"
        "    raise ValueError('of a child')\n"
        "os.wait()\n"
        "if not os.fork():\n"
        "    ctypes.string_at(0)\n"
        "_, status = os.wait()\n"
        "assert os.WTERMSIG(status) == signal.SIGSEGV\n"
        "os._exit(3)"
    )
    done = run(*AGENT, script(tmp_path, body), cwd=tmp_path)
    report = report_of(done)
    assert "ended by  : exit code 3 (pid " in report
    assert "message" not in report
    assert "traceback" not in report
    # The child's own words are where they would be without an agent.
    assert "ValueError: of a child" in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr


RECORDED_THEN_3 = """
@record
def main():
    raise ValueError('boom')
try:
    main()
except ValueError:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("body", "ending", "message"),
    [
        (RECORDED_THEN_3, "exit code 3", "ValueError: boom"),
        ("sys.exit(3)", "exit code 3", r"rank 0 on \S+ recorded no error"),
    ],
)
def test_an_outer_report_shows_the_innermost_cause(
    body: str, ending: str, message: str, tmp_path: Path
) -> None:
    inner = (*AGENT, script(tmp_path, body))
    report = report_of(run(*AGENT, "--no-python", *inner, cwd=tmp_path))
    assert "ended by  : exit code 1 (pid " in report
    assert re.search(
        rf"message   : {message}\n +\(the innermost process ended by {ending}\)", report
    )
    if "recorded no error" not in message:
        assert re.search(r"traceback :\n(.*\n)+.* in main\n", report)


def test_an_agents_own_error_is_the_cause_further_out(tmp_path: Path) -> None:
    join = (sys.executable, "-m", "drumbeat.agent", "join", "--coordinator", "127.0.0.1:9")
    inner = (*join, "--join-timeout", "0.1s", script(tmp_path, "pass"))
    report = report_of(run(*AGENT, "--no-python", *inner, cwd=tmp_path))
    assert "ended by  : exit code 3 (pid " in report
    assert "message   : no coordinator answered at 127.0.0.1:9 within " in report


def test_the_fault_handler_follows_the_error_file(tmp_path: Path) -> None:
    """Goal: one file is open, the latest. Method: also in a child, which has one of its own."""
    body = (
        "from worker_sdk import get_error_handler\n"
        "def held():\n"
        "    links = [os.path.realpath(f'/proc/self/fd/{fd}') for fd in range(30)]\n"
        "    return [os.path.basename(to) for to in links if to.endswith('.faulthandler')]\n"
        "def aim(name):\n"
        "    os.environ['TORCHELASTIC_ERROR_FILE'] = name\n"
        "    get_error_handler().initialize()\n"
        "print(held())\n"
        "for name in 'a', 'a', 'b':\n"
        "    aim(name)\n"
        "    print(held(), flush=True)\n"
        "if not os.fork():\n"
        "    print(held())\n"
        "    aim('b')\n"
        "    print(held())\n"
        "    aim('a.of-child')\n"
        "    print(held(), flush=True)\n"
        "    ctypes.string_at(0)\n"
        "os.wait()\n"
        "aim('c')\n"
        "print(held(), faulthandler.is_enabled())"
    )
    for name in ("a", "b", "a.of-child"):
        (tmp_path / f"{name}.faulthandler").touch()
    os.mkfifo(tmp_path / "c.faulthandler")
    done = run(sys.executable, script(tmp_path, body), cwd=tmp_path)
    a, b, child = ["a.faulthandler"], ["b.faulthandler"], ["a.of-child.faulthandler"]
    wanted = [[], a, a, b, [], [], child, [], True]
    assert done.stdout.split("\n")[:-1] == [*map(str, wanted[:-2]), "[] True"], done.stderr
    assert "Fatal Python error" not in done.stderr
    assert "Segmentation fault" in (tmp_path / child[0]).read_text()
    assert (tmp_path / b[0]).read_text() == ""


def test_the_package_is_light(tmp_path: Path) -> None:
    code = (
        "import importlib, sys, typing\n"
        "before = set(sys.modules)\n"
        "import worker_sdk\n"
        "print(*sorted(set(sys.modules) - before))\n"
        "from worker_sdk import record\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'agent', 'coordinator', 'google', 'grpc', 'torch'}))"
    )
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    assert done.stdout == "worker_sdk\n\n", done.stderr


# With the other side being torch's.

TORCH_SDK = "torch.distributed.elastic.multiprocessing.errors"


@pytest.mark.slow
@pytest.mark.torch
def test_torchs_record_under_our_agent(tmp_path: Path) -> None:
    program = script(tmp_path, "raise ValueError('boom')", sdk=TORCH_SDK)
    report = report_of(run(*AGENT, program, cwd=tmp_path))
    assert "message   : ValueError: boom\n" in report
    assert " in main\n" in report


@pytest.mark.slow
@pytest.mark.torch
def test_our_record_under_torchrun(tmp_path: Path) -> None:
    done = run(*TORCHRUN, script(tmp_path, "raise ValueError('boom')"), cwd=tmp_path)
    assert done.returncode == 1
    assert "Root Cause (first observed failure):" in done.stderr
    root = done.stderr.partition("Root Cause (first observed failure):")[2]
    assert "traceback : Traceback (most recent call last):" in root
    assert "ValueError: boom" in root


@pytest.mark.slow
@pytest.mark.torch
def test_torchrun_between_hands_the_cause_on(tmp_path: Path) -> None:
    """The exit code in the file is the one that torchrun puts there."""
    outer = tmp_path / "outer.json"
    program = script(tmp_path, RECORDED_THEN_3)
    keep = 'file=$TORCHELASTIC_ERROR_FILE; "$@"; code=$?; cp "$file" "$0"; exit $code'
    torchrun = ("sh", "-c", keep, str(outer), *TORCHRUN, program)
    report = report_of(run(*AGENT, "--no-python", *torchrun, cwd=tmp_path))
    message = json.loads(outer.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: boom", 3)
    assert "message   : ValueError: boom\n" in report
    assert "(the innermost process ended by exit code 3)" in report


@pytest.mark.slow
@pytest.mark.torch
def test_torchs_failure_types_are_handed_on_by_our_record(tmp_path: Path) -> None:
    child, own = tmp_path / "child.json", tmp_path / "own.json"
    child.write_text(json.dumps({"message": {"message": "child", "extraInfo": {"timestamp": "1"}}}))
    body = (
        f"from {TORCH_SDK} import ChildFailedError, ProcessFailure\n"
        f"raise ChildFailedError('t', {{0: ProcessFailure(0, 1, -11, {str(child)!r})}})"
    )
    run(sys.executable, script(tmp_path, body), cwd=tmp_path, TORCHELASTIC_ERROR_FILE=str(own))
    expected = {"message": "child", "extraInfo": {"timestamp": "1"}, "errorCode": -11}
    assert json.loads(own.read_text())["message"] == expected
