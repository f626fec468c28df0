"""No message of the protocol can carry a secret that was not meant to be in it."""

import re
from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from drumbeat.v1 import common_pb2, control_pb2, failure_pb2, inprocess_pb2, query_pb2, session_pb2

FILES = (common_pb2, control_pb2, failure_pb2, inprocess_pb2, query_pb2, session_pb2)
TELLING = re.compile("token|secret|key|passw|credential|auth|cert|private|bearer", re.IGNORECASE)

HOLDS_NONE = {
    # Where a page of a list goes on.
    "ListRunsRequest.page_token",
    "ListRunsResponse.next_page_token",
    "ListAgentsRequest.page_token",
    "ListAgentsResponse.next_page_token",
    # Ids of tokens, and what is known of one beside its text.
    "CreateTokenRequest.run_id",
    "RevokeTokenRequest.token_id",
    "Token.token_id",
    "Token.run_id",
    "Token.created_by",
    # Public keys.
    "Authorities.keys",
    "GetAuthorityResponse.keys",
    "RotateAuthorityResponse.keys",
    "RetireAuthorityResponse.keys",
}
SECRETS = {
    # Goes from an agent to the coordinator, which keeps and tells only what it is the hash of.
    "Hello.incarnation_key",
    "GetReportRequest.incarnation_key",
    "ReportFailuresRequest.incarnation_key",
    "ReportStacksRequest.incarnation_key",
    "ReportLogsRequest.incarnation_key",
    "JoinQuorumRequest.incarnation_key",
    # Goes to an administrator once, in answer to the request that makes the token.
    "CreateTokenResponse.text",
}
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def fields_of(messages: Iterable[Descriptor]) -> Iterator[tuple[str, FieldDescriptor]]:
    for message in messages:
        name = message.full_name.removeprefix("drumbeat.v1.")
        yield from ((f"{name}.{field.name}", field) for field in message.fields)
        yield from fields_of(message.nested_types)


def test_a_field_that_may_hold_a_secret_is_looked_at_before_it_is_added() -> None:
    messages = [each for file in FILES for each in file.DESCRIPTOR.message_types_by_name.values()]
    telling = {
        name
        for name, field in fields_of(messages)
        if TELLING.search(name) and field.type in _TEXTS and not name.endswith("Entry.key")
    }
    assert telling == HOLDS_NONE | SECRETS


def test_every_file_of_the_protocol_was_looked_at() -> None:
    package = {file.DESCRIPTOR.name for file in FILES}
    needed = {each.name for file in FILES for each in file.DESCRIPTOR.dependencies}
    assert {name for name in needed if name.startswith("drumbeat/v1/")} <= package
    assert len(package) == 6
