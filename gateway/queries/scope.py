"""The subtree that a caller may see, as SQL. Every read of the API goes through here."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_, select, true
from sqlalchemy.orm import Session
from sqlmodel import col

from gateway.ledger.tables.access import Tenant


@dataclass(frozen=True, slots=True)
class Scope:
    """A tenant with all below it; `path=None` is the whole federation."""

    path: str | None

    def where(self) -> ColumnElement[bool]:
        """A condition on `tenants`."""
        if self.path is None:
            return true()
        # Paths hold [a-z0-9-/] alone, so there is nothing to escape for LIKE.
        return or_(col(Tenant.path) == self.path, col(Tenant.path).like(self.path + "/%"))

    def holds(self, path: str) -> bool:
        """The same for one path."""
        return self.path is None or path == self.path or path.startswith(self.path + "/")

    def narrowed(self, path: str | None) -> "Scope | None":
        """The part of this scope below `path`; None when `path` lies outside it."""
        if path is None:
            return self
        return Scope(path) if self.holds(path) else None


def lineage(path: str) -> tuple[str, ...]:
    """The path and its ancestors, the root first."""
    parts = path.split("/")
    return tuple("/".join(parts[: n + 1]) for n in range(len(parts)))


def tenant_id(session: Session, scope: Scope, path: str) -> int | None:
    """The id behind a visible path."""
    if not scope.holds(path):
        return None
    return session.execute(select(col(Tenant.id)).where(col(Tenant.path) == path)).scalar_one_or_none()
