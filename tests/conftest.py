"""For all tests: property tests assert what happens, never how quickly. A loaded machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("moldau", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("moldau")
