"""How much a command is going to take, told before it is decided, and cheaply: about how many records it may make, or
things it has to look at. What takes little is decided at once; what takes much should keep nobody waiting.

Commands that read who is alive (heartbeats and registrations of brokers) are not weighed: what they rest on is not in
the image.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from moldau.controller.context import RECORDS_PER_COMMAND_MAX, ControllerContext
from moldau.controller.errors import TooManyRecords
from moldau.controller.image import ClusterImage
from moldau.wire import messages as m


def exceeds(limit: int, image: ClusterImage, request: object, context: ControllerContext) -> bool:
    """Whether deciding the request takes more than so much. Counting ends when that is clear."""
    total = 0
    for some in _parts(image, request, context):
        total += some
        if total > limit:
            return True
    return False


# What clients ask for. Brokers may have as much to tell as they have partitions.
_BOUNDED = (
    m.CreateTopicsRequest,
    m.CreatePartitionsRequest,
    m.DeleteTopicsRequest,
    m.AlterPartitionReassignmentsRequest,
    m.ElectLeadersRequest,
    m.IncrementalAlterConfigsRequest,
    m.AlterConfigsRequest,
    m.CreateAclsRequest,
    m.DeleteAclsRequest,
    m.AlterClientQuotasRequest,
    m.AlterUserScramCredentialsRequest,
)


def check_records(request: object, records: Sized) -> None:
    """TooManyRecords if one request of a client may not make so many: they are one batch, for everybody to take in."""
    if len(records) > RECORDS_PER_COMMAND_MAX and isinstance(request, _BOUNDED):
        raise TooManyRecords


def _parts(image: ClusterImage, request: object, context: ControllerContext) -> Iterable[int]:
    match request:
        case m.CreateTopicsRequest():
            return (_of_new_topic(topic, context) for topic in request.topics)
        case m.CreatePartitionsRequest():
            return (_of_more_partitions(image, topic) for topic in request.topics)
        case m.DeleteTopicsRequest():
            return len(request.topics), len(request.topic_names)
        case m.AlterPartitionReassignmentsRequest() | m.AlterPartitionRequest():
            return _lengths(request.topics, "partitions")
        case m.ElectLeadersRequest():
            if request.topic_partitions is None:
                return _lengths(image.topics.values(), "partitions")
            return _lengths(request.topic_partitions, "partitions")
        case m.AssignReplicasToDirsRequest():
            return (1 + len(topic.partitions) for folder in request.directories for topic in folder.topics)
        case m.IncrementalAlterConfigsRequest() | m.AlterConfigsRequest():
            return _lengths(request.resources, "configs")
        case m.CreateAclsRequest():
            return (len(request.creations),)
        case m.DeleteAclsRequest():
            return (len(request.filters) * (1 + len(image.acls)),)
        case m.AlterClientQuotasRequest():
            return (1 + len(entry.entity) + len(entry.ops) for entry in request.entries)
        case m.AlterUserScramCredentialsRequest():
            return len(request.deletions), len(request.upsertions)
    return ()


def _lengths(items: Iterable[Any], name: str) -> Iterable[int]:
    return (1 + len(getattr(item, name)) for item in items)


def _of_new_topic(topic: m.CreateTopicsRequest.CreatableTopic, context: ControllerContext) -> int:
    wanted = context.default_partitions if topic.num_partitions == -1 else topic.num_partitions
    return 1 + len(topic.configs) + max(0, wanted, len(topic.assignments))


def _of_more_partitions(image: ClusterImage, wanted: m.CreatePartitionsRequest.CreatePartitionsTopic) -> int:
    topic = image.topics.get(wanted.name)
    return 1 if topic is None else 1 + max(0, wanted.count - len(topic.partitions))
