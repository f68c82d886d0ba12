"""Changes to broker settings while the broker runs: which are allowed, and what is left of those that were stored.

Invariant: what `validate_dynamic_change` accepts, `with_dynamic_settings` can apply.
"""

from collections.abc import Callable, Iterable, Mapping

from moldau.broker.config.broker import BrokerConfig
from moldau.broker.config.definition import Scope
from moldau.broker.config.errors import INVALID_REQUEST, InvalidConfig
from moldau.broker.config.loading import build
from moldau.broker.config.registry import (
    DYNAMIC_SECURITY_KEYS,
    broker_definitions,
    find_definition,
    is_per_broker,
    listener_base_name,
    unknown_broker_config,
)

# Thread counts change by a factor of two at most, as in Kafka: a typo must not stop or flood a running broker.
_THREAD_COUNTS = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "log.cleaner.threads",
)


def validate_dynamic_change(config: BrokerConfig, settings: Mapping[str, str], *, per_broker: bool) -> BrokerConfig:
    """The config after a change, or InvalidConfig (as INVALID_REQUEST, which is what Kafka answers).

    `settings` is all that would be set dynamically for this broker, or, with `per_broker` false, for all of them.
    """
    try:
        _check_keys(settings, per_broker=per_broker)
        for key, text in settings.items():
            definition = find_definition(key)
            if definition is None:
                raise unknown_broker_config(key, text)
            definition.parse_supported(text)
        layers = (config.dynamic_default, settings) if per_broker else (settings, config.dynamic_broker)
        changed = build(config.static, *layers, standalone=config.standalone)
        _check_thread_counts(config, changed)
        _check_listeners(config, changed)
    except InvalidConfig as error:
        raise error.as_invalid_request() from error
    return changed


def usable_dynamic_settings(
    stored: Mapping[str, str], *, per_broker: bool, report: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """Of settings found in the metadata, those that may be applied; `report` hears of the others, which are ignored."""
    usable = {}
    for key, text in stored.items():
        try:
            _check_keys({key: text}, per_broker=per_broker)
            definition = find_definition(key)
            if definition is None:
                raise unknown_broker_config(key, text)
            definition.parse_supported(text)
        except InvalidConfig as error:
            report(f"The dynamic broker setting {key} is ignored: {error}")
        else:
            usable[key] = text
    return usable


def is_dynamic(key: str) -> bool:
    """Whether a broker setting can change while the broker runs."""
    definition = broker_definitions().get(key)
    return definition is not None and definition.scope is not Scope.READ_ONLY


def _check_keys(settings: Mapping[str, str], *, per_broker: bool) -> None:
    known = broker_definitions()
    static = [key for key in settings if key in known and not is_dynamic(key)]
    _refuse(static, "Cannot update these configs dynamically")
    security = [key for key in settings if key in DYNAMIC_SECURITY_KEYS]
    _refuse(security, "These security configs can be dynamically updated only per-listener using the listener prefix")
    if not per_broker:
        own = [key for key in settings if is_per_broker(key)]
        _refuse(own, "Cannot update these configs at default cluster level, broker id must be specified")


def _refuse(keys: Iterable[str], reason: str) -> None:
    names = sorted(keys)
    if names:
        raise InvalidConfig(f"{reason}: [{', '.join(names)}]", names[0], None, INVALID_REQUEST)


def _check_thread_counts(old: BrokerConfig, new: BrokerConfig) -> None:
    for key in _THREAD_COUNTS:
        before, after = old.get_int(key), new.get_int(key)
        if after != before and not before // 2 <= after <= before * 2:
            reason = f"Between half and double the current value {before} is possible at a time"
            raise InvalidConfig.for_value(key, after, reason)


def _check_listeners(old: BrokerConfig, new: BrokerConfig) -> None:
    """Clients hold advertised addresses, and connections hold a listener's security: neither changes under them."""
    listening = {endpoint.listener for endpoint in new.listeners}
    lost = [endpoint.listener for endpoint in old.advertised_listeners if endpoint.listener not in listening]
    if lost:
        value = new.texts.get("listeners")
        raise InvalidConfig.for_value("listeners", value, f"Advertised listeners must stay: {', '.join(lost)}")
    for endpoint in old.listeners:
        if endpoint.listener not in listening:
            continue
        if old.listener_protocols[endpoint.listener] != new.listener_protocols[endpoint.listener]:
            raise InvalidConfig(
                f"Security protocol cannot be updated for existing listener {endpoint.listener}",
                "listener.security.protocol.map",
            )
        prefix = f"listener.name.{endpoint.listener.lower()}."
        if _fixed_settings(old, prefix) != _fixed_settings(new, prefix):
            raise InvalidConfig(
                f"Configs cannot be updated dynamically for existing listener {endpoint.listener}, "
                "restart broker or create a new listener for update"
            )
        if endpoint.uses_tls:
            _check_certificates(old, new, endpoint.listener)


def _check_certificates(old: BrokerConfig, new: BrokerConfig, listener: str) -> None:
    """New certificates must be there and fit before anybody relies on them."""
    from moldau.broker.config.listener_security import tls_settings
    from moldau.security.tls import TlsTrouble, server_context

    settings = tls_settings(new, listener)
    if settings.has_key and settings != tls_settings(old, listener):
        try:
            server_context(settings)
        except TlsTrouble as error:
            key = f"listener.name.{listener.lower()}.{error.setting}"
            raise InvalidConfig(f"Cannot use {key}: {error.problem}", key) from None


def _fixed_settings(config: BrokerConfig, prefix: str) -> dict[str, str]:
    changeable = DYNAMIC_SECURITY_KEYS | {"max.connections", "max.connection.creation.rate", "num.network.threads"}
    return {
        key: text
        for key, text in config.texts.items()
        if key.startswith(prefix) and listener_base_name(key) not in changeable
    }
