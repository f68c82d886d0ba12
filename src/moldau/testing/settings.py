"""Settings as tests like to write them: numbers and booleans are as good as Kafka's texts for them."""

from collections.abc import Mapping

Settings = Mapping[str, str | int | float | bool]


def as_texts(settings: Settings | None) -> dict[str, str]:
    """As server.properties has them: `True` is `true`, `3` is `3`."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (settings or {}).items()
    }
