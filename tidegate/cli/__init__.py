"""The command line: reads files and flags, calls the client, prints. Every verb takes `--json`."""
