"""The server of explore.py's page on this machine: who may ask, what is refused, and that the answers are the
model's."""

import http.client
import json
import socket
import threading
from typing import Any

import pytest

from headgates.commands import explore
from headgates.commands.explore import ExploreOptions
from headgates.explain.sentence_model import Change
from headgates.report.explore.server import HEADERS, LONGEST_BODY, WAITING_QUESTIONS, Server
from tests.report.conftest import SHUT
from tests.report.made_runs import TOY
from tests.worlds.runs import assert_one_line

TEXT = "the old dog sees a small cat."
HEADS = ["decoder.0.cross.2", "decoder.1.cross.3"]


@pytest.fixture
def asked(server):
    """asked(content, path, method, **headers) -> (status, answer): bytes are sent as they are, a header
    of None is left out."""

    def ask(content: Any = None, path: str = "/api/say", method: str = "POST", **headers: str | None):
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        own = {"Host": f"127.0.0.1:{server.server_port}", "X-Headgates-Token": server.token}
        given = own | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.putrequest(method, path, skip_host=True)
        given = {"Content-Length": str(len(body or b"")), **given}
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        connection.send(body or b"")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text

    return ask


def test_answers_are_the_models(server, asked):
    model = server.answers.models[0]
    status, answer = asked({"text": TEXT, "shut": HEADS, "sites": ["decoder.1.cross"]})
    shut = frozenset(model.heads[name] for name in HEADS)
    said = model.say(TEXT, Change(shut))
    assert status == 200
    assert answer["whole"]["text"] == "der alte Hund sieht eine kleine Katze."
    assert [token["id"] for token in answer["now"]["tokens"]] == said.ids
    p = [token["p"] for token in answer["now"]["tokens"]]
    assert p == pytest.approx(said.chosen.exp().tolist(), abs=1e-4)
    assert all(token["best"][0]["p"] >= token["p"] - 1e-4 for token in answer["now"]["tokens"])
    lost = -float(model.token_log_probs(TEXT, model.as_it_is(TEXT).ids, [Change(shut)]).sum())
    assert answer["whole"]["loss_now"] == pytest.approx(lost, abs=1e-4)
    rows = answer["example"]["weights"]["decoder.1.cross"][3]
    assert (len(rows), len(rows[0])) == (len(said.ids), len(answer["source"]))
    _, effects = asked({"text": TEXT, "shut": HEADS}, "/api/effects")
    assert effects["effect"] == pytest.approx(model.effects(TEXT, frozenset()), abs=1e-4)
    assert effects["effect_now"] == pytest.approx(model.effects(TEXT, shut), abs=1e-4)


