"""Shell. Calls the method of a verb, and says what came of it, as text and as a document."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

import grpc

from drumbeat.command.console import write_text
from drumbeat.command.table import table
from drumbeat.coordinator.api.documents import Document, document_of
from drumbeat.coordinator.api.operations import Scope
from drumbeat.coordinator.command.client import (
    COMPARED_MAX,
    Client,
    ask,
    calls_of,
    failure_of,
    known,
)
from drumbeat.coordinator.command.columns import Columns, cells, rounded
from drumbeat.coordinator.command.request import Request
from drumbeat.text.format import are, listed, printable

_OUTCOME_OF_RUN = "coordinator: run {run_id}: {outcome}"


class Reply(NamedTuple):
    """What came of a request, to be read and for programs."""

    text: str
    document: Document
    note: str = ""  # for the user, on standard error


def perform(asked: Request) -> str:
    """Ask for one thing; return what to print. Raises ``CallFailed``."""
    values = {**asked.values, "request_id": uuid.uuid4().hex}

    def work(client: Client) -> Reply:
        response = client.call(asked.operation.method, timeout_s=asked.verb.timeout_s, **values)
        show = _SHOWN.get(asked.name)
        return _answer(asked, response) if show is None else show(asked, response, client)

    try:
        answer = ask(calls_of(asked), work, is_repeatable=False)
    except grpc.RpcError as error:
        raise failure_of(asked, error) from error
    if answer.note:
        write_text(f"coordinator: {printable(answer.note)}\n")
    return answer.text if asked.output == "text" else json.dumps(answer.document)


def _answer(asked: Request, response: Any) -> Reply:
    """Return the response as a document, with whom it is about, and the text of the verb of it."""
    operation = asked.operation
    is_named = operation.scope is Scope.RUN and operation.service == "Control"
    subject = {key: asked.values[key] for key in ("name", "run_id") if key in asked.values}
    document = {**(subject if is_named else {}), **document_of(response)}
    text = asked.verb.text
    if not text:
        text = "coordinator: {name}: {outcome}" if "name" in document else _OUTCOME_OF_RUN
    return Reply(text.format_map(document), document)


def _token(asked: Request, token: Document) -> Reply:
    return Reply(asked.verb.text.format_map(token), token)


_TOKENS: Columns = {
    "ID": "token_id",
    "ROLE": "role",
    "RUN": "run_id",
    "AGE": rounded("age_s"),
    "LEFT": lambda token: rounded("time_left_s")(token) if token["state"] == "valid" else "",
    "STATE": "state",
    "CREATED BY": "created_by",
}
_DRAINS: Columns = {
    "NAME": "name",
    "RUN": "run_id",
    "AGE": rounded("age_s"),
    "LEFT": rounded("time_left_s"),
    "BY": "caller",
    "REASON": "reason",
}
_MEMBERS: Columns = {
    "ADDRESS": "address",
    "ROLE": lambda member: "leads" if member["is_leader"] else "follows",
    "VERSION": "version",
    "ANSWERS": lambda member: "yes" if member["is_this"] else "",
}
_AUDIT: Columns = {"AGE": rounded("age_s"), "BY": "caller", "RESULT": "result", "TEXT": "text"}
_FIRING: Columns = {"FIRING": "run_id", "HEALTH": "health", "REASON": "health_reason"}
_FAILING: Columns = {"HOST": "name", "FAILED IN": lambda host: ", ".join(host["runs"])}
_SENT: Columns = {"AGE": rounded("age_s"), "TO": "endpoint", "OUTCOME": "outcome", "TITLE": "title"}


def _notifications(_asked: Request, response: Any, _client: Client) -> Reply:
    document = document_of(response)
    tables = [table([*_FIRING], cells(_FIRING, document["firing"]))]
    tables += [table([*_DRAINS], cells(_DRAINS, rows)) for rows in [document["drains"]] if rows]
    tables += [table([*_FAILING], cells(_FAILING, rows)) for rows in [document["hosts"]] if rows]
    text = "\n\n".join([*tables, table([*_SENT], cells(_SENT, document["notifications"]))])
    return Reply(text, document)


def _list(columns: Columns, key: str) -> Callable[[Request, Any, Client], Reply]:
    """Return what shows a response as a table of what it has by a key."""

    def show(_asked: Request, response: Any, _client: Client) -> Reply:
        document = document_of(response)
        note = f"nothing is decided: {document['reason']}" if document.get("reason") else ""
        return Reply(table([*columns], cells(columns, document[key])), document, note)

    return show


def _authorities(asked: Request, response: Any, _client: Client) -> Reply:
    keys: Sequence[str] = response.keys
    newest = fingerprint(keys[0])
    document = {"authorities": [{"authority": fingerprint(key), "key": key} for key in keys]}
    match asked.name:
        case "authority rotate":
            until = "older ones are served until `coordinator authority retire`"
            text = f"coordinator: new tokens pin the authority {newest}; {until}"
        case "authority retire":
            text = f"coordinator: only tokens of the authority {newest} are served"
        case _:
            served = ["newest", *["until it is retired"] * (len(keys) - 1)]
            rows = [(fingerprint(key), key, until) for key, until in zip(keys, served, strict=True)]
            text = table(("AUTHORITY", "KEY IN TOKENS", "SERVED"), rows)
    return Reply(text, document)


def _host(_asked: Request, response: Any, _client: Client) -> Reply:
    from drumbeat.coordinator.command.looking import screens  # noqa: PLC0415 - rich, for text alone

    document = document_of(response)
    return Reply(screens.text_of(screens.host_screen(document)).rstrip(), document)


def _drain(asked: Request, response: Any, client: Client) -> Reply:
    answer = _answer(asked, response)
    if not response.is_new or response.agents_count:
        return answer
    return answer._replace(note=_agents_like(client, **asked.values))


def _undrain(asked: Request, response: Any, client: Client) -> Reply:
    answer = _answer(asked, response)
    if response.is_new:
        return answer
    names = sorted({drain.name for drain in client.call("ListDrains").drains})
    return answer._replace(note=f"drained {are(len(names))} {listed(names)}" if names else "")


# The verbs whose answer is more than the text of the verb.
_SHOWN: dict[str, Callable[[Request, Any, Client], Reply]] = {
    "token create": lambda asked, response, _: _token(
        asked, {"token": response.text, **document_of(response.token)}
    ),
    "token revoke": lambda asked, response, _: _token(asked, document_of(response.token)),
    "token list": _list(_TOKENS, "tokens"),
    "authority show": _authorities,
    "authority rotate": _authorities,
    "authority retire": _authorities,
    "host": _host,
    "drain": _drain,
    "undrain": _undrain,
    "drains": _list(_DRAINS, "drains"),
    "members": _list(_MEMBERS, "coordinators"),
    "audit": _list(_AUDIT, "entries"),
    "notifications": _notifications,
}


def fingerprint(key: str) -> str:
    """Return what the name of an authority has of its key; the key itself if it is none."""
    try:
        return hashlib.sha256(base64.urlsafe_b64decode(key)).hexdigest()[:16]
    except ValueError:
        return key


def _agents_like(client: Client, *, name: str, run_id: str | None, **_: Any) -> str:
    """Warn that no agent or host has this name yet; name those that are meant, or may be."""
    names = set[str]()
    for run in client.runs():
        if run_id in (None, run.run_id) and len(names) < COMPARED_MAX:
            names |= {text for agent in client.agents(run) for text in (agent.name, agent.host)}
    like = get_close_matches(name, sorted(names)[:COMPARED_MAX]) or sorted(names)
    there = f"; {known(like)}" if like else ""
    warning = f"warning: no agent or host is called {name} now"
    return f"{warning}{there}; `coordinator undrain {name}` takes the drain back"
