"""Those who mean harm, and who may come in: clear refusals, nothing executed, and the server still up."""

import asyncio
import json
import re
import socket
import tracemalloc
from importlib import util
from typing import Any, cast

import httpx
import pytest

from gmt.errors import GMTError
from gmt.explorer import answers, asks, run, server
from gmt.explorer.asks import TooLargeError
from tests.conftest import assert_same, snapshot
from tests.explorer.conftest import TEXT, ask, serving

HOSTILE = [
    (b"{", "not JSON"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "a JSON object"),
    (b'{"text": NaN}', "NaN is not a number"),
    (b'{"text": "a", "model": Infinity}', "Infinity is not a number"),
    (b"{}", "needs a text"),
    (b'{"text": 3}', "needs a text"),
    (b'{"text": ""}', "the text is empty"),
    (b'{"text": " \\n "}', "the text is empty"),
    (b'{"text": "\\ud800"}', "half a character"),
    (b'{"text": "a", "model": 7}', "no model 7"),
    (b'{"text": "a", "model": -1}', "no model -1"),
    (b'{"text": "a", "model": true}', "model is a whole number"),
    (b'{"text": "a", "model": "../../etc"}', "model is a whole number"),
    (b'{"text": "a", "edits": {}}', "a list of objects"),
    (b'{"text": "a", "edits": null}', "a list of objects"),
    (b'{"text": "a", "edits": [{"kind": "<script>alert(1)</script>"}]}', "there is no edit"),
    (b'{"text": "a", "edits": [{"kind": ["scale"]}]}', "names its kind"),
    (b'{"text": "a", "edits": [3]}', "names its kind"),
    (b'{"text": "a", "edits": [{"kind": "scale", "alpha": 1e999}]}', "alpha cannot be inf"),
    (b'{"text": "a", "edits": [{"kind": "scale", "alpha": 0, "ids": [99999999999999999999]}]}', "too large"),
    (b'{"text": "a", "edits": [{"kind": "edges", "form": "random", "seed": 1e400}]}', "seed cannot be"),
    (b'{"text": "a", "edits": [{"kind": "ablate", "slot": -3}]}', "no slot -3"),
    (b'{"text": "a", "edits": [{"kind": "ablate", "slot": 0, "block": 9}]}', "no block 9"),
    (b'{"text": "a", "edits": ' + b"[" * 900 + b"]" * 900 + b"}", ""),
    (b'{"text": "a", "edits": ' + b"[" * 5000 + b"]" * 5000 + b"}", ""),
    (json.dumps({"text": "a", "edits": [{"kind": "scale"}] * 51}).encode(), "at most 50"),
    (json.dumps({"text": "a" * 20_001}).encode(), "20,001 characters; at most 20,000"),
    (json.dumps({"text": "a", "edits": [{"kind": "x" * 200_000}]}).encode(), "there is no edit"),
]
PLACES = [
    ("token", {}, "place is a whole number"),
    ("token", {"place": -1}, "no place -1"),
    ("token", {"place": 10**6}, "no place 1000000"),
    ("token", {"place": 10**30}, "place is too large"),
    ("token", {"place": 1.5}, "place is a whole number"),
    ("token", {"place": "0"}, "place is a whole number"),
    ("block", {"block": 2}, "no block 2"),
    ("block", {"block": None}, "block is a whole number"),
    ("slot", {"block": 0, "slot": 6}, "no slot 6"),
    ("slot", {"block": 0, "slot": -1}, "no slot -1"),
    ("slot", {"block": 0}, "slot is a whole number"),
    ("continue", {"tokens": 201}, "1 to 200 tokens"),
    ("continue", {"tokens": -5}, "1 to 200 tokens"),
    ("continue", {"tokens": 2.5}, "tokens is a whole number"),
    ("continue", {"temperature": -1}, "from 0 to 10"),
    ("continue", {"temperature": 10**400}, "from 0 to 10"),
    ("continue", {"temperature": "hot"}, "from 0 to 10"),
    ("continue", {"seed": -1}, "seed must be at least 0"),
]


