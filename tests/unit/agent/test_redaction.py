"""What counts as a secret of a worker, and that it is in nothing that is reported."""

import json
import time
from urllib.parse import quote

import pytest

from drumbeat.access import redactor as redaction
from drumbeat.access.redactor import Redactor, is_secret_name
from drumbeat.agent.core import events as ev
from drumbeat.agent.core.model import WorkerStep
from drumbeat.agent.core.redacted_events import redacted
from drumbeat.agent.core.watchdog.model import WorkerKey
from drumbeat.agent.model.hang import Hang, HangEvidence, WorkerProgress
from drumbeat.agent.model.messages import WorkerError
from drumbeat.agent.workers.output.lines import LAST_BYTES_MAX, last_lines
from drumbeat.inprocess import Interruption, InterruptionKind
from drumbeat.model import HangKind
from worker_sdk.errors import bounded

SECRET = "hf_q7Lx0pW3vbn2Zk9T"
KEY = (
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgkq8y7Qm2X1a3Jd0v\n"
    "u3kFh5pQe0Zs9bYl2mRr8hRANCAAQx\n"
    "-----END PRIVATE KEY-----\n"
)
HIDES = Redactor({"HF_TOKEN": SECRET})


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "GITHUB_TOKEN", "githubToken", "GH-TOKEN", "PGPASSWORD", "DB_PASSWD"),
        *("SMTP_PASS", "MYSQL_PWD", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "OPENAI_KEY"),
        *("WANDB_API_KEY", "APIKEY", "my.private.key", "REGISTRY_AUTH", "OAUTH", "SECRET_1"),
        *("CREDENTIALS", "AUTHORIZATION", "TLS_PASSPHRASE", "client_secret", "SESSION_COOKIE"),
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "TOKENIZER", "GIT_AUTHOR_NAME", "PWD", "OLDPWD", "PATH"),
        *("COMPASS", "BYPASS", "SECRETARY", "KEYBOARD", "MONKEY", "PASSENGER", "XAUTHORITY"),
    ],
)
def test_names_of_other_things_are_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "value", ["", "short", "7654321", "12345678901", "1.5e+10", "disabled", "/etc/token", " a b "]
)
def test_what_can_be_no_secret_stays(value: str) -> None:
    redact = Redactor({"A_TOKEN": value}, {"/etc/token"}.__contains__)
    assert redact(f"it was {value}!") == f"it was {value}!"


def test_a_path_that_is_none_and_a_space_around_a_value_do_not_matter() -> None:
    redact = Redactor({"A_TOKEN": "/b64+/yes\n", "B_TOKEN": "  twelve chars  "}, lambda _: False)
    assert redact("(/b64+/yes) (twelve chars)") == "([value of A_TOKEN]) ([value of B_TOKEN])"


