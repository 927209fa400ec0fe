"""`tidegate quota`, `grant` and `budget` against the real API."""

import json

import pytest

from tests.api.conftest import Client
from tests.api.test_operators_verbs import Ran, ran

__all__ = ["ran"]  # the fixture, for this module too
QUOTA = ("quota", "set", "acme/nlp", "h100")


def test_quota_set_changes_what_is_named_and_leaves_the_rest(ran: Ran, as_: Client) -> None:
    code, out, _ = ran("root", *QUOTA, "--max", "24")
    assert (code, out) == (0, "acme/nlp h100 accelerators: min 16, max 24, lendable 16\n")
    code, out, _ = ran("root", *QUOTA, "--lendable", "4", "--json")
    assert (code, json.loads(out)["max"], json.loads(out)["lendable"]) == (0, "24", "4")
    code, out, _ = ran("root", "quota", "set", "other", "h100", "--resource", "jobs", "--max", "7", "--json")
    assert (code, json.loads(out)["max"], json.loads(out)["min"]) == (0, "7", "0")
    code, out, _ = ran("root", "quota", "set", "other", "h100", "--resource", "jobs", "--max", "none")
    assert (code, "max none" in out) == (0, True)
    assert len(as_("root").get("/v1/audit").json()["items"]) == 4


def test_quota_lists_as_before_with_what_is_direct_use(ran: Ran) -> None:
    code, out, _ = ran("nlp", "quota", "--json")
    assert (code, [(q["tenant"], q["observed"]) for q in json.loads(out)]) == (0, [("acme/nlp", "0")])
    code, out, _ = ran("nlp", "quota")
    assert (code, "DIRECT" in out, "acme/nlp" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("who", "arguments", "code", "word"),
    [
        ("root", QUOTA, 64, "--min"),
        ("root", (*QUOTA, "--max", "99"), 65, "at most 32"),
        ("nlp-admin", (*QUOTA, "--max", "9"), 65, "role"),
        ("root", ("grant", "revoke", "999"), 65, "grant"),
        ("root", ("grant", "create", "acme", "h100", "--days", "x"), 64, "--days"),
        ("root", ("grant", "create", "acme", "nothing", "--max", "1"), 65, "flavor"),
        ("root", ("budget", "set", "acme", "much"), 65, "amount"),
        ("root", ("budget", "set", "acme", "5", "--period", "soon"), 64, "--period"),
        ("root", ("budget", "delete", "acme"), 65, "budget"),
        ("nlp-admin", ("budget", "set", "acme/nlp", "5"), 65, "role"),
    ],
)
def test_refusals_have_words_and_codes(ran: Ran, who: str, arguments: tuple[str, ...], code: int, word: str) -> None:
    found, out, err = ran(who, *arguments)
    assert (found, out) == (code, ""), err
    assert word in err


def test_a_grant_is_made_listed_and_revoked(ran: Ran, as_: Client) -> None:
    code, out, _ = ran(
        *("root", "grant", "create", "acme/nlp", "h100", "--max", "8", "--min=-4", "--until", "2099-01-31"),
        *("--days", "0,1", "--between", "08:00-20:00", "--cause", "a paper", "--protected"),
    )
    assert code == 0
    (made,) = as_("nlp").get("/v1/grants").json()["items"]
    assert out == f"{made['id']}\n"
    assert (made["delta_min"], made["delta_max"], made["reclaimable"], made["cause"]) == ("-4", "8", False, "a paper")
    assert made["recurrence"] == {"days": [0, 1], "from": "08:00", "until": "20:00"}
    assert made["ends_at"].startswith("2099-01-31T00:00:00")
    code, out, _ = ran("nlp", "grant", "list", "--json")
    assert (code, [g["id"] for g in json.loads(out)]) == (0, [made["id"]])
    assert ran("nlp", "grant", "list")[1].count("acme/nlp") == 1
    code, out, _ = ran("root", "grant", "revoke", str(made["id"]))
    assert (code, out) == (0, f"{made['id']} revoked\n")
    assert as_("nlp").get("/v1/grants").json()["items"][0]["revoked_at"] is not None


def test_a_budget_is_set_shown_changed_and_deleted(ran: Ran) -> None:
    code, out, _ = ran("root", "budget", "set", "acme/nlp", "2500.50", "--unit", "dollars", "--period", "7d")
    assert (code, out.startswith("acme/nlp: 2500.5 dollars, 2500.5 left until ")) == (0, True)
    code, out, _ = ran("root", "budget", "set", "acme/nlp", "3000", "--unit", "dollars", "--json")
    assert (code, json.loads(out)["amount"], json.loads(out)["period"]) == (0, "3000", "7d")
    code, out, _ = ran("nlp", "budget", "--json")
    assert (code, [(b["tenant"], b["left"]) for b in json.loads(out)]) == (0, [("acme/nlp", "3000")])
    assert "3000" in ran("nlp", "budget")[1]
    code, out, _ = ran("root", "budget", "delete", "acme/nlp", "--unit", "dollars", "--json")
    assert (code, json.loads(out)["deleted"]) == (0, True)
    assert json.loads(ran("nlp", "budget", "--json")[1]) == []
