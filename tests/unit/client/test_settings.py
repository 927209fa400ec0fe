"""Where URL and token come from, in which order, and what is refused."""

from pathlib import Path

import pytest

from tidegate.client.errors import ConfigError
from tidegate.client.settings import DEFAULT_URL, access

SECRET = "tg_secret"


def saved(home: Path, text: str, mode: int = 0o600) -> dict[str, str]:
    path = home / ".config" / "tidegate" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(mode)
    return {"HOME": str(home)}


def token_of(env: dict[str, str], **given: str) -> str | None:
    found = access(env=env, **given).token
    return found.get_secret_value() if found else None


def test_arguments_come_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    env = saved(tmp_path, f"url: https://file.example\ntoken: {SECRET}\n")
    assert access(env=env).url == "https://file.example"
    assert token_of(env) == SECRET
    env |= {"TIDEGATE_URL": "https://env.example/", "TIDEGATE_TOKEN": "from-env"}
    assert access(env=env).url == "https://env.example"
    assert token_of(env) == "from-env"
    assert access("https://given.example", "given", env).url == "https://given.example"
    assert token_of(env, token="given") == "given"


def test_the_file_is_not_opened_when_the_environment_says_it_all(tmp_path: Path) -> None:
    env = saved(tmp_path, "token: [broken", mode=0o644)
    assert token_of(env | {"TIDEGATE_URL": "https://x", "TIDEGATE_TOKEN": "t"}) == "t"


def test_a_token_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    assert token_of({"HOME": str(tmp_path), "TIDEGATE_TOKEN_FILE": str(tmp_path / "token")}) == SECRET
    with pytest.raises(ConfigError, match="token file"):
        access(env={"HOME": str(tmp_path), "TIDEGATE_TOKEN_FILE": str(tmp_path / "none")})


def test_nothing_configured_means_the_embedded_gate_without_a_token(tmp_path: Path) -> None:
    found = access(env={"HOME": str(tmp_path)})
    assert (found.url, found.token) == (DEFAULT_URL, None)


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    env = saved(tmp_path, f"token: {SECRET}\n", mode=0o644)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        access(env=env)
    assert SECRET not in str(caught.value)


def test_a_file_without_a_token_may_be_read_by_all(tmp_path: Path) -> None:
    assert access(env=saved(tmp_path, "url: https://a.example\n", mode=0o644)).url == "https://a.example"


@pytest.mark.parametrize("text", ["token: [", "tokens: x", "- a", f"token: {SECRET}\n  bad: : :"])
def test_a_broken_file_is_refused_without_showing_what_is_in_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        access(env=saved(tmp_path, text))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    ["example.org", "ftp://x", "https://user:pw@x", "https://x/?token=1", "https://x/#a", "https://", "http://[::1"],
)
def test_a_url_that_cannot_be_meant_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        access(url, env={"HOME": str(tmp_path)})


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "näme", "x\r\nHost: evil"])
def test_a_token_with_letters_that_no_token_has_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(ConfigError, match="copy it again") as caught:
        access("http://x", token, {"HOME": str(tmp_path)})
    assert token not in str(caught.value)


def test_a_repr_shows_no_token(tmp_path: Path) -> None:
    assert SECRET not in repr(access("http://x", SECRET, {"HOME": str(tmp_path)}))
