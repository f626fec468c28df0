"""What a client trusts and shows, from its settings, and the sentence where that is not enough."""

import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from drumbeat.access import local
from drumbeat.access.certificates import SERVER_NAME, key_text
from drumbeat.access.client import Credentials, credentials
from drumbeat.access.problem import AccessProblem
from drumbeat.access.settings import AccessSettings
from drumbeat.access.token import Token
from tests.support.certificates import DAY, CertificateAuthority

ELSEWHERE = "192.0.2.7:29400"  # of no host: for documentation
CA, OTHER_CA = CertificateAuthority(), CertificateAuthority()
TOKEN = CA.token()


@dataclass(frozen=True, kw_only=True)
class Access(AccessSettings):
    """The settings alone."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for files of local coordinators that has none."""
    monkeypatch.setattr(local, "_places", lambda: [(tmp_path, "local")])
    return tmp_path


def made(coordinator: str = ELSEWHERE, *, authorities: Any = (), **given: Any) -> Credentials:
    return credentials(Access(**given), coordinator, authorities=authorities)


def refusal(coordinator: str = ELSEWHERE, **given: Any) -> AccessProblem:
    with pytest.raises(AccessProblem) as caught:
        made(coordinator, **given)
    assert TOKEN.secret not in f"{caught.value.text} {caught.value.hint}"
    return caught.value


def trusted(found: Credentials) -> list[str]:
    """The keys of the authorities that are trusted."""
    assert found.tls is not None
    anchors = x509.load_pem_x509_certificates(found.tls.authorities.encode())
    return [key_text(each.public_key()) for each in anchors]  # type: ignore[arg-type]


def token_file(folder: Path, text: str) -> str:
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "token", [TOKEN, TOKEN.text(), f" {TOKEN.text()}\n"], ids=["token", "text", "spaces"]
)
def test_a_token_says_whom_to_trust_and_travels_with_each_call(token: Token | str) -> None:
    found = made(token=token)
    assert trusted(found) == [CA.key_text]
    assert found.metadata == (("authorization", f"Bearer {TOKEN.text()}"),)
    assert found.options == [("grpc.ssl_target_name_override", SERVER_NAME)]
    assert (found.token, found.is_local) == (TOKEN, False)
    assert found.channel is not None


def test_a_tokens_file_is_read_again_each_time(tmp_path: Path) -> None:
    path = token_file(tmp_path, f"{TOKEN.text()}\n")
    assert made(token_file=path).token == TOKEN
    token_file(tmp_path, OTHER_CA.token().text())
    assert made(token_file=path).token == OTHER_CA.token()


def test_authorities_that_the_coordinator_told_are_trusted_too() -> None:
    told = [OTHER_CA.key_text, CA.key_text, "of a later version", OTHER_CA.key_text]
    assert trusted(made(token=TOKEN, authorities=told)) == [CA.key_text, OTHER_CA.key_text]


def test_credentials_show_no_secret(tmp_path: Path) -> None:
    certificate, key = CA.issue("me").write(tmp_path)
    found = made(token=TOKEN, tls_ca=CA.write(tmp_path), tls_cert=certificate, tls_key=key)
    assert TOKEN.secret not in repr(found)
    assert "PRIVATE" not in repr(found)
    assert "PRIVATE" in found.tls.key if found.tls else False


def test_insecure_is_plaintext_without_a_token() -> None:
    found = made(insecure=True)
    assert (found.channel, found.options, found.metadata, found.is_local) == (None, [], (), False)


@pytest.mark.parametrize(
    "given", [{"token": TOKEN}, {"token_file": "/none"}, {"tls_ca": "/none"}], ids=str
)
def test_nothing_secret_goes_with_insecure(given: dict[str, Any]) -> None:
    problem = refusal(insecure=True, **given)
    assert problem.text.startswith("--insecure: True is given, allowed is plaintext alone")
    assert problem.is_final


