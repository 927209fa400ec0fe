"""The embedded stack: real PostgreSQL and Temporal from wheels, the gateway and a worker, on this machine."""
