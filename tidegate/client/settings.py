"""Where the gate is and who we are: arguments first, then the environment, then `~/.config/tidegate/config.yaml`.

Reads files and environment only when called. A token never appears in a repr or in an error.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from pydantic import SecretStr

from tidegate.client.errors import ConfigError

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_KEYS: Final = frozenset({"url", "token", "token_file"})


@dataclass(frozen=True, slots=True)
class Access:
    """A gate's URL and the token for it."""

    url: str
    token: SecretStr | None = field(default=None, repr=False)


def access(url: str | None = None, token: str | None = None, env: Mapping[str, str] | None = None) -> Access:
    """What to call and with which token. ConfigError says what is wrong and where to mend it."""
    env = os.environ if env is None else env
    found = url or env.get("TIDEGATE_URL")
    secret = token or env.get("TIDEGATE_TOKEN") or _from_file(env.get("TIDEGATE_TOKEN_FILE"))
    # The file is opened only for what is still missing: a pipeline that says both needs no home folder in order.
    saved = {} if found and secret else _config_file(config_path(env))
    found = found or str(saved.get("url") or DEFAULT_URL)
    secret = secret or str(saved.get("token") or "") or _from_file(saved.get("token_file"))
    return Access(_checked_url(found), SecretStr(_checked_token(secret)) if secret else None)


def config_path(env: Mapping[str, str]) -> Path:
    """The user's file; `TIDEGATE_CONFIG` names another."""
    if named := env.get("TIDEGATE_CONFIG"):
        return Path(named)
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "tidegate" / "config.yaml"


def _config_file(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1 << 16)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        said = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError):
        # `from None`: a YAML error quotes the line, and the line may be the token.
        raise ConfigError(f"{path} is no YAML; write `url: ...` and `token: ...`") from None
    if said is None:
        return {}
    if not isinstance(said, dict) or not said.keys() <= _KEYS:
        raise ConfigError(f"{path}: only {', '.join(sorted(_KEYS))} may stand in it")
    if said.get("token") and stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path} holds a token and others may read it; run: chmod 600 {path}")
    return said


def _from_file(name: object) -> str:
    if not name:
        return ""
    path = Path(str(name)).expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {type(error).__name__}") from error


def _checked_url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigError("the URL of the gate is no URL; give one like https://tidegate.example.org") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError("the URL of the gate must begin with https:// or http:// and name a host")
    if url.userinfo or url.query or url.fragment:
        raise ConfigError("the URL of the gate holds a user, query or fragment; take it away and give the token apart")
    return str(url).rstrip("/")


def _checked_token(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("the token contains a space, line break or letter that no token has; copy it again")
    return token