def test_a_token_without_an_authority_needs_one_in_a_file(tmp_path: Path) -> None:
    token = Token(TOKEN.role, TOKEN.token_id, TOKEN.secret)
    assert refusal(token=token).text.startswith("--tls-ca is needed: ")
    found = made(token=token, tls_ca=CA.write(tmp_path))
    assert trusted(found) == [CA.key_text]
    assert found.metadata == (("authorization", f"Bearer {token.text()}"),)


def test_a_token_whose_authority_is_no_key_is_refused() -> None:
    token = Token(TOKEN.role, TOKEN.token_id, TOKEN.secret, "A" * 44)
    assert "its authority is no public key" in refusal(token=token).text


@pytest.mark.parametrize(
    "text",
    ["rubbish", TOKEN.text()[:-9], TOKEN.text().replace("s", "t", 1)],
    ids=["rubbish", "short", "changed"],
)
def test_a_text_that_is_no_token_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    path = token_file(tmp_path, text)
    in_file, given = refusal(token_file=path), refusal(token=text)
    assert in_file.text == f"{path}: {given.text}"
    assert text not in in_file.text + in_file.hint
    assert given.is_final


@pytest.mark.parametrize(
    ("address", "given", "name"),
    [
        ("head:29400", {}, "head"),
        ("[2001:db8::1]:1", {}, "2001:db8::1"),
        ("head:29400", {"tls_server_name": "other"}, "other"),
    ],
)
def test_a_file_of_authorities_is_trusted_for_the_name_of_the_host(
    tmp_path: Path, address: str, given: dict[str, str], name: str
) -> None:
    found = made(address, token=OTHER_CA.token(), tls_ca=CA.write(tmp_path), **given)
    assert trusted(found) == [CA.key_text]
    assert found.options == [("grpc.ssl_target_name_override", name)]


def test_a_certificate_is_shown_with_a_tokens_authority_or_that_of_a_file(tmp_path: Path) -> None:
    certificate, key = CA.issue("me").write(tmp_path)
    pair = {"tls_cert": certificate, "tls_key": key}
    with_token = made(token=TOKEN, **pair)
    assert trusted(with_token) == [CA.key_text]
    assert with_token.options == [("grpc.ssl_target_name_override", SERVER_NAME)]
    alone = made(tls_ca=OTHER_CA.write(tmp_path), **pair)
    assert trusted(alone) == [OTHER_CA.key_text]
    for found in (with_token, alone):
        assert found.tls is not None
        assert "PRIVATE KEY" in found.tls.key
        assert "CERTIFICATE" in found.tls.certificate
        assert found.channel is not None
    assert "--tls-ca is needed beside --tls-cert" in refusal(**pair).text


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"tls_cert": "/c"}, "--tls-key"),
        ({"tls_key": "/k"}, "--tls-cert"),
        ({"tls_server_name": "n"}, "--tls-server-name"),
    ],
)
def test_what_needs_another_setting_is_refused_without_it(
    given: dict[str, str], option: str
) -> None:
    assert refusal(**given).text.startswith(f"{option}: ")


def test_broken_files_are_named(tmp_path: Path) -> None:
    certificate, key = CA.issue("me").write(tmp_path)
    _, other_key = CA.issue("me").write(tmp_path, "other")
    ca, rubbish = CA.write(tmp_path), token_file(tmp_path, "rubbish")
    for given, text in (
        ((rubbish, certificate, key), f"the file of authorities {rubbish} has no certificate"),
        ((ca, rubbish, key), f"the certificate {rubbish} is none in PEM"),
        ((ca, certificate, rubbish), f"the key {rubbish} is none in PEM"),
        ((ca, certificate, other_key), f"the key {other_key} is not that of the certificate"),
        ((ca, certificate, certificate), f"the key {certificate} is open to other users"),
    ):
        problem = refusal(**dict(zip(("tls_ca", "tls_cert", "tls_key"), given, strict=True)))
        assert problem.text.startswith(text)
        assert "PRIVATE" not in problem.text


