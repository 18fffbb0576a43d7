"""`gmt explore`, top to bottom: the models, who may come in, and the address to open."""

import ipaddress
import secrets
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from gmt.errors import GMTError
from gmt.hf.load import open_model
from gmt.model.device import pick_device

NEEDED = ("fastapi", "uvicorn", "plotly")
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PORT = 8642


def serve(
    model: str,
    other: str | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    corpus: Path | None = None,
    *,
    allow_remote: bool = False,
    tau: float | None = None,
    device: str = "auto",
    tell: Callable[[str], None] = print,
) -> None:
    """Until it is interrupted. `tell` hears the address once the page can be opened."""
    check_packages()
    token = door(host, allow_remote)
    sock = bind(host, port)  # before the models: who has to choose another port should not wait for them
    try:
        from gmt.explorer.asks import Ask
        from gmt.explorer.corpus import Corpus
        from gmt.explorer.server import listen, make_app
        from gmt.explorer.state import Explorer, read

        where = pick_device(device)
        models = [open_model(name, where, tau) for name in (model, other) if name is not None]
        for number, loaded in enumerate(models):
            read(loaded, Ask(number, "Once", ()))  # the first reading is slow, and fails without a vocabulary
        explorer = Explorer(models, None if corpus is None else Corpus(corpus, models))
        app = make_app(explorer, None if token else LOCAL_NAMES | {_bare(host)}, token)
        tell(address(host, sock.getsockname()[1], token))
        try:
            listen(app, sock)
        finally:
            explorer.close()
    finally:
        sock.close()


def check_packages() -> None:
    if any(find_spec(name) is None for name in NEEDED):
        raise GMTError("gmt explore needs fastapi, uvicorn and plotly: pip install 'graph-memory-transformer[explore]'")


def is_local(host: str) -> bool:
    """Whether only this machine can reach it. A name other than localhost may mean anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def door(host: str, allow_remote: bool) -> str | None:
    """The token that a visitor must show; None where only this machine can visit."""
    if is_local(host):
        return None
    if not allow_remote:
        raise GMTError(
            f"{host} can be reached from other machines: add --allow-remote to let them in, each with a token"
        )
    return secrets.token_urlsafe(24)


def bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise GMTError(f"a port is a number from 0 to 65535, not {port}")
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(where[0]), port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise GMTError(f"cannot listen on {host}, port {port}: {reason}; try another with --port") from None


def address(host: str, port: int, token: str | None) -> str:
    """What to open; a machine that listens on all its addresses is called by its name."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else _bare(host)
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _bare(host: str) -> str:
    """As it stands in an address."""
    return f"[{host}]" if ":" in host else host.lower()
