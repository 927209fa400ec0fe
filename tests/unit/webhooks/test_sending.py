"""DESIGN §8, Webhooks, against a real TLS server: whom a delivery reaches, what it carries, and what it does not do."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.webhooks.addresses import may_reach, networks
from gateway.webhooks.signing import secret_of
from tests.harness.receiver import Receiver, closed_port
from tests.unit.webhooks.conftest import KEY, MakeSender
from tidegate.webhook import verify
from workflows.activities.webhooks import UndeliveredError

SECRET_PATH = "/hook/s3cr3t-in-the-path"


def data(url: str, **body: Any) -> dict[str, Any]:
    return {"url": url, "tenant": "acme/nlp", "body": {"id": "d-1", "type": "job.SUCCEEDED", **body}}


def refused(sender: Any, url: str) -> UndeliveredError:
    with pytest.raises(UndeliveredError) as found:
        asyncio.run(sender(data(url)))
    return found.value


def test_a_delivery_arrives_signed_over_time_and_body(receiver: Receiver, sender: MakeSender) -> None:
    asyncio.run(sender()(data(receiver.url("/hook?x=1"), job={"name": "名前"})))
    (got,) = receiver.got
    assert got.path == "/hook?x=1"
    assert json.loads(got.body)["job"] == {"name": "名前"}
    assert got.headers["Tidegate-Delivery"] == "d-1"
    secret = secret_of(KEY, "acme/nlp")
    assert verify(secret, got.headers, got.body)
    assert not verify(secret_of(KEY, "acme/vision"), got.headers, got.body), (
        "another tenant's secret signs nothing here"
    )
    assert not verify(secret, got.headers, got.body + b" ")
    assert not verify(secret, {**got.headers, "Tidegate-Time": str(int(time.time()) + 1)}, got.body)
    old = int(time.time()) - 301
    assert not verify(secret, {**got.headers, "Tidegate-Time": str(old)}, got.body)


@pytest.mark.parametrize("path", ["/", "/moved"])
def test_a_redirect_is_not_followed(receiver: Receiver, sender: MakeSender, path: str) -> None:
    receiver.answers[path] = 307
    error = refused(sender(), receiver.url(path))
    assert "redirects are not followed" in str(error)
    assert [got.path for got in receiver.got] == [path]


def test_a_private_address_is_refused_unless_its_network_is_allowed(receiver: Receiver, sender: MakeSender) -> None:
    for allow in ((), ("10.0.0.0/8",), ("127.0.0.2/32",)):
        error = refused(sender(allow=allow), receiver.url())
        assert "not on the public Internet" in str(error)
    assert receiver.got == []
    asyncio.run(sender(allow=("127.0.0.1/32",))(data(receiver.url())))
    assert len(receiver.got) == 1


def test_a_name_is_resolved_once_and_that_address_is_connected_to(receiver: Receiver, sender: MakeSender) -> None:
    """DNS rebinding: the second answer would be another, forbidden one; nobody asks for it."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    one = sender(allow=("127.0.0.1/32",), resolve=rebinding)
    asyncio.run(one(data(receiver.url())))
    assert (asked, [got.address for got in receiver.got]) == (["hooks.test"], ["127.0.0.1"])
    assert "not on the public Internet" in str(refused(one, receiver.url())), "at the next delivery it is judged anew"
    assert len(receiver.got) == 1


def test_of_several_addresses_only_one_that_may_be_reached_is_used(receiver: Receiver, sender: MakeSender) -> None:
    async def mixed(host: str, port: int) -> Sequence[str]:
        return ["10.1.2.3", "::1", "127.0.0.1"]

    asyncio.run(sender(allow=("127.0.0.1/32",), resolve=mixed)(data(receiver.url())))
    assert [got.address for got in receiver.got] == ["127.0.0.1"]


def test_a_receiver_that_never_answers_costs_no_more_than_its_time(receiver: Receiver, sender: MakeSender) -> None:
    receiver.answers["/hook"] = 0
    began = time.monotonic()
    assert "no answer within 0.5 s" in str(refused(sender(timeout_s=0.5), receiver.url()))
    assert time.monotonic() - began < 5


def test_a_name_server_that_hangs_costs_no_more_either(receiver: Receiver, sender: MakeSender) -> None:
    async def hangs(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(60)
        return []

    assert "no answer within" in str(refused(sender(timeout_s=0.2, resolve=hangs), receiver.url()))


def test_a_certificate_of_nobody_we_trust_or_of_another_name_is_refused(receiver: Receiver, sender: MakeSender) -> None:
    assert "TLS failed" in str(refused(sender(ca_file=None), receiver.url()))
    assert "TLS failed" in str(refused(sender(), receiver.url(host="stranger.test")))
    assert receiver.got == []


@pytest.mark.parametrize(("status", "final"), [(400, False), (404, False), (410, True), (429, False), (500, False)])
def test_what_is_no_success_is_told_and_only_gone_is_final(
    receiver: Receiver, sender: MakeSender, status: int, *, final: bool
) -> None:
    receiver.answers["/hook"] = status
    error = refused(sender(), receiver.url())
    assert (str(error), error.final) == (f"answered {status}", final)


def test_no_http_and_no_listener_are_told_and_no_error_shows_the_url(receiver: Receiver, sender: MakeSender) -> None:
    receiver.answers[SECRET_PATH] = -1
    one = sender(timeout_s=2)
    errors = [
        refused(one, receiver.url(SECRET_PATH)),
        refused(one, f"https://hooks.test:{closed_port()}{SECRET_PATH}"),
        refused(one, f"http://hooks.test:{receiver.port}{SECRET_PATH}"),
        refused(sender(allow=()), receiver.url(SECRET_PATH)),
    ]
    for error in errors:
        assert "s3cr3t" not in str(error)
        assert "hooks.test" not in str(error)
    assert secret_of(KEY, "acme") not in repr(one)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not may_reach(address, ())


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address: str) -> None:
    assert may_reach(address, ())


def test_an_allowed_network_is_reached_by_no_way_around() -> None:
    allowed = networks(("10.0.0.0/8", "fd00::/8"))
    assert may_reach("10.1.2.3", allowed)
    assert may_reach("::ffff:10.1.2.3", allowed)
    assert may_reach("fd12::1", allowed)
    assert not may_reach("192.168.0.1", allowed)