def test_the_second_model_starts_as_its_run_has_it(server, asked):
    model = server.answers.models[1]
    assert len(model.start) == len(SHUT) == 17
    _, answer = asked({"model": 1, "text": TEXT})
    assert answer["whole"]["tokens"] == answer["now"]["tokens"]
    _, opened = asked({"model": 1, "text": TEXT, "shut": []})
    assert opened["whole"]["tokens"] == answer["whole"]["tokens"]
    assert opened["now"]["loss"] != answer["now"]["loss"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", None])
def test_an_address_that_is_not_the_servers_is_refused(server, asked, host):
    for method, path in (("POST", "/api/say"), ("GET", f"/?token={server.token}")):
        status, answer = asked({"text": TEXT}, path, method, Host=host)
        assert status == 403
        assert list(answer) == ["error"]
        assert server.token not in answer["error"]


def test_a_page_of_another_origin_and_a_wrong_token_are_refused(server, asked):
    own = f"localhost:{server.server_port}"
    for origin in ("http://evil.example", "null", own, f"https://{own}"):
        assert asked({"text": TEXT}, Origin=origin)[0] == 403
    assert asked({"text": TEXT}, Origin=f"http://{own}")[0] == 200
    for token in (None, "", "wrong", server.token[:-1], "é"):
        sent = None if token is None else token.encode().decode("latin-1")
        status, answer = asked({"text": TEXT}, X_Headgates_Token=sent)
        assert status == 403
        assert "open the address" in answer["error"]
    for query in ("", "?token=wrong", "?model=1"):
        status, page = asked(path=f"/{query}", method="GET")
        assert status == 403
        assert server.token not in page
    # what a browser asks before it sends our header
    assert asked(method="OPTIONS", path="/api/say")[0] == 501


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET http://[::1/?x HTTP/1.1", 400),
        ("GET / HTTP/9.9", 505),
        ("BREW / HTTP/1.1", 501),
        ("GET /" + "a" * 70_000 + " HTTP/1.1", 414),
        ("nothing at all, you see", 400),
        ("GET /report.html HTTP/1.1", 404),
    ],
)
def test_every_refusal_has_our_headers_and_one_line_of_json(server, request_line, status):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(f"{request_line}\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(9999), b"")).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert [name for name, value in HEADERS.items() if f"{name}: {value}" not in head] == []
    assert list(json.loads(body)) == ["error"]


def test_a_server_that_is_ended_says_how_many_questions_it_answered(called, monkeypatch):
    def served(server, **_):
        server.answered = 3
        raise KeyboardInterrupt  # what Ctrl-C and a kill become

    monkeypatch.setattr(Server, "serve_forever", served)
    code, _, error = called(explore)(TOY, "--port", 0, "--threads", 1)
    assert (code, error.strip()) == (0, "ended; 3 questions were answered")


def test_the_page_and_no_file_is_served(server, asked):
    for number in (0, 1):
        status, page = asked(path=f"/?token={server.token}&model={number}", method="GET")
        assert status == 200
        assert "connect-src 'self'" in page
        assert page.count('"kind":"cross"') == 16
    for path in (
        "/report.html",
        "/../README.md",
        "/%2e%2e/best.pt",
        f"/?token={server.token}&model=2",
        "//etc/passwd",
    ):
        assert asked(path=path, method="GET")[0] in (403, 404)
    assert asked({"text": TEXT}, "/api/other")[0] == 404


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": ', "expected JSON"),
        (b"[" * 60_000, "expected JSON"),
        ([], "is a list"),
        ({"text": TEXT, "file": "best.pt"}, "got file"),
        ({"text": " \n"}, "empty"),
        ({"text": 7}, "text is a int"),
        ({"text": "dog " * 65}, "at most 64"),
        ({"text": "d" * 1001}, "at most 1000"),
        ({"text": TEXT, "shut": ["decoder.9.cross.0"]}, "no head 'decoder.9.cross.0'"),
        ({"text": TEXT, "shut": "decoder.0.cross.0"}, "shut is a str"),
        ({"text": TEXT, "model": 2}, "below 2"),
        ({"text": TEXT, "sites": ["decoder.9.cross"]}, "no site"),
        ({"text": TEXT, "sites": "decoder.1.cross"}, "sites is a str"),
        ({"text": TEXT, "prefix": ["x"]}, "prefix[0] is a str"),
        ({"text": TEXT, "prefix": [10**9]}, "begins with these tokens"),
        ({"text": TEXT, "prefix": [9] * 500}, "at most"),
        ({"text": TEXT, "patched": HEADS}, "second sentence"),
        ({"text": TEXT, "patched": HEADS, "other": "a cat."}, "equal lengths"),
    ],
)
def test_what_is_no_question_gets_one_clear_line(asked, content, words):
    status, answer = asked(content)
    assert status == 400
    assert words in answer["error"]
    assert "\n" not in answer["error"]


def test_half_a_character_is_text(asked):
    assert asked(b'{"text": "the dog \\ud800 sees"}')[0] == 200


def test_a_large_question_and_one_without_a_length_are_not_read(asked):
    assert asked(b"", Content_Length=str(LONGEST_BODY + 1))[0] == 413
    assert asked(b"", Content_Length="9" * 400)[0] == 413
    for length in (None, "-1", "x", ""):
        assert asked(b"", Content_Length=length)[0] == 411


def test_more_questions_than_may_wait_are_refused_and_the_server_goes_on(server, asked):
    go_on = threading.Event()
    server.worker.submit(go_on.wait, 30)
    waiting = [threading.Thread(target=asked, args=({"text": TEXT},)) for _ in range(WAITING_QUESTIONS)]
    for each in waiting:
        each.start()
    while server.free._value:
        pass
    try:
        assert asked({"text": TEXT})[0] == 503
    finally:
        go_on.set()
    for each in waiting:
        each.join()
    assert asked({"text": TEXT})[0] == 200


# ---------------------------------------------------------------- the command


def test_a_taken_port_and_no_run_are_one_line(called, server, tmp_path):
    explore_here = called(explore)
    code, _, error = explore_here(TOY, "--port", server.server_port)
    assert code == 1
    assert_one_line(error, f"--port {server.server_port} is taken")
    for words in ((tmp_path / "none",), (TOY, "--against", tmp_path / "none"), (TOY, "--system", "l9")):
        code, out, error = explore_here(*words)
        assert (code, out) == (1, "")
        assert_one_line(error)


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    with socket.socket() as outside, pytest.raises(OSError):
        outside.connect(("127.0.0.2", server.server_port))


@pytest.mark.parametrize(
    ("against", "second"),
    [
        (None, None),
        ("runs/a", ("runs/a", None)),
        ("runs/a:pruned", ("runs/a", "pruned")),
        ("hf:org/name,src=en", ("hf:org/name,src=en", None)),
    ],
)
def test_the_second_model_is_a_run_its_system_or_a_foreign_model(against, second):
    assert ExploreOptions(source="runs/b", against=against).second == second
