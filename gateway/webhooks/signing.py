"""The key that signs a tenant's webhooks, and the signature: HMAC-SHA256 over time and body."""

import hashlib
import hmac

from gateway.settings import Settings


def key_of(settings: Settings) -> bytes:
    """The gate's key; the same in every replica, since all of them have the same setting or database."""
    given = settings.webhook_key or settings.database_url
    return hashlib.sha256(b"tidegate webhooks " + given.get_secret_value().encode()).digest()


def secret_of(key: bytes, tenant: str) -> str:
    """A tenant's own secret, made of the gate's key: nothing is stored, and none follows from another's."""
    return "whs_" + hmac.new(key, b"tidegate webhook " + tenant.encode(), hashlib.sha256).hexdigest()


def signature(secret: str, at: int, body: bytes) -> str:
    """What `tidegate.webhook.verify` checks."""
    return "v1=" + hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
