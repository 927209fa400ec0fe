"""One audit row per change by an operator or a tenant's admin, in the transaction of the change itself."""

from typing import Any

from sqlalchemy.orm import Session

from gateway.ledger.tables.access import Audit


def record(
    session: Session,
    *,
    principal: str,
    action: str,
    target: str,
    tenant_id: int | None = None,
    reason: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Append it; never a secret in `before` or `after`."""
    session.add(
        Audit(
            principal=principal,
            tenant_id=tenant_id,
            action=action,
            target=target,
            reason=reason,
            before=before,
            after=after,
        )
    )
