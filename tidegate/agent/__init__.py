"""The node agent: one process per instance. README.md beside this file is its contract. Standard library only."""
