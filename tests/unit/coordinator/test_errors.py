"""What the coordinator refuses, how callers learn of it, and what keeps it from starting."""

import inspect
import pickle

import grpc
import pytest

from drumbeat.coordinator import errors
from drumbeat.coordinator.errors import CoordinatorError, Difference
from drumbeat.text.violation import Violation
from drumbeat.v1 import common_pb2

REFUSALS = [
    (
        errors.InvalidRequest("role", "", "1 to 128 characters"),
        ("INVALID_ARGUMENT", "INVALID", False),
        "role: '' is given, allowed is 1 to 128 characters",
    ),
    (
        errors.SpecMismatch(
            "r", (Difference("agents_max", 4, 2), Difference("master_addr", "a", ""))
        ),
        ("FAILED_PRECONDITION", "SPEC_MISMATCH", False),
        (
            "run 'r' was started with other settings: "
            "--nnodes (maximum): the run has 2, not 4; --master-addr: the run has '', not 'a'"
        ),
    ),
    (
        errors.RunClosed("r", "all workers exited with 0"),
        ("FAILED_PRECONDITION", "RUN_CLOSED", False),
        (
            "run 'r' has ended: all workers exited with 0; "
            "started again, the agent begins a new run of that name"
        ),
    ),
    (
        errors.RunIdTaken("r"),
        ("FAILED_PRECONDITION", "RUN_CLOSED", False),
        "run 'r' is another job, which has the same made-up id; start the agent again",
    ),
    (
        errors.RunMissed("r", "it succeeded"),
        ("FAILED_PRECONDITION", "RUN_CLOSED", False),
        (
            "run 'r' has ended before this host came: it succeeded; "
            "to train again, choose another --run-id"
        ),
    ),
    (
        errors.RunMissesAgents("r", (Difference("agents_max", 4, 2),)),
        ("ABORTED", "AGENTS_MISSING", True),
        (
            "run 'r' was started with other settings: --nnodes (maximum): the run has 2, not 4; "
            "its agents are missing, and it ends if none of them returns"
        ),
    ),
    (
        errors.StaleSession("it was replaced"),
        ("FAILED_PRECONDITION", "STALE_SESSION", True),
        "the session is over: it was replaced",
    ),
    (
        errors.SessionReplaced(),
        ("ABORTED", "SESSION_REPLACED", True),
        "the session is over: the agent opened another one",
    ),
    (
        errors.Deposed(2),
        ("ABORTED", "DEPOSED", True),
        "this coordinator was deposed: the agent has seen one of term 2",
    ),
    (
        errors.NotLeader("head2:29400"),
        ("UNAVAILABLE", "NOT_LEADER", True),
        "this coordinator does not lead, head2:29400 does",
    ),
    (
        errors.NotLeader("", "they are about to choose one"),
        ("UNAVAILABLE", "NOT_LEADER", True),
        "this coordinator does not lead, none does: they are about to choose one",
    ),
    (
        errors.LimitReached("runs_max", 1000),
        ("RESOURCE_EXHAUSTED", "LIMIT_REACHED", True),
        "the coordinator's limit runs_max is reached: 1000",
    ),
    (
        errors.Unavailable("it stops"),
        ("UNAVAILABLE", "UNAVAILABLE", True),
        "the coordinator does not answer requests now: it stops",
    ),
    (errors.UnknownRun("r"), ("NOT_FOUND", "UNKNOWN_RUN", False), "there is no run 'r'"),
    (
        errors.NoWorkers("r", "has ended: its workers are gone"),
        ("NOT_FOUND", "UNKNOWN_RUN", False),
        "run 'r' has ended: its workers are gone",
    ),
    (
        errors.Unauthenticated("it shows no token"),
        ("UNAUTHENTICATED", "UNAUTHENTICATED", False),
        "the coordinator does not let this caller in: it shows no token",
    ),
    (
        errors.RevokedToken("k3v9qr2m", "exp1"),
        ("UNAUTHENTICATED", "UNAUTHENTICATED", False),
        "the coordinator does not let this caller in: its token k3v9qr2m was revoked",
    ),
    (
        errors.Forbidden("k3v9qr2m", "it is for the run exp1 only"),
        ("PERMISSION_DENIED", "FORBIDDEN", False),
        "k3v9qr2m may not do this: it is for the run exp1 only",
    ),
    (
        errors.NoOwnAuthority(),
        ("FAILED_PRECONDITION", "INVALID", False),
        "the coordinator has no authority of its own: it was started with --tls-cert",
    ),
]
# To operators' commands; no agent hears of them.
ANSWERS = [
    (
        errors.NoPage(),
        "FAILED_PRECONDITION",
        "the coordinator serves no page: it was started without --http-port",
    ),
    (errors.UnknownToken("t1"), "NOT_FOUND", "there is no token 't1'"),
    (errors.UnknownHost("h"), "NOT_FOUND", "no run knows of a host 'h'"),
    (
        errors.WrongPhase("r", "lives", "stop it"),
        "FAILED_PRECONDITION",
        "run 'r' lives; stop it",
    ),
    (
        errors.CannotStepDown("there is no other one that could"),
        "FAILED_PRECONDITION",
        "leadership is not handed over: there is no other one that could",
    ),
    (
        errors.NoPage(),
        "FAILED_PRECONDITION",
        "the coordinator serves no page: it was started without --http-port",
    ),
]
STARTUP = [
    (errors.InvalidConfiguration(Violation("a", 1, "2")), "a: 1 is given, allowed is 2"),
    (
        errors.MissingExtra("--http-port", "aiohttp", "page"),
        "--http-port needs the package aiohttp, which is not installed",
    ),
    (errors.TracesUnusable("no number"), "OTEL_* of the environment is wrong: no number"),
    (
        errors.NotificationsUnusable("apprise cannot use the URL x://… (number 1)"),
        "notifications cannot be sent: apprise cannot use the URL x://… (number 1)",
    ),
    (errors.PortInUse("::1", 1, "in use"), "cannot listen on port 1 of ::1: in use"),
    (errors.StateDirectoryInUse("/x"), "the state directory /x is in use by another coordinator"),
    (errors.LostLeadership("/x"), "the state directory /x is in use by another coordinator"),
    (
        errors.StateDirectoryUnusable("/x", "Permission denied"),
        "the state directory /x cannot be used: Permission denied",
    ),
    (errors.AuthorityUnusable("the key /x is empty"), "the key /x is empty"),
    (errors.CertificateUnusable("the key /x is lost", hint="find it"), "the key /x is lost"),
    (errors.JournalCorrupt("/x/j", "bad row 3"), "the journal /x/j cannot be read: bad row 3"),
    (
        errors.JournalUnusable("etcd://a", "no", hint="do"),
        "the journal etcd://a cannot be used: no",
    ),
    (errors.JournalFull("/x/j", "No space"), "the journal /x/j has no room to grow: No space"),
    (errors.JournalOutage("/x/j", "it is busy"), "the journal /x/j cannot be written: it is"),
]
CALL_FAILED = errors.CallFailed("there is no run 'r'", 2, "look")


