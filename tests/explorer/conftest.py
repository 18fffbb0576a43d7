"""Two small models with memory, one without; an explorer and a real server over them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")

from gmt.explorer import run, server
from gmt.explorer.state import Explorer
from gmt.hf.load import Loaded, open_model
from tests.evaluate.conftest import make_model

TEXT = "the cat sat on a mat while café owners in Łódź counted 12 stars"
EDIT = {"kind": "scale", "alpha": -2.0}


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> list[Loaded]:
    folder = tmp_path_factory.mktemp("explored")
    dense = "model.sublayer=dense", "model.dense_width=20"
    made = [make_model(folder / "one"), make_model(folder / "two", seed=1), make_model(folder / "dense", *dense)]
    return [open_model(path) for path in made]


@pytest.fixture
def explorer(models) -> Iterator[Explorer]:
    made = Explorer(models)
    yield made
    made.close()


@contextmanager
def serving(app: Any, sock: socket.socket | None = None) -> Iterator[str]:
    """A real server in a thread of its own; its address."""
    sock = sock or run.bind("127.0.0.1", 0)
    made = server.make_server(app)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield run.address("127.0.0.1", sock.getsockname()[1], None)
    finally:
        made.should_exit = True
        thread.join(timeout=20)
        sock.close()


@pytest.fixture
def client(explorer) -> Iterator[httpx.Client]:
    with serving(server.make_app(explorer, run.LOCAL_NAMES)) as address, httpx.Client(base_url=address) as made:
        yield made


def ask(client: httpx.Client, name: str, **body: Any) -> Any:
    """The answer to a question that must be answered."""
    response = client.post(f"/api/{name}", json={"text": TEXT, **body})
    assert response.status_code == 200, response.text
    return response.json()
