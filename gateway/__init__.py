"""The gate itself: HTTP API, ledger, embedded stack and the one composition root (`gateway.bootstrap`)."""
