"""What went wrong at a backend, typed by what the caller may do next. Each client maps vendor errors once, by a table.

No message may carry a token, a password or the value of a secret.
"""


class BackendError(Exception):
    """Base of all; never raised itself. The message is for people and names the backend."""


class Refused(BackendError):
    """Nothing happened and nothing was left behind: give the lease back. `reason` is a stable token.

    `permanent` says that the same request will be refused everywhere (a parameter of the job itself).
    """

    def __init__(self, message: str, *, reason: str, permanent: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.permanent = permanent


class NoCapacity(Refused):
    """Refused because there is none now: try the next pool, rest this one."""

    def __init__(self, message: str, *, reason: str = "NoCapacity") -> None:
        super().__init__(message, reason=reason)


class OutcomeUnknown(BackendError):
    """The act may or may not have happened: repeat it with the same key, or find(key)."""


class Unreachable(BackendError):
    """Nothing was asked and nothing happened: state stays as last known."""


class Throttled(BackendError):
    """Asked too often: the same call again after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Misconfigured(BackendError):
    """Only an operator can mend it (credentials, permission, a missing partition): the pool closes, jobs wait."""


class InvalidSettings(Misconfigured):
    """Settings that their kind cannot read. `problems`: (place in the settings, what is wrong), never with a value."""

    def __init__(self, message: str, *, problems: tuple[tuple[tuple[str | int, ...], str], ...]) -> None:
        super().__init__(message)
        self.problems = problems


class TenantNotServed(Misconfigured):
    """Misconfigured for this tenant alone: no pool closes, since others are served on.

    The job stays away from this backend until an operator changes its document. The message names the remedy.
    """
