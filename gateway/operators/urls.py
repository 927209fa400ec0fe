"""Whether a URL that a job names lies under a storage that operators allow. Text only: nothing is opened."""

import posixpath
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

_UNSAFE: Final = re.compile(r"[\x00-\x20\x7f\\]|%(?:2[eEfF]|5[cC]|00)")


def normalise(url: str) -> str:
    """One spelling per place: scheme and host in lower case, `.` and `..` and doubled slashes resolved.

    A plain absolute path is `file://`. ValueError says what is not allowed.
    """
    if _UNSAFE.search(url):
        raise ValueError("a storage URL has no spaces, control characters, backslashes or encoded dots and slashes")
    if url.startswith("/"):
        url = "file://" + url
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from error
    if not parts.scheme or "://" not in url:
        raise ValueError("a storage URL starts with a scheme, for example s3://bucket/prefix")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a storage URL carries no credentials; operators keep them with the storage")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError("a storage URL has no query and no fragment")
    path = posixpath.normpath("/" + parts.path.lstrip("/"))
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{path}".rstrip("/")


def scheme_of(url: str) -> str:
    """The scheme of a normalised URL."""
    return url.partition("://")[0]


def under(url: str, prefixes: Iterable[str]) -> bool:
    """Whether the normalised `url` is one of the normalised `prefixes` or below it, at a slash."""
    return any(url == prefix or url.startswith(prefix + "/") for prefix in prefixes)
