"""One module per resource; each has a `router` that `gateway.api.app` includes under /v1."""