def test_a_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    certificate, key = CA.issue("me").write(tmp_path)
    loaded = serialization.load_pem_private_key((tmp_path / "tls.key").read_bytes(), None)
    (tmp_path / "tls.key").write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    problem = refusal(tls_ca=CA.write(tmp_path), tls_cert=certificate, tls_key=key)
    assert problem.text == f"the key {key} is encrypted"


def test_an_expired_certificate_is_not_judged_here(tmp_path: Path) -> None:
    """The coordinator's clock decides."""
    certificate, key = CA.issue("me", until=-DAY / 2).write(tmp_path)
    assert made(tls_ca=CA.write(tmp_path), tls_cert=certificate, tls_key=key).tls is not None


def test_the_coordinators_user_on_its_host_needs_nothing() -> None:
    local.publish(29400, TOKEN.text())
    for coordinator in ("127.0.0.1:29400", "localhost", ELSEWHERE):
        # Elsewhere there is none that the token is of; the handshake says so.
        found = made(coordinator)
        assert (found.token, found.is_local, trusted(found)) == (TOKEN, True, [CA.key_text])
    local.publish(29400, OTHER_CA.token().text())
    assert made("localhost").token == OTHER_CA.token()


def test_what_is_given_counts_before_what_the_coordinator_left(tmp_path: Path) -> None:
    local.publish(29400, OTHER_CA.token().text())
    certificate, key = CA.issue("me").write(tmp_path)
    pair = {"tls_ca": CA.write(tmp_path), "tls_cert": certificate, "tls_key": key}
    assert made("localhost", **pair).token is None
    assert made("localhost", token=TOKEN).token == TOKEN
    assert made("localhost", insecure=True).token is None


def test_an_operators_certificate_lets_the_coordinators_user_in_on_its_host_only(
    tmp_path: Path,
) -> None:
    """It is how the first token of such a coordinator can be created."""
    ca, token = CA.write(tmp_path), Token(TOKEN.role, "local000", TOKEN.secret)
    local.publish(29400, token.text())
    found = made("localhost", tls_ca=ca)
    assert (found.token, found.is_local, trusted(found)) == (token, True, [CA.key_text])
    assert made(ELSEWHERE, tls_ca=ca).token is None
    assert refusal("localhost").text.startswith("--tls-ca is needed: ")
    local.publish(29400, local.INSECURE)
    assert made("localhost", tls_ca=ca).token is None


def test_an_insecure_coordinator_lets_its_host_speak_plaintext_and_with_no_other_one() -> None:
    local.publish(29400, local.INSECURE)
    found = made("localhost:29400")
    assert (found.tls, found.token, found.is_local) == (None, None, True)
    problem = refusal(ELSEWHERE)
    assert problem.text.startswith("a token is needed: the coordinator at 192.0.2.7:29400 is on")
    assert problem.is_final


def test_without_anything_a_coordinator_elsewhere_needs_a_token() -> None:
    problem = refusal(ELSEWHERE)
    assert problem.text.startswith("a token is needed: ")
    assert "coordinator token create --role join" in problem.hint
    assert "--token-file" in problem.hint
    assert problem.is_final


def test_a_coordinator_of_this_host_may_not_have_started_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        about_to_publish = refusal(address)
        monkeypatch.setattr(local, "is_of_another_user", lambda _port: True)
        anothers = refusal(address)
    assert "no coordinator of this user is running on this host at port " in about_to_publish.text
    assert not about_to_publish.is_final
    assert anothers.text == f"a token is needed: the coordinator at {address} is another user's"
    assert anothers.is_final


def test_an_outage_of_a_coordinator_of_this_host_is_told_as_such() -> None:
    # A port that was free a moment ago may be that of another test's coordinator now.
    problem = refusal("127.0.0.1:1")
    assert problem.text.startswith("no coordinator is running at 127.0.0.1:1: ")
    assert "token" not in problem.text + problem.hint
    assert not problem.is_final


def test_neither_grpc_nor_cryptography_is_loaded_before_it_is_needed() -> None:
    loads = "import sys, drumbeat.access.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "drumbeat" in loaded
    assert not loaded & {"grpc", "cryptography", "ssl", "google"}
