"""Activities: what workflows decide, done. Nothing here is global; stores and backends are injected."""
