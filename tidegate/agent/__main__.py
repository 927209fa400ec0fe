"""`python -m tidegate.agent` and the zipapp begin here."""

from tidegate.agent.main import main

if __name__ == "__main__":
    raise SystemExit(main())
