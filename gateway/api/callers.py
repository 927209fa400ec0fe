"""Who has called just now. A valid token is believed for a second without asking the ledger again.

So a revoked token is dead at once in the process that revoked it and a second later in the others. Attempts' tokens
are never kept: they die with their attempt.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from policies.vocabulary import Role

KEPT_S: Final = 1.0
_MOST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal of a tenant. An operator is the platform's: it sees every tenant."""

    principal: str
    tenant_id: int
    tenant: str
    role: Role
    token_id: UUID

    @property
    def everywhere(self) -> bool:
        """Whether no tenant is hidden from this caller."""
        return self.role >= Role.OPERATOR

    def sees(self, path: str) -> bool:
        """Whether `path` is the caller's tenant or lies below it."""
        return self.everywhere or path == self.tenant or path.startswith(self.tenant + "/")


class Callers:
    """By the digest of the token. Safe from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._lock = threading.Lock()
        self._kept: dict[bytes, tuple[float, Caller]] = {}
        self._not_before = float("-inf")

    def recent(self, digest: bytes) -> Caller | None:
        """Whose token it was less than a second ago."""
        kept = self._kept.get(digest)
        return kept[1] if kept is not None and self.now() - kept[0] < KEPT_S else None

    def keep(self, digest: bytes, caller: Caller, read_at: float) -> None:
        """Believe it from the moment at which the ledger was asked."""
        with self._lock:
            if read_at < self._not_before:
                return
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[digest] = (read_at, caller)

    def forget(self) -> None:
        """Something about tokens or tenants was changed and is committed."""
        with self._lock:
            self._not_before = self.now()
            self._kept = {}
