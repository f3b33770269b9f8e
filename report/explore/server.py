"""The server of the page: this machine alone, one question at a time, no files.

It listens on 127.0.0.1. Another page of the same browser cannot reach the model: a name that an attacker
points at 127.0.0.1 (DNS rebinding) fails by the Host header, a form or a script of another origin by the
token, new at each start, that every question must carry in a header. A question is at most LONGEST_BODY
bytes; while one is answered, WAITING_QUESTIONS others may wait. http.server of the standard library does all
of this: one reader asks one model, which answers one question at a time, so a server that overlaps thousands
of requests would wait for the same model.
"""

import errno
import json
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headgates.report.explore.answers import QUESTIONS, Answers
from headgates.report.page import compact

HOST = "127.0.0.1"
LONGEST_BODY = 64 * 1024  # bytes: a sentence, and the names of all heads of a large model
WAITING_QUESTIONS = 8  # questions that wait, the one that is answered counted
SILENT_SECONDS = 20  # seconds that a connection may say nothing
TOKEN_HEADER = "X-Headgates-Token"
HEADERS = {  # of every answer
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# the part of an address after # stays in the browser, so the old one's state is kept
OTHER_START = """<!doctype html><meta charset="utf-8"><title>headgates</title>
<p>Each start of explore has its own address. Open the one in its terminal,
or paste what follows token= in it:</p>
<form action="/"><input name="token" aria-label="token" autofocus> <button>Open</button></form>
<script>document.forms[0].action = "/" + location.hash;</script>
"""


class Server(ThreadingHTTPServer):
    """Serves `page(model number, token)` at / and `answers` at /api/...; `url` opens the first model's page.

    Raises ValueError where the port is taken."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answers: Answers, page: Callable[[int, str], str], *, port: int):
        self.answers, self.page = answers, page
        self.token = secrets.token_urlsafe(16)
        self.free = BoundedSemaphore(WAITING_QUESTIONS)
        self.answered = 0  # questions
        # one thread for the model: torch makes its threads once, and questions follow each other
        self.worker = ThreadPoolExecutor(1, "model")
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            what = "is taken" if error.errno == errno.EADDRINUSE else "is not yours to take"
            raise ValueError(f"--port {port} {what}; give another, or 0 for any that is free") from None
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def knows(self, token: str | None) -> bool:
        return secrets.compare_digest((token or "").encode(errors="replace"), self.token.encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves is no error; nothing is said of it."""


class Refused(Exception):
    """A request that is answered with a status and a reason alone."""


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "headgates", ""
    timeout = SILENT_SECONDS

    def do_GET(self) -> None:
        self.reply_with(self.asked_page)

    def do_POST(self) -> None:
        self.reply_with(self.asked_answer)

    def reply_with(self, asked: Callable[[], tuple[str, str, HTTPStatus]]) -> None:
        """Send what was asked for, or why it is refused."""
        try:
            self.check_address()
            self.reply(*asked())
        except Refused as refused:
            self.send_error(*refused.args)

    def asked_page(self) -> tuple[str, str, HTTPStatus]:
        try:
            place = urlsplit(self.path)
        except ValueError:  # such as http://[::1/
            raise Refused(HTTPStatus.BAD_REQUEST, "that is no address") from None
        if place.path != "/":
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        query = parse_qs(place.query)
        if not self.server.knows(query.get("token", [""])[0]):
            return OTHER_START, "text/html", HTTPStatus.FORBIDDEN
        number = query.get("model", ["0"])[0]
        if number not in map(str, range(len(self.server.answers.models))):
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such model here")
        return self.server.page(int(number), self.server.token), "text/html", HTTPStatus.OK

    def asked_answer(self) -> tuple[str, str, HTTPStatus]:
        if not self.server.knows(self.headers.get(TOKEN_HEADER)):
            raise Refused(HTTPStatus.FORBIDDEN, "explore was started again; open the address that it printed")
        if self.path not in QUESTIONS:
            raise Refused(HTTPStatus.NOT_FOUND, f"expected one of {', '.join(QUESTIONS)}")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(length) > 9 or int(length) > LONGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {LONGEST_BODY} bytes")
        body = self.rfile.read(int(length))
        if not self.server.free.acquire(blocking=False):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{WAITING_QUESTIONS} questions wait already; try again"
            )
        try:
            answer = self.server.answers.answer
            found = self.server.worker.submit(answer, self.path, read_json(body)).result()
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        except Exception as error:  # the page says so, and the server goes on
            raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}") from error
        finally:
            self.server.free.release()
        self.server.answered += 1
        return compact(found), "application/json", HTTPStatus.OK

    def check_address(self) -> None:
        """Raises Refused unless the address was this server's own, in the browser's words."""
        hosts, origin = self.server.hosts, self.headers.get("Origin")
        own = self.headers.get("Host", "") in hosts
        if not own or origin not in {None, *(f"http://{host}" for host in hosts)}:
            here = f"http://{HOST}:{self.server.server_port}/"
            raise Refused(HTTPStatus.FORBIDDEN, f"expected the address {here}")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """One line of JSON, for what http.server itself refuses too; the rest of the request is not read."""
        self.close_connection, status = True, HTTPStatus(code)
        error = {"error": " ".join((message or status.phrase).split())[:500]}
        self.reply(json.dumps(error), "application/json", status)

    def reply(self, text: str, kind: str, status: HTTPStatus) -> None:
        content = text.encode(errors="replace")
        self.request_version = self.protocol_version  # the oldest would get no headers
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *words: Any) -> None:
        """The terminal is left to the address."""


def read_json(body: bytes) -> Any:
    """Raises ValueError where the body is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("expected JSON") from None
