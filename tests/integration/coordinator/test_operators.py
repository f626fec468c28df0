"""The commands of operators against a coordinator, and what they say when it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from drumbeat import VERSION
from drumbeat.access.token import Role, parse_token
from drumbeat.coordinator import errors
from drumbeat.coordinator.command import cli
from drumbeat.coordinator.command.answers import perform
from drumbeat.coordinator.command.request import request
from drumbeat.coordinator.core.policy import Policy
from drumbeat.v1 import control_pb2
from drumbeat.wire.mapping import duration
from tests.support.coordinators import coordinator_of
from tests.support.etcd_model import EtcdModel
from tests.support.operator_commands import KEYS, Done, Operator, answering
from tests.support.waiting import wait_until
from tests.support.wire import DEADLINE_S, coordinator


def test_on_its_host_an_outage_of_the_coordinator_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["status", "--coordinator", "127.0.0.1:1"]) == 3
    told = capsys.readouterr().err
    assert "no coordinator is running at 127.0.0.1:1" in told
    assert "token" not in told


async def test_a_token_is_created_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator = Operator(client.port, capsys)
        created = await operator("token create --role join --run-id exp1 --ttl 12h")
        assert (created.code, created.err, len(created.out)) == (0, [], 1)
        token = parse_token(created.out[0])
        assert token.role is Role.JOIN
        await operator("token create --role view")

        code, (heads, first, second), _ = await operator("token list")
        assert (code, heads.split()) == (0, ["ID", "ROLE", "RUN", "AGE", "LEFT", "STATE", *_BY])
        cells = first.split()
        assert cells[:3] == [token.token_id, "join", "exp1"]
        assert cells[4:] == ["12h", "valid", "-"]
        assert second.split()[1:3] == ["view", "-"]
        assert second.split()[4:] == ["-", "valid", "-"]
        assert first.index("join") == second.index("view") == heads.index("ROLE")
        assert token.secret not in first

        for _ in range(2):
            revoked = await operator(f"token revoke {token.token_id}")
            told = f"coordinator: join token {token.token_id} is revoked"
            assert revoked == Done(0, [told], [])
        listed = await operator("token list")
        assert listed.out[1].split()[4:] == ["-", "revoked", "-"]


_BY = ["CREATED", "BY"]


async def test_what_the_coordinator_does_not_take_is_named_as_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path, policy=Policy(tokens_max=0)) as client:
        operator = Operator(client.port, capsys)
        for line, code, problem, hint in (
            ("token revoke nope", 2, "there is no token 'nope'", "token list"),
            ("token create --role view --run-id r", 2, "--run-id: 'r' is given, allowed is", ""),
            ("token create --role join --run-id a#b", 2, "--run-id: 'a#b' is given", ""),
            ("token create --role join", 1, "limit tokens_max is reached: 0", "token list"),
            (f"stop nope --reason {'x' * 300}", 2, "--reason", ""),
            ("authority show", 2, "started with --insecure", ""),
        ):
            done = await operator(line)
            assert (done.code, done.out) == (code, [])
            assert done.err[0].startswith("coordinator: error: ")
            assert problem in done.err[0]
            assert len(done.err) == 1 + bool(hint)
            assert hint in done.err[-1]


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.Unauthenticated("its token t1 was revoked"), 2),
        (errors.Forbidden("t1", "this needs the role admin"), 2),
        (errors.UnknownToken("t1"), 2),
        (errors.NoOwnAuthority(), 2),
        (errors.Unavailable("it is stopping"), 3),
        (errors.LimitReached("event_queue_max", 3), 1),
        (errors.CoordinatorError("a bug"), 1),
    ],
)
def test_each_refusal_is_a_sentence_and_an_exit_code(
    error: errors.CoordinatorError, exit_code: int
) -> None:
    with answering(error) as address:
        asked = request("token list", coordinator=address, insecure=True)
        with pytest.raises(errors.CallFailed) as failed:
            perform(asked)
    assert failed.value.exit_code == exit_code
    assert str(error) in str(failed.value)


@pytest.mark.parametrize(
    ("verb", "name", "advice"),
    [
        ("authority rotate", "authorities_max", "coordinator authority retire"),
        ("token create", "tokens_max", "coordinator token list"),
    ],
)
def test_where_a_limit_is_reached_the_hint_is_how_to_make_room(
    verb: str, name: str, advice: str
) -> None:
    reached = pytest.raises(errors.CallFailed, match=f"{name} is reached: 8")
    with answering(errors.LimitReached(name, 8)) as address, reached as failed:
        perform(request(verb, coordinator=address, insecure=True))
    assert (failed.value.exit_code, advice in failed.value.hint) == (1, True)


@pytest.mark.parametrize(
    ("access", "named"),
    [
        ({"token_file": "/nowhere/token"}, "/nowhere/token"),
        ({"token_file": "/nowhere/token", "insecure": True}, "--insecure"),
        ({"tls_cert": "/nowhere/cert"}, "--tls-key"),
    ],
)
def test_settings_of_access_that_cannot_be_are_told_before_a_call(
    access: dict[str, Any], named: str
) -> None:
    asked = request("token list", coordinator="h", **access)
    with pytest.raises(errors.CallFailed) as failed:
        perform(asked)
    assert failed.value.exit_code == 2
    assert named in str(failed.value)


def shown(verb: str, response: Any) -> list[str]:
    with answering(None, response) as address:
        return perform(request(verb, coordinator=address, insecure=True)).splitlines()


def test_authorities_are_shown_as_certificates_and_tokens_name_them() -> None:
    lines = shown("authority show", control_pb2.GetAuthorityResponse(keys=KEYS))
    (_, new, old) = (line.split(maxsplit=2) for line in lines)
    assert len(new[0]) == 16
    assert new[0] != old[0]
    assert [new[1:], old[1:]] == [[KEYS[0], "newest"], [KEYS[1], "until it is retired"]]
    (rotated,) = shown("authority rotate", control_pb2.RotateAuthorityResponse(keys=KEYS))
    assert f"authority {new[0]}; older ones are served until" in rotated
    (retired,) = shown("authority retire", control_pb2.RetireAuthorityResponse(keys=KEYS[:1]))
    assert f"authority {new[0]} are served" in retired


def test_a_key_that_is_none_is_shown_as_it_is() -> None:
    lines = shown("authority show", control_pb2.GetAuthorityResponse(keys=["?\x1b[2J"]))
    assert lines[1].isprintable()


def test_a_token_of_a_later_version_is_listed() -> None:
    token = control_pb2.Token(token_id="t1", time_left=duration(0))
    token.role = 9  # type: ignore[assignment]
    with answering(None, control_pb2.ListTokensResponse(tokens=[token])) as address:
        asked = request("token list", coordinator=address, insecure=True)
        row = perform(asked).splitlines()[1]
    assert row.split() == ["t1", "9", "-", "0s", "-", "expired", "-"]


async def test_a_coordinator_on_its_own_is_its_only_member_and_does_not_step_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with coordinator(tmp_path) as client:
        operator, where = Operator(client.port, capsys), f"127.0.0.1:{client.port}"
        code, (heads, only), err = await operator("members")
        assert (code, heads.split(), err) == (0, ["ADDRESS", "ROLE", "VERSION", "ANSWERS"], [])
        assert only.split() == [where, "leads", VERSION, "yes"]
        listed = await operator("members -o json")
        assert json.loads(listed.out[0]) == {
            "coordinators": [
                {"address": where, "is_leader": True, "is_this": True, "version": VERSION}
            ],
            "term": 1,
            "reason": None,
        }
        code, out, err = await operator("step-down --reason kernel")
        assert (code, out) == (2, [])
        assert err == [
            (
                "coordinator: error: leadership is not handed over: there is no other coordinator; "
                "--journal etcd://... has several"
            )
        ]


@pytest.mark.slow
async def test_members_are_listed_by_any_and_leadership_is_handed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = EtcdModel()
    async with coordinator_of(model, ttl_s=30.0) as first:
        await first.leads()
        async with coordinator_of(model, ttl_s=30.0) as second:
            await second.follows(first)
            await wait_until(lambda: len([*first.membership.members]) == 2, DEADLINE_S)
            operator = Operator(second.port, capsys)
            roles = {line.split()[0]: line.split()[1] for line in (await operator("members")).out}
            assert (roles[first.address], roles[second.address]) == ("leads", "follows")
            # It is found from the one that follows.
            done = await operator("step-down -o json")
            assert json.loads(done.out[-1]) == {"leader": second.address}
            await second.leads()
