"""Ways to break a node that show within a few seeds. `make simulate` looks for all, and says how long it took."""

import pytest

from tests.simulation.variants import VARIANTS, Variant, seeds_until_noticed

pytestmark = pytest.mark.timeout(600)
_QUICK = [variant for variant in VARIANTS if variant.seeds_max <= 5]


@pytest.mark.parametrize("variant", _QUICK, ids=[variant.name for variant in _QUICK])
def test_the_simulator_notices(variant: Variant) -> None:
    assert seeds_until_noticed(variant) is not None
