"""What Moldau offers beside what Apache Kafka offers on a broker listener: the same versions of every API they share.

What only one of them offers stands here with the reason; when that changes, this test says so.
"""

import pytest

from moldau.wire import apis
from moldau.wire import messages as m
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.differential import Side
from tests.support.broker_process import BrokerProcess

_SHARE = "share groups are not served yet"
_STREAMS = (
    "groups of Kafka Streams' own protocol are not served yet; Streams uses the classic one unless told otherwise"
)
NOT_IN_MOLDAU = {
    "ShareGroupHeartbeat": _SHARE,
    "ShareGroupDescribe": _SHARE,
    "ShareFetch": _SHARE,
    "ShareAcknowledge": _SHARE,
    "InitializeShareGroupState": _SHARE,
    "ReadShareGroupState": _SHARE,
    "WriteShareGroupState": _SHARE,
    "DeleteShareGroupState": _SHARE,
    "ReadShareGroupStateSummary": _SHARE,
    "DescribeShareGroupOffsets": _SHARE,
    "AlterShareGroupOffsets": _SHARE,
    "DeleteShareGroupOffsets": _SHARE,
    "StreamsGroupHeartbeat": _STREAMS,
    "StreamsGroupDescribe": _STREAMS,
}
ONLY_IN_MOLDAU: dict[str, str] = {}


def offered_by(name: str, bootstrap: str) -> dict[str, tuple[int, int]]:
    with Side(name, bootstrap) as side:
        asked = m.ApiVersionsRequest(client_software_name="interop", client_software_version="1")
        answer: m.ApiVersionsResponse = side.ask(asked, 4)
    return {apis()[entry.api_key].name: (entry.min_version, entry.max_version) for entry in answer.api_keys}


@pytest.fixture(scope="module")
def offers(moldau: BrokerProcess, apache_kafka: ApacheKafka) -> tuple[dict[str, tuple[int, int]], ...]:
    return offered_by("moldau", moldau.bootstrap_servers), offered_by("kafka", apache_kafka.bootstrap_servers)


def test_every_shared_api_has_kafkas_versions(offers: tuple[dict[str, tuple[int, int]], ...]) -> None:
    ours, theirs = offers
    assert {name: ours[name] for name in ours.keys() & theirs.keys()} == {
        name: theirs[name] for name in ours.keys() & theirs.keys()
    }
    assert len(ours.keys() & theirs.keys()) > 50


def test_what_only_one_of_them_offers_is_known(offers: tuple[dict[str, tuple[int, int]], ...]) -> None:
    ours, theirs = offers
    assert theirs.keys() - ours.keys() == NOT_IN_MOLDAU.keys()
    assert ours.keys() - theirs.keys() == ONLY_IN_MOLDAU.keys()
