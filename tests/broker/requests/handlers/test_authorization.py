"""Every API asks for what Kafka's asks for: refused without the permissions, served with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.broker.requests.permissions import permissions
from moldau.broker.requests.registry import served_apis
from moldau.testing import Broker
from moldau.testing.ports import free_ports
from moldau.wire import apis
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.authorization_cases import (
    ADMIN_HOST,
    CASES,
    CLIENT_HOST,
    DOOMED,
    EVERYTHING,
    NO_CLUSTER,
    REFUSALS,
    SETTINGS,
    Case,
    Grant,
    T,
    controller_listener,
    error_codes,
    offset_commit,
    on_controllers,
)


class Scene:
    """A broker whose administrator may do everything, and a client that may do nothing."""

    def __init__(self, broker: Broker, asked: str) -> None:
        """`asked` is the address at which that client asks."""
        self.admin = WireClient(broker.bootstrap_servers, host=ADMIN_HOST)
        self.client = WireClient(asked, host=CLIENT_HOST)
        self.grant(*EVERYTHING, host=ADMIN_HOST)
        for name in (T, DOOMED):
            self.admin.new_topic(name=name)
        self.ids = {topic.name: topic.topic_id for topic in self.admin.ask(m.MetadataRequest(None)).topics}
        assert self.admin.produce(T, [b"one"]).error_code == 0

    def close(self) -> None:
        self.admin.close()
        self.client.close()

    def make_group(self) -> None:
        for key_type in (0, 1):  # makes the coordinators' topics
            found = self.admin.ask(m.FindCoordinatorRequest("x", key_type, ["x"])).coordinators
            assert found[0].error_code == 0
        assert error_codes(self.admin.ask(offset_commit(self.ids))) == {0}, "there is a group"

    def grant(self, *grants: Grant, host: str = CLIENT_HOST) -> None:
        answer = self.admin.ask(m.CreateAclsRequest([each.creation(host) for each in grants]))
        assert [each.error_code for each in answer.results] == [0] * len(grants)

    def revoke(self, *grants: Grant) -> None:
        answer = self.admin.ask(m.DeleteAclsRequest([each.deletion() for each in grants]))
        assert [each.error_code for each in answer.filter_results] == [0] * len(grants)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with Broker(SETTINGS) as broker:
        scene = Scene(broker, broker.bootstrap_servers)
        scene.make_group()
        yield scene
        scene.close()


@pytest.fixture(scope="module")
def controller() -> Iterator[Scene]:
    """The client asks at the controller's listener."""
    (port,) = free_ports(1)
    with Broker(SETTINGS | controller_listener(port)) as broker:
        scene = Scene(broker, f"{ADMIN_HOST}:{port}")
        yield scene
        scene.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_refused_without_and_served_with_the_permission(scene: Scene, case: Case) -> None:
    _try(scene, case)


@pytest.mark.parametrize("case", on_controllers(), ids=lambda case: case.name)
def test_controllers_refuse_without_and_serve_with_the_permission(controller: Scene, case: Case) -> None:
    _try(controller, case)


def test_controllers_show_their_log_to_nodes_and_nothing_else_to_anybody(controller: Scene) -> None:
    """Not even records that the client might read at a broker."""
    fetch = next(case for case in CASES if case.name == "fetch")
    controller.grant(*fetch.needs)
    try:
        assert error_codes(controller.client.ask(fetch.request(controller.ids), 12)) == {NO_CLUSTER}
    finally:
        controller.revoke(*fetch.needs)


def _try(scene: Scene, case: Case) -> None:
    versions = case.versions or (apis()[type(case.request(scene.ids)).number].versions.last,)
    for name, grants in case.steps():
        scene.grant(*grants)
        try:
            found = [error_codes(scene.client.ask(case.request(scene.ids), version)) for version in versions]
        finally:
            scene.revoke(*grants)
        for version, codes in zip(versions, found, strict=True):
            if grants == case.needs:
                assert not codes & REFUSALS, f"{name} v{version}"
            elif not grants and case.refusal is not None:
                assert case.refusal in codes, f"{name} v{version}"
            elif case.refusal is not None and case.all_needed:
                assert codes & REFUSALS, f"{name} alone was enough, v{version}"


def test_the_table_knows_every_api() -> None:
    assert permissions().keys() == {each.api.name for each in served_apis().values()}
