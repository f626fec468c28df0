"""A client and a server that do not get along over TLS: it fails, and one sentence says why."""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest

from drumbeat.access import diagnosis, local
from drumbeat.access.certificates import SERVER_NAME
from drumbeat.access.client import Credentials, credentials
from drumbeat.access.problem import AccessProblem
from drumbeat.access.settings import AccessSettings
from drumbeat.coordinator.access.calls import call_channel
from drumbeat.coordinator.errors import CallFailed
from tests.support.certificates import DAY, CertificateAuthority, Pair

grpc.aio.init_grpc_aio()

CA, OTHER_CA = CertificateAuthority(), CertificateAuthority()
TOKEN = CA.token()


@dataclass(frozen=True, kw_only=True)
class Access(AccessSettings):
    """The settings alone."""


@asynccontextmanager
async def serving(
    pair: Pair | None, client_ca: bytes | None = None, status: grpc.StatusCode | None = None
) -> AsyncIterator[str]:
    """Serve with a certificate, or in plaintext; calls are answered with their metadata."""
    server = grpc.aio.server()

    async def echo(_: bytes, context: Any) -> bytes:
        if status is not None:
            await context.abort(status, "because of this")
        return repr(sorted(context.invocation_metadata())).encode()

    handler: Any = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("e", {"E": handler}),))
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        shown = [(pair.key, pair.certificate)]
        secret = grpc.ssl_server_credentials(shown, client_ca, client_ca is not None)
        port = server.add_secure_port("127.0.0.1:0", secret)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Listen, and do something with every connection, which ends with the context."""
    opened: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            opened.append(connection)
            try:
                answer(connection)
            except OSError:
                continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in opened:
                connection.close()


async def call(coordinator: str, used: Credentials) -> bytes:
    options = [("grpc.use_local_subchannel_pool", 1), *used.options]
    if (secret := used.channel) is None:
        channel = grpc.aio.insecure_channel(coordinator, options)
    else:
        channel = grpc.aio.secure_channel(coordinator, secret, options)
    async with channel:
        ask: Any = channel.unary_unary("/e/E")
        return bytes(await ask(b"", metadata=used.metadata, timeout=10))


async def asked(coordinator: str, **access: Any) -> AccessProblem | None:
    """What is said of a call that failed, if that is worth asking."""
    used = credentials(Access(**access), coordinator)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(coordinator, used)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    details = str(caught.value.details())
    assert diagnosis.is_worth_asking(details, is_known=False), details
    found = await asyncio.to_thread(diagnosis.explain, coordinator, used)
    assert found is None or TOKEN.secret not in found.text + found.hint
    return found


def files(folder: Path, pair: Pair | None = None, authority: CertificateAuthority = CA) -> Any:
    """The settings of one's own PKI."""
    given = {"tls_ca": authority.write(folder)}
    if pair is not None:
        given["tls_cert"], given["tls_key"] = pair.write(folder)
    return given


def said(problem: AccessProblem | None) -> tuple[str, bool]:
    assert problem is not None
    return problem.text, problem.is_final


async def test_the_right_token_opens_a_connection_and_is_in_each_call() -> None:
    async with serving(CA.issue()) as coordinator:
        used = credentials(Access(token=TOKEN), coordinator)
        assert f"'Bearer {TOKEN.text()}'".encode() in await call(coordinator, used)
        assert await asyncio.to_thread(diagnosis.explain, coordinator, used) is None


async def test_an_authority_that_the_coordinator_told_is_trusted() -> None:
    async with serving(OTHER_CA.issue()) as coordinator:
        used = credentials(Access(token=TOKEN), coordinator, authorities=[OTHER_CA.key_text])
        assert await call(coordinator, used)


@pytest.mark.parametrize("shown", [None, OTHER_CA])
async def test_a_man_in_the_middle_is_no_coordinator(shown: CertificateAuthority | None) -> None:
    """Neither with an authority of his own, nor with one that has the name of ours."""
    authority = shown or CertificateAuthority(like=CA)
    async with serving(authority.issue(chain=authority.pem)) as coordinator:
        text, is_final = said(await asked(coordinator, token=TOKEN))
    assert text.startswith(f"what answers at {coordinator} is not the coordinator that the token ")
    assert is_final


async def test_a_certificate_of_the_right_authority_has_to_have_the_right_name() -> None:
    async with serving(CA.issue("other.drumbeat", "10.0.0.1")) as coordinator:
        text, is_final = said(await asked(coordinator, token=TOKEN))
    assert text == (
        f"the certificate of the coordinator at {coordinator} is not for {SERVER_NAME}, but for "
        "other.drumbeat, 10.0.0.1"
    )
    assert is_final


