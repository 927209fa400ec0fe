"""A receiver of webhooks: a real TLS server on this machine, which notes what it gets and answers as it is told.

Its certificate (for hooks.test and other.test) is signed by `tls/authority.pem`, which nothing but tests trusts.
"""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TLS = Path(__file__).parent / "tls"
AUTHORITY = TLS / "authority.pem"


@dataclass
class Delivery:
    """One request as it came. `address`: the one of ours that the sender connected to."""

    path: str
    headers: dict[str, str]
    body: bytes
    address: str


@dataclass
class Receiver:
    """`answers` by path: a status, with a Location for 3xx; 0: nothing for ever; -1: no HTTP at all. Else 204."""

    port: int = 0
    got: list[Delivery] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str = "/hook", host: str = "hooks.test") -> str:
        return f"https://{host}:{self.port}{path}"


@contextmanager
def receiving() -> Iterator[Receiver]:
    """The server on all of this machine's loopback addresses, ended afterwards."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = self.path.partition("?")[0]
            address = self.connection.getsockname()[0]
            receiver.got.append(Delivery(self.path, dict(self.headers.items()), body, address))
            answer = receiver.answers.get(path, 204)
            if answer == 0:
                receiver.stop.wait(30)
                return
            if answer < 0:
                self.wfile.write(b"SSH-2.0-nothing\r\n")
                return
            self.send_response(answer)
            if 300 <= answer < 400:
                self.send_header("Location", receiver.url("/elsewhere"))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Tests read `got`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.stop.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def closed_port() -> int:
    """A port that nobody listens on (right now)."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_port


__all__ = ["AUTHORITY", "Delivery", "Receiver", "closed_port", "receiving"]
