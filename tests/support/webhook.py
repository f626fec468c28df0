"""A webhook that keeps the messages and heartbeats it is sent, and may refuse them or be silent."""

import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from apprise import Apprise

from tests.support.waiting import MS, wait_until_sync

# It loads its services when the first is asked for, and one imports a module that is deprecated.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    assert Apprise.instantiate("json://127.0.0.1") is not None

DEADLINE_S = 20_000 * MS
SECRET = "s3cr3tTokenOfTheHook"


class Webhook:
    """Takes messages at ``url`` and heartbeats at ``heartbeat``. ``status`` may be changed."""

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.messages: list[dict[str, Any]] = []  # taken
        self.tokens: set[str | None] = set()  # of the header X-Token
        self.refused = 0
        self.heartbeats = 0
        self._speaks = threading.Event()
        self._speaks.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook._speaks.wait()
                if hook.status == 200:
                    hook.messages.append(json.loads(body))
                    hook.tokens.add(self.headers["X-Token"])
                else:
                    hook.refused += 1
                self._answer()

            def do_GET(self) -> None:
                hook.heartbeats += hook.status == 200
                self._answer()

            def _answer(self) -> None:
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"json://user:{SECRET}@127.0.0.1:{self.port}/{SECRET}/hook?+X-Token={SECRET}"
        self.heartbeat = f"http://127.0.0.1:{self.port}/{SECRET}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def be_silent(self) -> None:
        """Answer nothing from now on."""
        self._speaks.clear()

    def speak(self) -> None:
        """Answer again, also what was asked meanwhile."""
        self._speaks.set()

    def titles(self) -> list[str]:
        """Return the titles of the messages, in order."""
        return [each["title"] for each in self.messages]

    def wait_for(self, title: str) -> dict[str, Any]:
        """Return the message with a title, once it is there."""

        def look() -> dict[str, Any] | None:
            return next((each for each in self.messages if each["title"] == title), None)

        found = wait_until_sync(look, DEADLINE_S, describe=self.titles)
        assert found is not None, "waited for"
        return found

    def close(self) -> None:
        """Be gone."""
        self.speak()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def webhook(port: int = 0) -> Iterator[Webhook]:
    """Let a webhook take messages while the context is open."""
    hook = Webhook(port)
    try:
        yield hook
    finally:
        hook.close()
