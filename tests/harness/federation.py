"""A small federation written straight into the tables, with a token per principal."""

import secrets
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from sqlalchemy import Engine
from sqlmodel import Session

from gateway.api.auth import digest
from gateway.ledger.tables.access import ClassAllowance, Storage, Tenant, Token
from gateway.ledger.tables.capacity import BackendRow, Flavor, NodeRow, Pool, QuotaRow
from gateway.ledger.tables.work import AttemptRow, JobRow
from policies.vocabulary import Role

GIB = 1 << 30
TENANTS = ("acme", "acme/nlp", "acme/vision", "other")
PRINCIPALS = {
    "root": ("acme", Role.OPERATOR),
    "acme-admin": ("acme", Role.TENANT_ADMIN),
    "nlp-admin": ("acme/nlp", Role.TENANT_ADMIN),
    "nlp": ("acme/nlp", Role.SUBMITTER),
    "nlp-viewer": ("acme/nlp", Role.VIEWER),
    "vision": ("acme/vision", Role.SUBMITTER),
    "other": ("other", Role.SUBMITTER),
    "other-admin": ("other", Role.TENANT_ADMIN),
}


@dataclass
class Federation:
    engine: Engine
    tenants: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    token_ids: dict[str, UUID] = field(default_factory=dict)

    @classmethod
    def made(cls, engine: Engine) -> "Federation":
        made = cls(engine)
        with Session(engine) as session, session.begin():
            for path in TENANTS:
                row = Tenant(path=path, parent_id=made.tenants.get(path.rpartition("/")[0]))
                session.add(row)
                session.flush()
                assert row.id is not None
                made.tenants[path] = row.id
            made._capacity(session)
            for principal, (path, role) in PRINCIPALS.items():
                made._token(session, principal, path, role)
        return made

    def _token(self, session: Session, principal: str, path: str, role: Role) -> None:
        secret = "tg_" + secrets.token_urlsafe(24)
        row = Token(
            id=uuid4(), digest=digest(secret), tenant_id=self.tenants[path], principal=principal, role=int(role)
        )
        session.add(row)
        self.tokens[principal], self.token_ids[principal] = secret, row.id

    def _capacity(self, session: Session) -> None:
        acme = self.tenants["acme"]
        session.add(Flavor(name="h100", accelerator="H100", accelerator_memory=80 * GIB, price=3_500_000))
        session.add(Flavor(name="h100-spot", accelerator="H100", capacity_type="spot", price=1_200_000))
        session.add(BackendRow(name="cluster", kind="fake", config={"secret_reference": "vault/cluster"}))
        session.flush()
        for pool, flavor in (("steady", "h100"), ("spot", "h100-spot")):
            session.add(Pool(name=pool, backend="cluster", flavor=flavor))
            session.flush()
            session.add(
                NodeRow(pool=pool, name="n", count=4, accelerators=8000, cpus=64_000, memory=512 * GIB, disk=GIB)
            )
        for path, least in (("acme", 32_000), ("acme/nlp", 16_000), ("acme/vision", 8_000)):
            tenant = self.tenants[path]
            session.add(
                QuotaRow(
                    tenant_id=tenant, flavor="h100", resource="accelerators", min=least, max=32_000, lendable=least
                )
            )
        session.add(Storage(tenant_id=acme, name="main", scheme="s3", prefix="s3://ckpt/acme"))
        session.add(ClassAllowance(tenant_id=self.tenants["acme/vision"], klass="P1", gpu_ms=3_600_000_000))

    def attempt(self, job_id: str, number: int = 1, *, state: str = "RUNNING") -> str:
        """An attempt of a job, and the token it speaks with (by its id in `tokens`)."""
        with Session(self.engine) as session, session.begin():
            job = session.get(JobRow, UUID(job_id))
            assert job is not None
            attempt_id = f"tg-{UUID(job_id).hex}-{number}"
            session.add(
                AttemptRow(
                    id=attempt_id, job_id=job.id, number=number, state=state, lease_id=uuid4(), handles={"cluster": "x"}
                )
            )
            job.attempts += 1
            secret = "tga_" + secrets.token_urlsafe(24)
            session.add(
                Token(
                    id=uuid4(),
                    digest=digest(secret),
                    tenant_id=job.tenant_id,
                    principal=attempt_id,
                    role=int(Role.VIEWER),
                    attempt_id=attempt_id,
                )
            )
            self.tokens[attempt_id] = secret
        return attempt_id


def job(name: str = "train", **more: object) -> dict[str, object]:
    """A job body that is accepted."""
    return {"name": name, "run": "true", "resources": {"accelerators": "H100:1"}, **more}
