"""For receivers of webhooks: is this delivery from the gate, and of now? Standard library."""

import hashlib
import hmac
import time
from collections.abc import Mapping

__all__ = ["verify"]


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, tolerance_s: int = 300) -> bool:
    """Whether `Tidegate-Signature` is the HMAC of `Tidegate-Time`, a dot and the body, no older than `tolerance_s`.

    secret: what `GET /v1/webhooks/secret` gives for the tenant. body: the bytes as they came, before any parsing.
    """
    found = {name.lower(): value for name, value in headers.items()}
    at, given = found.get("tidegate-time", ""), found.get("tidegate-signature", "")
    if not at.isascii() or not at.isdigit() or len(at) > 12 or abs(time.time() - int(at)) > tolerance_s:  # noqa: PLR2004
        return False
    made = "v1=" + hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(made.encode(), given.encode())
