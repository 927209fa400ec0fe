"""The HTTP API: FastAPI routes over the ledger and `gateway.queries`. Decides nothing about who may run."""