async def test_ones_own_pki_is_checked_for_the_name_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a coordinator that was killed there may be a token for the very port.
    monkeypatch.setattr(local, "_places", lambda: [(tmp_path, "local")])
    async with serving(CA.issue("head", "127.0.0.1")) as coordinator:
        used = credentials(Access(**files(tmp_path)), coordinator)
        assert b"authorization" not in await call(coordinator, used)
        text, _ = said(await asked(coordinator, **files(tmp_path), tls_server_name="tail"))
        assert text.endswith("is not for tail, but for head, 127.0.0.1")
        given = files(tmp_path, authority=OTHER_CA)
        text, is_final = said(await asked(coordinator, **given))
    assert "is of an authority that --tls-ca does not have: CN=drumbeat CA " in text
    assert is_final


@pytest.mark.parametrize(
    ("after", "until", "what"),
    [(-3 * DAY, -2 * DAY, "has expired at 20"), (2 * DAY, 3 * DAY, "is valid from 20")],
)
async def test_a_certificate_out_of_its_time_may_be_a_wrong_clock(
    after: Any, until: Any, what: str
) -> None:
    async with serving(CA.issue(after=after, until=until)) as coordinator:
        problem = await asked(coordinator, token=TOKEN)
    text, is_final = said(problem)
    assert text.startswith(f"the certificate of the coordinator at {coordinator} {what}")
    assert ", and this machine's clock says 20" in text
    assert problem is not None
    assert "a wrong clock on this machine looks the same" in problem.hint
    assert not is_final


async def test_a_coordinator_without_tls_is_told_from_other_servers() -> None:
    async with serving(None) as coordinator:
        text, is_final = said(await asked(coordinator, token=TOKEN))
        assert await call(coordinator, credentials(Access(insecure=True), coordinator))
    assert text == f"the coordinator at {coordinator} does not speak TLS: it runs with --insecure"
    assert is_final


@pytest.mark.parametrize("client_ca", [None, CA.pem])
async def test_plaintext_to_a_coordinator_with_tls_is_told(client_ca: bytes | None) -> None:
    async with serving(CA.issue(), client_ca) as coordinator:
        text, is_final = said(await asked(coordinator, insecure=True))
    assert text.startswith(f"the coordinator at {coordinator} speaks TLS, and was ")
    assert is_final


async def test_a_client_without_the_certificate_that_is_asked_for_is_told() -> None:
    async with serving(CA.issue(), CA.pem) as coordinator:
        text, is_final = said(await asked(coordinator, token=TOKEN))
    assert text == f"the coordinator at {coordinator} lets only clients with a certificate in"
    assert is_final


@pytest.mark.parametrize(
    ("pair", "reason", "is_final"),
    [
        (OTHER_CA.issue("me"), "", True),
        (CA.issue("me", after=-3 * DAY, until=-2 * DAY), ": it has expired at 20", False),
        (CA.issue("me", after=2 * DAY, until=3 * DAY), ": it is valid from 20", False),
    ],
    ids=["foreign", "expired", "not yet valid"],
)
async def test_a_client_whose_certificate_is_not_accepted_is_told(
    tmp_path: Path, pair: Pair, reason: str, is_final: bool
) -> None:
    pair.write(tmp_path)
    async with serving(CA.issue(), CA.pem) as coordinator:
        given = {"tls_server_name": SERVER_NAME, **files(tmp_path, pair)}
        text, found_final = said(await asked(coordinator, **given))
    start = f"the coordinator at {coordinator} does not accept the certificate of --tls-cert"
    assert text.startswith(start + reason)
    assert found_final is is_final


async def test_a_client_with_the_right_certificate_is_let_in(tmp_path: Path) -> None:
    async with serving(CA.issue(), CA.pem) as coordinator:
        given = {"tls_server_name": SERVER_NAME, **files(tmp_path, CA.issue("me"))}
        used = credentials(Access(**given), coordinator)
        assert await call(coordinator, used)
        assert await asyncio.to_thread(diagnosis.explain, coordinator, used) is None


async def test_nothing_is_final_for_the_coordinators_own_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator may just be restarting with other settings."""
    monkeypatch.setattr(local, "_places", lambda: [(tmp_path, "local")])
    async with serving(OTHER_CA.issue()) as coordinator:
        port = int(coordinator.rpartition(":")[2])
        for text in (local.INSECURE, TOKEN.text()):
            local.publish(port, text)
            assert not said(await asked(coordinator))[1]
        # That of a coordinator elsewhere is no use, now or later.
        monkeypatch.setattr(diagnosis, "is_this_host", lambda _where: False)
        text, is_final = said(await asked(coordinator))
        assert text.startswith(f"what answers at {coordinator} is not this user's on this host: ")
        assert is_final
        local.publish(port, OTHER_CA.token().text())
        assert await call(coordinator, credentials(Access(), coordinator))


def fetched(coordinator: str, **access: Any) -> bytes:
    """What a blocking call gets, as an operator's command makes one."""
    with call_channel(Access(**access), coordinator, use_proxy=False) as (channel, metadata):
        ask: Any = channel.unary_unary("/e/E")
        return bytes(ask(b"", metadata=metadata, timeout=10))


