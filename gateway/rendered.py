"""`make docs`: writes anew every file that is rendered from code. Each has a test that compares it."""

import subprocess
import sys

RENDERERS = ("gateway.settings_doc", "gateway.api.openapi", "tidegate.wire.schema", "policies.states_doc")


def main() -> int:
    """Run every renderer; the first that fails ends it."""
    for module in RENDERERS:
        code = subprocess.call([sys.executable, "-m", module])
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
