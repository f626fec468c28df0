"""Shell. Conversion between values of ``model`` and messages of etcd's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drumbeat.coordinator.errors import JournalUnusable
from drumbeat.coordinator.journal.etcd import model
from drumbeat.text.format import install_command

try:
    from aetcd import rpc
except ImportError as error:
    missing = "the package aetcd is not installed"
    raise JournalUnusable("on etcd", missing, hint=install_command("etcd")) from error

__all__ = ["changed", "outcome", "pairs", "rpc", "txn_request"]


def txn_request(transaction: model.Transaction) -> Any:
    """Return the message of a transaction."""
    return rpc.TxnRequest(
        compare=[_compare(condition) for condition in transaction.conditions],
        success=[_operation(operation) for operation in transaction.then],
        failure=[_operation(operation) for operation in transaction.otherwise],
    )


def outcome(answer: Any) -> model.TransactionOutcome:
    """Return the outcome in an answer to a transaction."""
    gets = (
        response
        for response in answer.responses
        if response.WhichOneof("response") == "response_range"
    )
    return model.TransactionOutcome(
        is_done=answer.succeeded,
        revision=answer.header.revision,
        reads=tuple(pairs(response.response_range.kvs) for response in gets),
    )


def changed(revision: int, events: Iterable[Any]) -> model.Changed:
    """Return the latest change of each key."""
    latest = {event.kv.key: event for event in events}
    put = (event.kv for event in latest.values() if event.type == rpc.Event.PUT)
    deleted = (event.kv.key for event in latest.values() if event.type == rpc.Event.DELETE)
    return model.Changed(revision=revision, put=pairs(put), deleted=tuple(map(_text, deleted)))


def pairs(answered: Iterable[Any]) -> tuple[model.KeyValue, ...]:
    """Return messages of pairs as values."""
    return tuple(
        model.KeyValue(
            key=_text(pair.key),
            value=pair.value,
            create_revision=pair.create_revision,
            mod_revision=pair.mod_revision,
            lease_id=pair.lease,
        )
        for pair in answered
    )


def _text(key: bytes) -> str:
    """Return a key as text, even if another program made it."""
    return key.decode(errors="backslashreplace")


def _compare(condition: model.IsCreated | model.IsModified) -> Any:
    where = {"key": condition.key.encode(), "result": rpc.Compare.EQUAL}
    if isinstance(condition, model.IsCreated):
        target = rpc.Compare.CREATE
        return rpc.Compare(**where, target=target, create_revision=condition.revision)
    return rpc.Compare(**where, target=rpc.Compare.MOD, mod_revision=condition.revision)


def _operation(operation: model.Put | model.Delete | model.Get) -> Any:
    key = operation.key.encode()
    match operation:
        case model.Put():
            put = rpc.PutRequest(key=key, value=operation.value, lease=operation.lease_id)
            return rpc.RequestOp(request_put=put)
        case model.Delete():
            delete = rpc.DeleteRangeRequest(key=key, range_end=operation.end.encode())
            return rpc.RequestOp(request_delete_range=delete)
        case model.Get():
            get = rpc.RangeRequest(key=key, range_end=operation.end.encode())
            return rpc.RequestOp(request_range=get)
