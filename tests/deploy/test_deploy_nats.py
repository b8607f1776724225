"""deploy/nats/nats.conf on a real server: every service may do what it needs, and the audit finds
nothing that it may do beyond that. That nothing is missing or unused is shown by
test_deploy_rights.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from deploy.audit import PUBLISHERS, SUBSCRIBERS, USERS, Audit
from services.runtime.config.base import read_secret
from tests.deploy.deployed import DeployedNats
from tests.kit.waiting import LIMIT_S


@pytest.fixture(scope="module")
def server(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedNats]:
    deployed = DeployedNats(nats_binary, tmp_path_factory.mktemp("deploy"))
    deployed.make_buckets()
    yield deployed
    deployed.kill()


@pytest.mark.parametrize("name", USERS)
async def test_a_user_may_do_what_its_service_needs(server: DeployedNats, name: str) -> None:
    publish = [subject for subject, users in PUBLISHERS.items() if name in users]
    subscribe = [subject for subject, users in SUBSCRIBERS.items() if name in users]
    async with Audit(server.url, server.secrets).user(name) as user:
        for subject in publish:
            if not subject.startswith("$JS.API.STREAM"):  # which changes the other tests' buckets
                await user.client.publish(subject, b"")
        for subject in subscribe:
            await user.client.subscribe(subject)
        assert await user.refused() == set()


async def test_no_user_may_do_more(server: DeployedNats) -> None:
    assert await Audit(server.url, server.secrets).run() == []


def with_rights_too_many(conf: str) -> str:
    conf = conf.replace('"tw.v2.tok.*", ', '"tw.v2.tok.*", "$JS.API.STREAM.UPDATE.*", ', 1)
    inbox = '"_INBOX_worker.*.*"'
    return conf.replace(
        f'"tw.*.beat.*.*", {inbox}', f'"tw.*.beat.*.*", {inbox}, "_INBOX_frontend.>"'
    )


async def test_the_audit_finds_rights_too_many(nats_binary: str, tmp_path: Path) -> None:
    deployed = DeployedNats(nats_binary, tmp_path, change=with_rights_too_many)
    deployed.make_buckets()
    try:
        found = await Audit(deployed.url, deployed.secrets).run()
    finally:
        deployed.kill()
    assert "worker may publish on $JS.API.STREAM.UPDATE.KV_tw_ledger" in found
    assert "worker may subscribe to _INBOX_frontend.>" in found


async def test_connections_need_a_password_and_may_send_8_mib(server: DeployedNats) -> None:
    patient: Any = {"allow_reconnect": False, "connect_timeout": LIMIT_S}
    for wrong in ({}, {"user": "frontend", "password": "guess"}, {"user": "admin", "password": ""}):
        with pytest.raises(nats.errors.Error):
            await nats.connect(server.url, **patient, **wrong)
    password = read_secret(server.password_file("tap"))
    client = await nats.connect(server.url, user="tap", password=password)
    assert client.max_payload == 8 * 1024 * 1024
    await client.close()
