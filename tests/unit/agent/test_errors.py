"""What ends an agent, and with which exit code."""

import inspect
import pickle

import pytest

from drumbeat.agent import errors
from drumbeat.text.violation import Violation

EXAMPLES = [
    (errors.UsageError("a is wrong", "do b"), 2, "a is wrong"),
    (
        errors.InvalidConfiguration((Violation("a", 1, "2"), Violation("b", None, "3"))),
        2,
        "a: 1 is given, allowed is 2\nb: nothing is given, allowed is 3",
    ),
    (errors.ScriptNotFound("x.py", "it is a directory"), 2, "cannot run x.py: it is a directory"),
    (
        errors.PrivateDirectoryUnusable("/x: Permission denied; /y: Read-only file system"),
        2,
        "no private directory can be made: /x: Permission denied; /y: Read-only file system",
    ),
    (
        errors.LogDirectoryUnusable("/x", "Permission denied"),
        2,
        "the log directory /x cannot be used: Permission denied",
    ),
    (
        errors.EventLogUnusable("/x", "Permission denied"),
        2,
        "the event log /x cannot be used: Permission denied",
    ),
    (
        errors.UnknownEventHandler("x", ("null", "mine")),
        2,
        "--event-log-handler: 'x' is given, allowed is one of null, mine",
    ),
    (
        errors.UnknownLogsSpecs("x", ("a", "b")),
        2,
        "--logs-specs: 'x' is given, allowed is one of a, b",
    ),
    (
        errors.LogsSpecsUnusable("x", "OSError: full"),
        2,
        "the logs specs x cannot be used: OSError: full",
    ),
    (
        errors.TimerFileUnusable("/x", "there is something else"),
        2,
        "the timer file /x cannot be used: there is something else",
    ),
    (errors.SpecRefused("r", "agents_max"), 2, "run 'r' refused this agent: agents_max"),
    (errors.RunRefused("r", "it has ended"), 2, "run 'r' refused this agent: it has ended"),
    (
        errors.CoordinatorUnreachable("head:1", 600.0, "connection refused"),
        3,
        "no coordinator answered at head:1 within 10 min: connection refused",
    ),
    (
        errors.CoordinatorLost("head:1", 90.0, "connection reset"),
        3,
        "the coordinator at head:1 did not come back within 1 min 30 s: connection reset",
    ),
    (
        errors.SupervisorLost(6, "was ended by SIGKILL"),
        1,
        "the agent's supervisor died 6 times; the last one was ended by SIGKILL",
    ),
    (
        errors.SupervisorNotExecutable("could not be started: /opt/python: Permission denied"),
        1,
        "the agent's supervisor could not be started: /opt/python: Permission denied",
    ),
    (
        errors.ProcessesStuck(3, (71, 72)),
        1,
        "processes of round 3 outlived SIGKILL: pid 71, 72",
    ),
    (
        errors.RunForgotten(0, 5),
        1,
        "round 0 was assigned after round 5: the coordinator does not know this run any more",
    ),
    (
        errors.FunctionNotPortable("train", "TypeError: a lock"),
        1,
        "train or its arguments cannot be handed to workers: TypeError: a lock",
    ),
    (
        errors.ValueNotReadable(3, "EOFError: it ends"),
        1,
        "the return value of rank 3 cannot be read here: EOFError: it ends",
    ),
    (
        errors.AgentProcessLost("was ended by SIGKILL"),
        1,
        "the agent's process was ended by SIGKILL; its workers are gone with it",
    ),
    (errors.RunEnded("r", "it succeeded", 0), 0, "run 'r' gave this agent up: it succeeded"),
    (errors.AccessRefused("the token was revoked"), 2, "the token was revoked"),
    (errors.RunFailed("r", "too few agents"), 1, "run 'r' failed: too few agents"),
    (errors.AgentDrained("drained by op"), 0, "this agent left its run, drained by op"),
    (errors.RunStopped("r", "stopped by op: full disk"), 4, "run 'r' was stopped by op: full disk"),
]


@pytest.mark.parametrize(("error", "exit_code", "text"), EXAMPLES)
def test_error_has_exit_code_and_says_what_happened(
    error: errors.AgentError, exit_code: int, text: str
) -> None:
    assert error.exit_code == exit_code
    assert str(error) == text


@pytest.mark.parametrize("error", [example[0] for example in EXAMPLES])
def test_error_survives_a_copy(error: errors.AgentError) -> None:
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error)
    assert copied.hint == error.hint
    assert vars(copied) == vars(error)


def test_every_public_class_has_an_example() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.AgentError) and name[0] != "_"
    }
    assert {type(example[0]).__name__ for example in EXAMPLES} == classes - {
        "AgentError",
        "ChildFailedError",
    }


def test_a_usage_error_without_a_hint_of_its_own_names_the_help() -> None:
    assert errors.UsageError("a").hint == "try 'agent join --help'"
    assert errors.UsageError("a", "b").hint == "b"
