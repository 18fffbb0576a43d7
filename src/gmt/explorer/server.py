"""The page's server: addresses, limits and locks. The one file that imports fastapi, uvicorn and plotly.

A request is a JSON object, an answer too; a mistake is {"error": one sentence}. No part of a request ever becomes the
name of a file: everything that can be served is read before the first request comes.
"""

import asyncio
import hmac
import importlib.resources
import json
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from socket import socket
from typing import Any
from urllib.parse import urlencode, urlsplit

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from plotly.offline import get_plotlyjs
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gmt.errors import GMTError
from gmt.explorer import answers, asks
from gmt.explorer.answers import Reading
from gmt.explorer.asks import Ask, TooLargeError
from gmt.explorer.facts import model_facts
from gmt.explorer.state import TOO_LONG, BusyError, Explorer, TooLongError

Tree = dict[str, Any]
COOKIE = "gmt_explore"
STATUS = {TooLargeError: 413, BusyError: 503, TooLongError: 504}
LONGEST_SENTENCE = 400
LOOK_S = 0.25  # how often it is seen whether somebody still waits
DRAINED = 32 << 20  # of a body that is refused: read and dropped, so that the sender is there to hear why
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def make_app(explorer: Explorer, hosts: frozenset[str] | None = None, token: str | None = None) -> FastAPI:
    """`hosts` are the names under which it may be called, None any; with a `token` nobody is answered without it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _pages(app)
    _questions(app, explorer)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        told = {404: "there is nothing at this address", 405: "this address does not answer such a request"}
        return _sentence(error.status_code, told.get(error.status_code, "this cannot be answered"))

    app.add_middleware(Guard, hosts=hosts, token=token)
    return app


class Guard:
    """Around every answer: who may have it, what a browser may do with it, and what is said where we failed."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, token: str | None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request, begun = Request(scope), False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._headers(request, MutableHeaders(scope=message))
            await send(message)

        try:
            await (_stopped(request, self.hosts, self.token) or self.app)(scope, receive, guarded)
        except Exception:  # ours, not the user's: the terminal has the whole of it, the page a sentence
            traceback.print_exc(file=sys.stderr)
            if not begun:
                failed = _sentence(500, "the explorer made a mistake of its own; its terminal says more")
                await failed(scope, receive, guarded)

    def _headers(self, request: Request, headers: MutableHeaders) -> None:
        headers.update(HEADERS)
        headers.setdefault("Cache-Control", "no-store")
        if self.token is not None and _same(request.query_params.get("token"), self.token):
            headers.append("Set-Cookie", f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Strict")


def _stopped(request: Request, hosts: frozenset[str] | None, token: str | None) -> Response | None:
    """An answer in place of the one that was asked for, where it must not be given."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if hosts is not None and _name(host) not in hosts:  # another site's name that was made to mean this machine
        return _sentence(400, "this server is called by another name")
    if origin is not None and _netloc(origin) != host:
        return _sentence(400, "this server answers its own page only")
    if token is None or _same(request.cookies.get(COOKIE), token):
        return None
    if not _same(request.query_params.get("token"), token):
        return _sentence(401, "this server asks for its token: open the whole address that its terminal shows")
    if request.url.path != "/":
        return None
    rest = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
    return RedirectResponse(f"/?{rest}" if rest else "/", 303)  # the token stays in no address bar


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # half a bracket, say
        return None


def _name(host: str) -> str:
    """Without the port."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0].lower()


def _same(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _pages(app: FastAPI) -> None:
    files = static_files()

    def page(name: str, age: str = "no-cache") -> Response:
        if name not in files:
            raise HTTPException(404)
        body, kind = files[name]
        return Response(body, media_type=kind, headers={"Cache-Control": age})

    @app.get("/")
    async def index() -> Response:
        return page("index.html")

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        return page(name)

    @app.get("/plotly.js")
    async def plotly() -> Response:
        headers = {"Cache-Control": "private, max-age=604800"}
        return Response(await run_in_threadpool(_plotly), media_type="text/javascript", headers=headers)


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Everything that the page is made of, by name."""
    folder = importlib.resources.files("gmt.explorer") / "static"
    found = [(file, "." + file.name.rpartition(".")[2]) for file in folder.iterdir() if file.is_file()]
    return {file.name: (file.read_bytes(), KINDS[ending]) for file, ending in found if ending in KINDS}


@cache
def _plotly() -> bytes:
    return get_plotlyjs().encode()


def _questions(app: FastAPI, explorer: Explorer) -> None:
    facts = model_facts(explorer)

    @app.get("/api/model")
    async def model() -> Response:
        return _answer(200, facts)

    def question(name: str, told: Callable[[Ask, Tree], Coroutine[Any, Any, bytes]]) -> None:
        @app.post(f"/api/{name}", name=name)
        async def ask(request: Request) -> Response:
            try:
                tree = asks.parse(await asyncio.wait_for(_body(request), explorer.limit_s))
                work = told(asks.ask(tree, explorer.models), tree)
                return Response(await _while_wanted(request, explorer.limit_s, work), media_type="application/json")
            except GMTError as error:
                return _sentence(STATUS.get(type(error), 400), str(error))
            except TimeoutError:
                return _sentence(504, TOO_LONG)

    async def read_and(ask: Ask, say: Callable[[Reading], Tree]) -> bytes:
        """What is told of a text: after the worker has read it, and beside the loop that takes new requests."""
        reading = await asyncio.wrap_future(explorer.reading(ask))
        return await run_in_threadpool(lambda: _json(say(reading)))

    async def read(ask: Ask, tree: Tree) -> bytes:
        return await read_and(ask, answers.read)

    async def token(ask: Ask, tree: Tree) -> bytes:
        place = asks.whole(tree, "place")
        return await read_and(ask, lambda reading: answers.token(reading, place))

    async def block(ask: Ask, tree: Tree) -> bytes:
        number = asks.whole(tree, "block")
        return await read_and(ask, lambda reading: answers.block(reading, number))

    async def slot(ask: Ask, tree: Tree) -> bytes:
        number, slot = asks.whole(tree, "block"), asks.whole(tree, "slot")
        return await read_and(ask, lambda reading: slot_card(explorer, ask, reading, number, slot))

    async def go_on(ask: Ask, tree: Tree) -> bytes:
        return _json({"text": await asyncio.wrap_future(explorer.continuation(ask, asks.sampling(tree)))})

    for name, told in {"read": read, "token": token, "block": block, "slot": slot, "continue": go_on}.items():
        question(name, told)


def slot_card(explorer: Explorer, ask: Ask, reading: Reading, number: int, slot: int) -> Tree:
    answers.check_block(reading.trace, number, slot)
    meaning = explorer.meaning(ask, reading, number, slot)
    examples, left = explorer.examples(ask, number, slot)
    return answers.slot(reading, number, slot, meaning, examples) | {"corpus_left": left}


async def _while_wanted(request: Request, limit_s: float, work: Coroutine[Any, Any, bytes]) -> bytes:
    """A job that nobody waits for any more is not begun; one that was begun ends on its own."""
    task, end = asyncio.ensure_future(work), time.monotonic() + limit_s
    try:
        while True:
            left = end - time.monotonic()
            await asyncio.wait({task}, timeout=max(min(left, LOOK_S), 0))
            if task.done():
                return task.result()
            if left <= 0 or await request.is_disconnected():
                raise TooLongError(TOO_LONG)
    finally:
        task.cancel()


async def _body(request: Request) -> bytes:
    """Never more of it in memory than is allowed, whatever its header says."""
    found, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size > DRAINED:
            break
        if size <= asks.BODY:
            found += part
    if size > asks.BODY:
        raise TooLargeError(f"the request is too large: at most {asks.BODY // 1024} KB are read")
    return bytes(found)


def _json(content: Tree) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def _answer(status: int, content: Tree) -> Response:
    return Response(_json(content), status, media_type="application/json")


def _sentence(status: int, text: str) -> Response:
    return _answer(status, {"error": text if len(text) <= LONGEST_SENTENCE else text[:LONGEST_SENTENCE] + " …"})


def make_server(app: FastAPI) -> uvicorn.Server:
    # no access log: an address may hold the token
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, ws="none", server_header=False))


def listen(app: FastAPI, sock: socket) -> None:
    """Until it is interrupted, which is how it ends."""
    with suppress(KeyboardInterrupt):
        make_server(app).run(sockets=[sock])