def told(response: httpx.Response, status: int, message: str) -> None:
    assert response.status_code == status, response.text
    found = response.json()
    assert list(found) == ["error"] and message in found["error"] and len(found["error"]) < 500
    assert "Traceback" not in found["error"] and response.headers["content-type"] == "application/json"


def test_bad_requests_are_refused_with_a_sentence_and_the_server_stays_up(client, models):
    before = snapshot(models[0].model)
    for body, message in HOSTILE:
        told(client.post("/api/read", content=body), 400, message)
    for name, more, message in PLACES:
        told(client.post(f"/api/{name}", content=json.dumps({"text": TEXT, **more}).encode()), 400, message)
    assert ask(client, "read")["fired"] == []
    assert_same(models[0].model, before)


def test_numbers_that_overflow_are_null_and_not_nan(client):
    found = client.post("/api/read", json={"text": TEXT, "edits": [{"kind": "scale", "alpha": 1e38}]})
    assert found.status_code == 200 and "NaN" not in found.text and None in found.json()["surprise"][1:]
    wild = client.post("/api/continue", json={"text": "a", "edits": [{"kind": "scale", "alpha": 1e38}]})
    told(wild, 400, "overflow")


def test_ten_megabytes_are_refused_however_they_come(client):
    def parts():
        for _ in range(160):
            yield b"a" * 65_536

    told(client.post("/api/read", json={"text": "a" * 10_000_000}), 413, "at most 256 KB")
    told(client.post("/api/read", content=parts()), 413, "at most 256 KB")  # in chunks, without a length
    told(client.post("/api/read", content=b" " * (asks.BODY + 1)), 413, "at most 256 KB")
    told(client.post("/api/read", content=b" " * asks.BODY), 400, "not JSON")
    with socket.create_connection((client.base_url.host, client.base_url.port)) as raw:  # a length that is a lie
        raw.sendall(b"POST /api/read HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}")
        assert b" 400 " in raw.recv(100)
    assert client.get("/api/model").status_code == 200


