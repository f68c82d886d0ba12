"""From the `kafka.*` options of a source or sink to a client's settings; mistakes are told by the option's own name."""

from collections.abc import Mapping

from moldau.client.security import SettingError, librdkafka_security
from moldau.client.settings import ClientSettings, parse_client_settings
from moldau.spark.options import OptionError


def client_settings(kafka: Mapping[str, str]) -> ClientSettings:
    """For our own connections. The names are without their prefix `kafka.`."""
    try:
        return parse_client_settings({"client.id": "moldau-spark", **kafka})
    except SettingError as error:
        raise OptionError(f"option 'kafka.{error.name}' {error.problem}") from None


def librdkafka_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """For confluent-kafka."""
    try:
        return {"bootstrap.servers": kafka["bootstrap.servers"], **librdkafka_security(kafka)}
    except SettingError as error:
        raise OptionError(f"option 'kafka.{error.name}' {error.problem}") from None