@pytest.mark.parametrize(("error", "policy", "text"), REFUSALS)
def test_refusal_carries_its_policy_and_names_what_is_wrong(
    error: CoordinatorError, policy: tuple[str, str, bool], text: str
) -> None:
    assert (error.status, error.refusal, error.is_retryable) == policy
    assert str(error) == text


@pytest.mark.parametrize(("error", "status", "text"), ANSWERS)
def test_an_answer_to_an_operator_has_a_status_and_no_refusal(
    error: CoordinatorError, status: str, text: str
) -> None:
    assert (error.status, error.refusal, str(error)) == (status, "UNSPECIFIED", text)
    assert grpc.StatusCode[error.status] is not grpc.StatusCode.OK


@pytest.mark.parametrize("error", [example[0] for example in REFUSALS])
def test_names_are_those_of_the_protocol(error: CoordinatorError) -> None:
    assert grpc.StatusCode[error.status] is not grpc.StatusCode.OK
    assert common_pb2.Refusal.Value(f"REFUSAL_{error.refusal}") != 0


def test_every_refusal_of_the_protocol_has_a_class() -> None:
    sent = {error.refusal for error, _, _ in REFUSALS}
    assert {f"REFUSAL_{name}" for name in sent} == set(common_pb2.Refusal.keys()) - {
        "REFUSAL_UNSPECIFIED"
    }


@pytest.mark.parametrize(("error", "text"), STARTUP)
def test_what_keeps_it_from_starting_ends_with_exit_code_2(
    error: errors.CommandFailed, text: str
) -> None:
    assert error.exit_code == 2
    assert not error.is_retryable
    assert text in str(error)


@pytest.mark.parametrize(
    "error", [*(row[0] for row in (*REFUSALS, *ANSWERS, *STARTUP)), CALL_FAILED]
)
def test_error_survives_a_copy(error: CoordinatorError) -> None:
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)


def test_a_failed_call_says_what_happened_and_what_to_do() -> None:
    assert str(CALL_FAILED) == "there is no run 'r'"
    assert (CALL_FAILED.exit_code, CALL_FAILED.hint) == (2, "look")


def test_a_hostile_value_stays_one_short_line() -> None:
    text = str(errors.InvalidRequest("role", "a\r\n\x1b" * 10_000, "less"))
    assert text.isprintable()
    assert len(text) < 250


def test_every_class_has_an_example() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, CoordinatorError)
    }
    seen = {type(row[0]).__name__ for row in (*REFUSALS, *ANSWERS, *STARTUP)}
    bases = {"CoordinatorError", "CommandFailed"}
    assert seen == classes - bases - {"CallFailed"}