def test_a_body_that_is_too_large_is_never_held():
    class Sent:
        async def stream(self):
            for _ in range(480):
                yield bytes(65_536)

    tracemalloc.start()
    with pytest.raises(TooLargeError):
        asyncio.run(server._body(cast(Any, Sent())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * asks.BODY, "of 30 MB"


def test_markup_comes_back_as_it_was_and_as_json_only(client):
    text = "<script>alert(1)</script><img src=x onerror=alert(2)> the cat & mat"
    response = client.post("/api/read", json={"text": text})
    assert "".join(response.json()["tokens"]) == text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"


def raw_get(client: httpx.Client, path: str) -> bytes:
    """The path as it stands: no client tidies it up."""
    with socket.create_connection((client.base_url.host, client.base_url.port)) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        found = b""
        while part := raw.recv(65_536):
            found += part
    return found


def test_nothing_but_the_fixed_names_is_served(client):
    wrong = [
        "/static/..%2f..%2ferrors.py", "/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd",
        "/static/..%5cserver.py", "/static/%00", "/static/", "/static", "/static/__init__.py", "/docs", "/openapi.json",
        "/redoc", "/api/", "/api/model/", "/../../etc/passwd", "/server.py", "/static/index.html/..%2f..%2frun.py",
    ]  # fmt: skip
    for path in wrong:
        found = raw_get(client, path)
        assert found.startswith(b"HTTP/1.1 404"), (path, found[:200])
        assert b'{"error":"there is nothing at this address"}' in found and b"nosniff" in found
    told(client.get("/api/read"), 405, "does not answer")
    told(client.delete("/api/model"), 405, "does not answer")


def test_the_page_and_its_parts_are_served_with_their_kinds(client):
    files = server.static_files()
    assert "index.html" in files
    page = client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for name, (body, kind) in files.items():
        found = client.get(f"/static/{name}")
        assert found.content == body and found.headers["content-type"].startswith(kind)
    script = client.get("/plotly.js")
    assert "plotly.js" in script.text[:200] and "max-age" in script.headers["cache-control"]


@pytest.mark.parametrize("path", ["/", "/api/model", "/plotly.js", "/nowhere"])
def test_every_answer_forbids_what_the_page_does_not_need(client, path):
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["script-src"] == "'self'" and "unsafe-eval" not in str(policy)
    assert policy["img-src"] == "'self' data: blob:" and policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_other_sites_are_not_answered(client):
    """A name that somebody made to mean this machine, and a page of another origin."""
    told(client.get("/api/model", headers={"Host": "evil.example"}), 400, "another name")
    told(client.post("/api/read", json={"text": "a"}, headers={"Origin": "http://evil.example"}), 400, "its own page")
    told(client.post("/api/read", json={"text": "a"}, headers={"Origin": "null"}), 400, "its own page")
    own = str(client.base_url).rstrip("/")
    assert client.post("/api/read", json={"text": "a"}, headers={"Origin": own}).status_code == 200
    assert client.get("/api/model", headers={"Host": "localhost:1"}).status_code == 200


def test_a_mistake_of_ours_is_a_sentence_too(client, monkeypatch, capfd):
    monkeypatch.setattr(answers, "block", lambda *_: 1 / 0)
    told(client.post("/api/block", json={"text": TEXT, "block": 0}), 500, "a mistake of its own")
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert client.get("/api/model").status_code == 200


# ---- who may come in ----


def test_with_a_token_nobody_is_answered_without_it(explorer):
    token = run.door("0.0.0.0", allow_remote=True)
    assert token and len(token) >= 32 and token != run.door("0.0.0.0", allow_remote=True)
    with serving(server.make_app(explorer, None, token)) as address, httpx.Client(base_url=address) as visitor:
        for path in ("/", "/api/model", "/static/index.html", "/plotly.js", "/nowhere", "/?token=wrong", "/?token=é"):
            told(visitor.get(path), 401, "asks for its token")
        told(visitor.post("/api/read", json={"text": "a"}), 401, "asks for its token")
        told(visitor.get("/", headers={"Cookie": "gmt_explore=wrong"}), 401, "asks for its token")
        came = visitor.get("/", params={"token": token, "view": "a b"})
        assert came.status_code == 303 and came.headers["location"] == "/?view=a+b"
        cookie = came.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert visitor.get("/").status_code == 200 and visitor.get("/api/model").status_code == 200
        assert visitor.post("/api/read", json={"text": "a"}).status_code == 200
        assert httpx.get(f"{address}api/model", params={"token": token}).status_code == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("192.168.1.4", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_only_this_machine_unless_it_is_said(host, local):
    assert run.is_local(host) is local
    if local:
        assert run.door(host, allow_remote=False) is None
    else:
        with pytest.raises(GMTError, match="--allow-remote"):
            run.door(host, allow_remote=False)


def test_a_busy_port_a_wrong_one_and_missing_packages_are_sentences(monkeypatch):
    with run.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GMTError, match=f"port {port}: Address already in use; try another with --port"):
            run.serve("nowhere", port=port)
    with pytest.raises(GMTError, match="a port is a number from 0 to 65535"):
        run.serve("nowhere", port=70_000)
    with pytest.raises(GMTError, match=r"cannot listen on 203\.0\.113\.7"):
        run.serve("nowhere", host="203.0.113.7", allow_remote=True)
    with pytest.raises(GMTError, match="add --allow-remote"):
        run.serve("nowhere", host="0.0.0.0")
    real = util.find_spec
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "plotly" else real(name))
    sentence = "gmt explore needs fastapi, uvicorn and plotly: pip install 'graph-memory-transformer[explore]'"
    with pytest.raises(GMTError, match=re.escape(sentence)):
        run.serve("nowhere")


def test_addresses_can_be_opened():
    assert run.address("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert run.address("::1", 80, "abc") == "http://[::1]:80/?token=abc"
    assert run.address("0.0.0.0", 80, None) == f"http://{socket.gethostname()}:80/"
