"""The peer of the submit row: a bare handler that parses the same body and does one transaction on the same database.

`python -m bench.bare PORT`, with the database's URL in TIDEGATE_DATABASE_URL.
"""

import os
import sys
import uuid

import uvicorn
from fastapi import FastAPI
from sqlalchemy import text

from gateway.ledger.engine import make_engine
from tidegate.wire.spec import JobSpec

MAKE = "CREATE TABLE IF NOT EXISTS bare (id uuid PRIMARY KEY, body jsonb NOT NULL)"
INSERT = text("INSERT INTO bare (id, body) VALUES (:id, CAST(:body AS jsonb))")


def app(url: str) -> FastAPI:
    """One route, one transaction."""
    engine = make_engine(url, app_role=False)
    with engine.begin() as connection:
        connection.execute(text(MAKE))
    bare = FastAPI()

    @bare.post("/jobs", status_code=202)
    def submit(spec: JobSpec) -> dict[str, str]:
        job = uuid.uuid4()
        with engine.begin() as connection:
            connection.execute(INSERT, {"id": job, "body": spec.model_dump_json()})
        return {"id": str(job)}

    return bare


if __name__ == "__main__":
    uvicorn.run(app(os.environ["TIDEGATE_DATABASE_URL"]), port=int(sys.argv[1]), log_level="warning", access_log=False)