async def test_an_operators_command_is_let_in_or_told_why_not(tmp_path: Path) -> None:
    async with serving(CA.issue()) as coordinator:
        assert b"Bearer" in await asyncio.to_thread(fetched, coordinator, token=TOKEN)
        for given, exit_code, text in (
            ({"token": OTHER_CA.token()}, 2, "is not the coordinator that the token is of"),
            ({"insecure": True}, 2, "speaks TLS, and was spoken to in plaintext"),
            ({"token_file": str(tmp_path / "none")}, 2, "none does not exist"),
        ):
            with pytest.raises(CallFailed, match=text) as caught:
                await asyncio.to_thread(fetched, coordinator, **given)
            assert (caught.value.exit_code, bool(caught.value.hint)) == (exit_code, True)
    with pytest.raises(CallFailed, match=f"the coordinator at {coordinator} cannot be reach") as at:
        await asyncio.to_thread(fetched, coordinator, token=TOKEN)
    assert at.value.exit_code == 3


@pytest.mark.parametrize(
    ("status", "is_local", "exit_code"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, False, 2),
        (grpc.StatusCode.UNAUTHENTICATED, True, 3),
        (grpc.StatusCode.PERMISSION_DENIED, False, 2),
    ],
)
async def test_a_refused_command_shows_what_the_coordinator_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: grpc.StatusCode,
    is_local: bool,
    exit_code: int,
) -> None:
    monkeypatch.setattr(local, "_places", lambda: [(tmp_path, "local")])
    async with serving(CA.issue(), status=status) as coordinator:
        local.publish(int(coordinator.rpartition(":")[2]), TOKEN.text())
        given = {} if is_local else {"token": TOKEN}
        with pytest.raises(CallFailed, match="because of this") as caught:
            await asyncio.to_thread(fetched, coordinator, **given)
    assert caught.value.exit_code == exit_code


async def test_other_errors_are_those_of_the_command() -> None:
    async with serving(CA.issue(), status=grpc.StatusCode.NOT_FOUND) as coordinator:
        with pytest.raises(grpc.RpcError):
            await asyncio.to_thread(fetched, coordinator, token=TOKEN)


HTTP1 = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        lambda connection: connection.sendall(os.urandom(16) * 1000),
        lambda connection: (connection.recv(1), connection.sendall(HTTP1)),
        lambda connection: connection.sendall(b"\x15\x03\x01" + HTTP1),
    ],
    ids=["random", "http1", "broken alert"],
)
async def test_what_is_no_coordinator_is_said_to_be_none(
    answer: Callable[[socket.socket], object],
) -> None:
    with answering(answer) as coordinator:
        used = credentials(Access(token=TOKEN), coordinator)
        text, is_final = said(await asyncio.to_thread(diagnosis.explain, coordinator, used))
    assert text.startswith(f"what answers at {coordinator} is no coordinator: ")
    assert not is_final


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
async def test_a_server_with_tls_and_without_http2_is_no_coordinator(
    tmp_path: Path, protocols: list[str]
) -> None:
    """As a proxy that ends TLS, and knows no more than HTTP/1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*CA.issue().write(tmp_path))
    context.set_alpn_protocols(protocols)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection.dup(), server_side=True) as secured:
            secured.recv(1)

    with answering(serve) as coordinator:
        text, is_final = said(await asked(coordinator, token=TOKEN))
    assert text.endswith(" is no coordinator: it does not speak HTTP/2")
    assert not is_final


@pytest.mark.parametrize("access", [{"token": TOKEN}, {"insecure": True}], ids=["tls", "plaintext"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda connection: connection.close(),
        lambda connection: (connection.recv(1), connection.close()),
        lambda connection: connection.shutdown(socket.SHUT_WR),
    ],
    ids=["closes", "resets", "says nothing more"],
)
async def test_of_what_ends_connections_nothing_is_said(
    access: Any, answer: Callable[[socket.socket], object]
) -> None:
    with answering(answer) as coordinator:
        used = credentials(Access(**access), coordinator)
        assert await asyncio.to_thread(diagnosis.explain, coordinator, used) is None


async def test_nothing_is_said_where_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        coordinator = f"127.0.0.1:{listener.getsockname()[1]}"
    used = credentials(Access(token=TOKEN), coordinator)
    assert diagnosis.explain(coordinator, used) is None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(coordinator, used)
    assert not diagnosis.is_worth_asking(str(caught.value.details()), is_known=False)


@pytest.mark.parametrize("access", [{"token": TOKEN}, {"insecure": True}], ids=["tls", "plaintext"])
async def test_silence_and_trickling_are_not_waited_for_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, access: Any
) -> None:
    monkeypatch.setattr(diagnosis, "TIME_MAX_S", 0.1)
    is_over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        for byte in b"\x16\x03\x03\x40\x00\x02\x00\x3f\xf0" + bytes(100):
            connection.sendall(bytes([byte]))
            if is_over.wait(0.02):
                return

    for answer in (lambda _: None, trickle):
        with answering(answer) as coordinator:
            used = credentials(Access(**access), coordinator)
            begun = monotonic()
            assert await asyncio.to_thread(diagnosis.explain, coordinator, used) is None
            assert monotonic() - begun < 1.0
            is_over.set()
