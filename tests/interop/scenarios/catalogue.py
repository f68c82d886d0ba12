"""All scenarios by name.

Each uses topics, groups and transactional ids of its own, so they run in any order; but each only once on a broker, so
give them fresh ones, single nodes with `node.id` 1 and otherwise the same configuration.
"""

from tests.interop.differential import Scenario
from tests.interop.scenarios import cluster, corners, groups, records, topics

SCENARIOS: dict[str, Scenario] = {
    **topics.SCENARIOS,
    **records.SCENARIOS,
    **cluster.SCENARIOS,
    **groups.SCENARIOS,
    **corners.SCENARIOS,
}