@pytest.mark.parametrize("value", ['a"b\\c d/é\n', "x'y z+&%?=", SECRET])
def test_a_value_is_found_as_json_literal_and_url_have_it(value: str) -> None:
    redact = Redactor({"A_SECRET": value})
    value = value.strip()
    for spelled in (value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")):
        assert redact(f"<{spelled}>") == "<[value of A_SECRET]>"


def test_a_value_within_another_and_one_that_overlaps_leave_nothing() -> None:
    redact = Redactor({"A_TOKEN": "abcdefgh", "B_TOKEN": "abcdefghijkl", "C_TOKEN": "ijklmnop"})
    assert redact("-abcdefghijkl-") in ("-[value of A_TOKEN]-", "-[value of B_TOKEN]-")
    assert redact("-abcdefgh-") == "-[value of A_TOKEN]-"
    assert redact("-abcdefghijklmnop-").count("[value of") == 1
    assert "mnop" not in redact("-abcdefghijklmnop-")


def test_what_is_shown_instead_is_not_searched_again() -> None:
    redact = Redactor({"my_token": "[value of my_token]", "a_token": "my_token"})
    assert redact("my_token") == "[value of a_token]"


def test_each_line_of_a_value_is_one() -> None:
    value = '{\n  "kind": "account",\n  "id": "0123-4567-89ab"\n}'
    redact = Redactor({"CREDENTIALS": value})
    assert redact(f"read {value}.") == "read [value of CREDENTIALS]."
    assert "0123-4567" not in redact('[rank0]: {\n[rank0]:   "id": "0123-4567-89ab"\n')


@pytest.mark.parametrize("cut_at", range(1, len(SECRET) - redaction.PIECE_CHARACTERS_MIN))
def test_a_value_that_our_limits_cut_leaves_no_half(cut_at: int) -> None:
    """The last lines of stderr lack their beginning, other texts their middle."""
    tail = last_lines(f"{SECRET} {'x' * (LAST_BYTES_MAX - len(SECRET) + cut_at - 1)}".encode())
    assert tail.startswith(SECRET[cut_at:])
    assert HIDES(tail, is_start_cut=True).startswith(("[value of HF_TOKEN] x", "*** x"))
    for text in (
        f"{'a' * (100 - cut_at)}{SECRET}{'b' * 1000}",
        f"{'a' * 1000}{SECRET}{'b' * (100 - len(SECRET) + cut_at)}",
    ):
        cut = bounded(text, 200 + len(redaction.LEFT_OUT.encode()))
        assert redaction.LEFT_OUT in cut
        shown = HIDES(cut)
        assert SECRET[:4] not in shown
        assert SECRET[-4:] not in shown


def test_a_value_that_was_cut_within_a_character_leaves_no_half() -> None:
    redact = Redactor({"A_SECRET": "äöüäöü-value"})
    tail = "äöüäöü-value"[2:].encode()[1:].decode("utf-8", "replace")
    assert redact(f"{tail} it was", is_start_cut=True) == "\ufffd[value of A_SECRET] it was"


def test_the_middle_of_a_private_key_goes_and_what_is_around_it_stays() -> None:
    assert HIDES(f"key:\n{KEY}done") == "key:\n[private key]\ndone"
    assert HIDES(f"in {json.dumps(KEY)}.") == 'in "[private key]\\n".'
    cut_end, cut_begin = f"is {KEY[:70]}", f"{KEY[40:]}is it"
    assert HIDES(cut_end) == "is [private key]"
    assert HIDES(cut_begin) == "[private key]\nis it"
    assert HIDES("no PRIVATE KEY here") == "no PRIVATE KEY here"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ann:s3cr3t@pypi.org/x", "https://[secret]@pypi.org/x"),
        ("redis://:s3cr3t@host:1", "redis://[secret]@host:1"),
        ("git+https://ghp_0123456789abcdef@github.com", "git+https://[secret]@github.com"),
        ("ssh://git@github.com:22 a@b.c", "ssh://git@github.com:22 a@b.c"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("Authorization: Basic QWxhZGRpbjpvcGVu", "Authorization: Basic [secret]"),
        ("{'authorization': 'Bearer abCD.1234-x'}", "{'authorization': 'Bearer [secret]'}"),
        ("Authorization: unavailable", "Authorization: unavailable"),
        ("sent Bearer abCD.1234-x, refused", "sent Bearer [secret], refused"),
        ("the bearer certificate", "the bearer certificate"),
        (
            "drumbeat1.join.abcd0123.s0m3th1ng-secret_22char.-.0011aabb is wrong",
            "drumbeat1.join.abcd0123.[secret] is wrong",
        ),
    ],
)
def test_secrets_of_known_forms_go_whoever_has_them(text: str, shown: str) -> None:
    assert Redactor({})(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a" * 256_000,
        "://" * 85_000,
        "://a:" * 51_000,
        "://" + "a:" * 127_000,
        "Bearer " * 36_000,
        "bearer " + "a" * 256_000,
        "authorization: " * 17_000,
        "authorization:" + "a" * 256_000,
        "-----BEGIN PRIVATE KEY-----" * 9_000,
        "-----END PRIVATE KEY-----" * 9_000,
        ("-----BEGIN PRIVATE KEY-----" + "A" * 17_000) * 15,
        "A" * 128_000 + "-----END PRIVATE KEY-----" * 5_000,
        "drumbeat1." * 25_000,
        "drumbeat1.a.b." * 18_000,
        redaction.LEFT_OUT * 14_000,
        SECRET * 13_000,
    ],
    ids=range(16),
)
def test_no_text_takes_long(text: str) -> None:
    """Half a second is 100 times what the slowest takes, and a fraction of anything quadratic."""
    environment = {f"{i}_TOKEN": f"a{'a' * (i * 10)}{i:07}" for i in range(20)}
    redact = Redactor({**environment, "HF_TOKEN": SECRET})
    began = time.process_time()
    shown = redact(text, is_start_cut=True)
    assert time.process_time() - began < 0.5
    assert len(shown) <= max(len(text), redaction.GROWN_BYTES_MAX)


def test_too_many_values_are_left_out_from_the_end() -> None:
    values = {f"TOKEN_{i:05}": f"value-{i:05}" for i in range(redaction.VALUES_MAX + 1)}
    redact = Redactor(values)
    last = redaction.VALUES_MAX
    assert redact(f"value-{last - 1:05}") == f"[value of TOKEN_{last - 1:05}]"
    assert redact(f"value-{last:05}") == f"value-{last:05}"


def test_all_that_workers_say_passes() -> None:
    """Each text of each event; what is none, such as a path or a name of ours, stays."""
    standing = WorkerProgress(local_rank=0, scope=SECRET)
    seen = HangEvidence(stacks=SECRET, notes=SECRET)
    hang = Hang(
        kind=HangKind.TIMER, scope=SECRET, limit_s=1, elapsed_s=1, standing=standing, noticed_at=0,
        evidence=seen,
    )  # fmt: skip
    why = Interruption(
        local_rank=0, kind=InterruptionKind.EXCEPTION, message=SECRET, traceback=SECRET
    )
    key = WorkerKey(0, 0)
    events: list[ev.Event] = [
        ev.WorkerExited(
            round_id=0, local_rank=0, pid=1, exit_code=1, is_stopped=False, ended_at=0, hang=hang,
            error=WorkerError(message=SECRET, traceback=SECRET), explanation=SECRET,
            stderr_tail=SECRET,
        ),
        ev.WorkerStartFailed(round_id=0, local_rank=0, message=SECRET),
        WorkerStep(worker=key, iteration=0, kind="interrupted", interruption=why),
        WorkerStep(worker=key, iteration=0, kind="entered"),
        ev.LimitExpired(worker=key, hang=hang, is_ending=False),
        ev.SupervisorDied(ending="was killed", explanation=SECRET),
        ev.WorkersStopped(round_id=0),
    ]  # fmt: skip
    for event in events:
        had = repr(event).count(SECRET)
        shown = repr(redacted(event, HIDES))
        assert SECRET not in shown
        assert shown.count("[value of HF_TOKEN]") == had
