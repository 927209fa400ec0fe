"""The ledger: accounts, leases, states and events in PostgreSQL. Knows no HTTP and no Temporal."""
