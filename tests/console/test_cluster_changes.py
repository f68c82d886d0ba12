"""Changes of the cluster that take a broker of their own: rules of access, and replicas that move while one looks."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourceType,
)
from confluent_kafka.admin import ResourcePatternType as Pattern

from moldau.testing import Broker, Cluster
from tests.console.support import Client, console, eventually, fragment, post

ANY: Any = None
ANY_ACL = AclBindingFilter(ResourceType.ANY, ANY, Pattern.ANY, ANY, ANY, AclOperation.ANY, AclPermissionType.ANY)
ACL = {
    "resource": "topic",
    "resource_name": "orders",
    "pattern": "prefixed",
    "principal": "User:<b>alice</b>",
    "operation": "read",
    "permission": "allow",
}


def _acls(address: str) -> set[tuple[str, str, str]]:
    admin = AdminClient({"bootstrap.servers": address})
    found = admin.describe_acls(ANY_ACL).result(20)
    return {(each.principal, each.name, each.host) for each in found if isinstance(each, AclBinding)}


def test_a_rule_of_access_comes_and_goes() -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings) as broker, console(broker.bootstrap_servers) as client:
        assert "No ACLs" in fragment(client, "/acls")
        assert post(client, "/acls", **ACL, host="10.0.0.9").status_code == 303
        rows = eventually(lambda: "1 ACL<" in (text := fragment(client, "/acls")) and text, "the rule is shown")
        assert "User:&lt;b&gt;alice&lt;/b&gt;" in rows
        assert "No ACL has" in fragment(client, "/acls?q=bob")
        assert _acls(broker.bootstrap_servers) == {("User:<b>alice</b>", "orders", "10.0.0.9")}
        for wrong in ({"operation": "fly"}, {"principal": "alice"}, {"resource_name": " "}, {"permission": "any"}):
            assert post(client, "/acls", **ACL | wrong).status_code == 400, wrong
        typed = {"confirm": f"{ACL['principal']} {ACL['resource_name']}"}
        gone = post(client, "/acls/delete", **ACL | typed, host="10.0.0.8")  # of another host: nothing goes
        assert (gone.status_code, len(_acls(broker.bootstrap_servers))) == (303, 1)
        # What the row fills into the form deletes that very rule, once its name is typed.
        (row,) = re.findall(r'<button [^>]*data-open="drop-acl".*?>', rows)
        fields = {name: unescape(text) for name, text in re.findall(r'data-fill([a-z_]+)="([^"]*)"', row)}
        assert fields.pop("shown") == typed["confirm"]
        del fields["what"]
        assert post(client, "/acls/delete", **fields).status_code == 400
        assert len(_acls(broker.bootstrap_servers)) == 1
        assert post(client, "/acls/delete", **fields | typed).status_code == 303
        eventually(lambda: not _acls(broker.bootstrap_servers), "the rule is gone")
        actions = [(each.action, each.outcome) for each in client.house.audit.entries]
        assert ("create_acl", "done") in actions
        assert ("delete_acl", "done") in actions


def test_a_cluster_without_an_authorizer_says_how_to_switch_it_on(client: Client) -> None:
    assert "authorizer.class.name" in fragment(client, "/acls")
    assert post(client, "/acls", **ACL).status_code == 409


def test_replicas_move_with_progress_and_stay_when_cancelled() -> None:
    held_back = {
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "*",
    }
    with Cluster(nodes=2) as cluster, console(cluster.bootstrap_servers) as client:
        assert post(client, "/topics", name="heavy", partitions="1", replication="1").status_code == 303
        eventually(lambda: "heavy" in client.house.snapshot.topics, "the topic is there")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for _ in range(40):
            producer.produce("heavy", bytes(100_000))
        assert producer.flush(60) == 0
        (partition,) = client.house.snapshot.topics["heavy"].partitions
        here = partition.leader
        there = 3 - here
        for name, value in held_back.items():
            assert post(client, "/topics/heavy/settings", setting=name, setting_value=value).status_code == 303
        slow = {"setting": "follower.replication.throttled.rate", "setting_value": "1"}
        assert post(client, f"/brokers/{there}/settings", **slow).status_code == 303

        move = {"topic": "heavy", "brokers": str(there), "replication": "1"}
        shown = post(client, "/reassignments", **move)
        assert shown.status_code == 200
        assert "No replica is on its way" in fragment(client, "/reassignments", "moving")  # it was a preview
        assert post(client, "/reassignments", **move, step="apply").status_code == 303
        rows = eventually(
            lambda: (
                (text := fragment(client, "/reassignments", "moving"))
                and re.search(r"of 3\.8 MiB, 0 of 1 in sync", text)
                and text
            ),
            "the move is shown with how much there is to copy",
        )
        assert "heavy" in rows
        assert post(client, "/reassignments/cancel", topic="heavy", partition="0").status_code == 303
        eventually(
            lambda: "No replica is on its way" in fragment(client, "/reassignments", "moving"), "the move is cancelled"
        )
        assert client.house.snapshot.topics["heavy"].partitions[0].replicas == (here,)

        fast = {"setting": "follower.replication.throttled.rate", "reset": "on"}
        assert post(client, f"/brokers/{there}/settings", **fast).status_code == 303
        assert post(client, "/reassignments", **move, step="apply").status_code == 303
        eventually(
            lambda: client.house.snapshot.topics["heavy"].partitions[0].replicas == (there,), "the replica has moved"
        )
        assert "No replica is on its way" in fragment(client, "/reassignments", "moving")
        assert post(client, "/reassignments", **move | {"brokers": "7"}, step="apply").status_code == 400
