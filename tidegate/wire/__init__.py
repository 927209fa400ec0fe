"""The words on the wire: one source for server, SDK, CLI and JSON Schema. Imports nothing else of ours."""
