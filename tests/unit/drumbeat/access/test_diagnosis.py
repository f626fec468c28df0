"""What is read from certificates of strangers, and when a client looks at them at all."""

import ssl

import pytest

from drumbeat.access import diagnosis
from tests.support.certificates import CertificateAuthority

CA = CertificateAuthority()
DER = ssl.PEM_cert_to_DER_cert(CA.issue("a.b", "spiffe://c/d").certificate.decode())
NAME = CA.certificate.subject.rfc4514_string()


def test_the_names_in_a_certificate_are_shown_and_its_subject_if_it_has_none() -> None:
    found = diagnosis._read(DER)
    assert found == ("", NAME, "a.b, spiffe://c/d")
    assert diagnosis._read(CA.pem).names == NAME


def test_a_strangers_name_is_one_bounded_line() -> None:
    stranger = CA.issue("spiffe://x/\x1b[2J\n" + 1000 * "y")
    names = diagnosis._read(stranger.certificate).names
    assert names.isprintable()
    assert len(names) == 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0",
        b"rubbish",
        DER[:-1],
        DER.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"),
    ],
    ids=["empty", "header", "rubbish", "cut", "unknown version"],
)
def test_a_certificate_that_cannot_be_read_is_no_surprise(content: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        diagnosis._read(content)


def test_clients_that_come_back_ask_only_about_what_they_have_seen_themselves() -> None:
    seen = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL"
    ended = "last error: UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed"
    for details, at_first, later in (
        (seen, True, True),
        (ended, True, False),
        ("Failed to connect to remote host: Connection refused", False, False),
        ("Handshake read failed (Endpoint closing)", False, False),
    ):
        assert diagnosis.is_worth_asking(details, is_known=False) is at_first
        assert diagnosis.is_worth_asking(details, is_known=True) is later
