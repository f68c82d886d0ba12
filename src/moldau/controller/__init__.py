"""The cluster image, and the controller as a pure function from (image, command) to metadata records.

`image` is the state of the cluster at an offset of the metadata log; `fold.apply` makes the next one, `delta.diff`
says what changed, `snapshot` writes one down. A command (one module per family) looks at the image and a request, and
returns the response and the records that make it true; it changes nothing itself. Time, randomness and the rules of
configs are arguments (`context`), so the simulator replays a controller exactly.
"""

from moldau.controller.context import ConfigRules, ControllerContext, ControllerResult
from moldau.controller.delta import ImageDelta, diff
from moldau.controller.errors import ApiError, MetadataCorrupt
from moldau.controller.features import bootstrap_records, record_version
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ClusterImage, ConfigResource, PartitionImage, ResourceType, TopicImage
from moldau.controller.sessions import BrokerSessions
from moldau.controller.snapshot import snapshot_records

__all__ = [
    "EMPTY_IMAGE",
    "ApiError",
    "BrokerSessions",
    "ClusterImage",
    "ConfigResource",
    "ConfigRules",
    "ControllerContext",
    "ControllerResult",
    "ImageDelta",
    "MetadataCorrupt",
    "PartitionImage",
    "ResourceType",
    "TopicImage",
    "apply",
    "bootstrap_records",
    "diff",
    "record_version",
    "snapshot_records",
]
