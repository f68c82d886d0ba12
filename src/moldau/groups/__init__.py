"""Consumer groups as pure state machines: requests, ticks and records in; records and responses out.

`GroupShard` is the door; `effects` says how a broker carries out what it returns. Inside, one subject per file:
`classic*` the classic protocol, `consumer*` and `reconcile` and `assignors` the new one (KIP-848), `migration` the
way between them, `offsets` and `offset_requests` committed offsets, `expiry` what goes away by itself, `records` and
`replay` what is kept.
"""

from moldau.groups.config import GroupConfig, GroupOverrides, MigrationPolicy
from moldau.groups.effects import Effects, Now, Producer, Record, RegexResolution, RequestContext, Response
from moldau.groups.metadata import MetadataImage, TopicImage, TopicsDelta, TopicsImage
from moldau.groups.partitioning import partition_for_group
from moldau.groups.refusals import error_after_failed_append, refusal
from moldau.groups.shard import GroupShard

__all__ = [
    "Effects",
    "GroupConfig",
    "GroupOverrides",
    "GroupShard",
    "MetadataImage",
    "MigrationPolicy",
    "Now",
    "Producer",
    "Record",
    "RegexResolution",
    "RequestContext",
    "Response",
    "TopicImage",
    "TopicsDelta",
    "TopicsImage",
    "error_after_failed_append",
    "partition_for_group",
    "refusal",
]
