"""The first operator's token of a fresh ledger, so that somebody can begin. Does nothing once any operator exists."""

import hashlib
import uuid

from sqlalchemy import select
from sqlmodel import Session, col

from gateway.ledger.engine import make_engine
from gateway.ledger.tables.access import Tenant, Token
from policies.vocabulary import Role

HOME = "operators"


def first_operator(database_url: str, secret: str) -> bool:
    """Store the digest of `secret` as an operator's token in a tenant of its own; False if it was there already."""
    engine = make_engine(database_url)
    try:
        with Session(engine) as session, session.begin():
            digest = hashlib.sha256(secret.encode()).digest()
            if session.scalars(select(Token).where(col(Token.digest) == digest)).first():
                return False
            tenant = session.scalars(select(Tenant).where(col(Tenant.path) == HOME)).first()
            if tenant is None:
                tenant = Tenant(path=HOME)
                session.add(tenant)
                session.flush()
            assert tenant.id is not None
            session.add(
                Token(
                    id=uuid.uuid4(),
                    digest=digest,
                    tenant_id=tenant.id,
                    principal="operator",
                    role=int(Role.OPERATOR),
                    note="made by the embedded stack",
                )
            )
            return True
    finally:
        engine.dispose()
