"""One delivery: resolved once and connected to that very address, TLS to the name, no redirect, five seconds in all.

The URL is a user's: its text is in no error and no log, and no answer's text is read beyond its status line.
"""

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from gateway.webhooks.addresses import Network, may_reach, networks
from gateway.webhooks.signing import secret_of, signature
from workflows.activities.webhooks import UndeliveredError

TIMEOUT_S: Final = 5.0
GONE: Final = 410
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_MAX_LINE: Final = 8192
_RESOLVERS: Final = 16
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


def system_resolver() -> Resolve:
    """Addresses of a host, in the system's order. Its threads are its own: a name server that hangs holds up nobody."""
    threads = ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="webhook-names")

    async def resolve(host: str, port: int) -> Sequence[str]:
        look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(threads, look)
        return [str(entry[4][0]) for entry in found]

    return resolve


class Sender:
    """Delivers what `gateway.ledger.hooks` has put into the outbox."""

    def __init__(
        self,
        key: bytes,
        *,
        allow: Sequence[str] = (),
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
        resolve: Resolve | None = None,
    ) -> None:
        self._key = key
        self._allow: tuple[Network, ...] = networks(allow)
        self._tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        self._timeout_s = timeout_s
        self._resolve = resolve or system_resolver()

    def __repr__(self) -> str:
        return "Sender()"

    async def __call__(self, data: Mapping[str, Any]) -> None:
        """See `workflows.activities.webhooks.Send`."""
        parts = urlsplit(str(data["url"]))
        body = json.dumps(data["body"], sort_keys=True, separators=(",", ":")).encode()
        request = self._request(parts, str(data["tenant"]), str(data["body"]["id"]), body)
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._post(parts, request)
        except TimeoutError:
            raise UndeliveredError(f"no answer within {self._timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise UndeliveredError(f"TLS failed: {error.reason or type(error).__name__}") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise UndeliveredError(f"no connection: {type(error).__name__}") from None
        if 300 <= status < 400:  # noqa: PLR2004
            raise UndeliveredError(f"answered {status}; redirects are not followed")
        if not 200 <= status < 300:  # noqa: PLR2004
            raise UndeliveredError(f"answered {status}", final=status == GONE)

    def _request(self, parts: SplitResult, tenant: str, delivery: str, body: bytes) -> bytes:
        at = int(time.time())
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"POST {target} HTTP/1.1",
            f"Host: {parts.netloc}",
            "User-Agent: tidegate",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            f"Tidegate-Delivery: {delivery}",
            f"Tidegate-Time: {at}",
            f"Tidegate-Signature: {signature(secret_of(self._key, tenant), at, body)}",
        ]
        return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body

    async def _post(self, parts: SplitResult, request: bytes) -> int:
        host, port = parts.hostname, parts.port or 443
        if parts.scheme != "https" or not host:
            raise UndeliveredError("no https URL", final=True)
        # Asked once: what is judged here is what is connected to, whatever the name says a moment later.
        addresses = await self._resolve(host, port)
        address = next((one for one in addresses if may_reach(one, self._allow)), None)
        if address is None:
            raise UndeliveredError("its address is not on the public Internet and in no allowed network")
        reader, writer = await asyncio.open_connection(
            address, port, ssl=self._tls, server_hostname=host, limit=_MAX_LINE
        )
        try:
            writer.write(request)
            await writer.drain()
            status = _STATUS.fullmatch(await reader.readuntil(b"\n"))
        finally:
            writer.transport.abort()  # its answer's body is of no interest, and a slow goodbye costs time
        if status is None:
            raise UndeliveredError("its answer is no HTTP")
        return int(status[1])
