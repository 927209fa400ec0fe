"""A tenant and everything above it: use counts at each of these levels."""

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class Level:
    """One tenant of a path."""

    id: int
    path: str

    def holds(self, path: str) -> bool:
        """Whether `path` is this tenant or lies below it."""
        return path == self.path or path.startswith(f"{self.path}/")


_LINEAGE = text(
    """
    SELECT above.id, above.path FROM tenants me
    JOIN tenants above ON above.path = me.path OR starts_with(me.path, above.path || '/')
    WHERE me.id = :id ORDER BY length(above.path)
    """
)


def lineage(session: Session, tenant_id: int) -> tuple[Level, ...]:
    """The levels, root first, read once in a session. LookupError when there is no such tenant."""
    known: dict[int, tuple[Level, ...]] = session.info.setdefault("lineage", {})
    if tenant_id in known:
        return known[tenant_id]
    found = tuple(Level(row.id, row.path) for row in session.execute(_LINEAGE, {"id": tenant_id}))
    if not found:
        raise LookupError(f"no tenant with id {tenant_id}")
    known[tenant_id] = found
    return found
