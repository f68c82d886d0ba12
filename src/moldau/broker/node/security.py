"""How this node's listeners are protected, and how it proves itself to others: from the settings to what runs.

Everything is made when the node starts: a certificate that cannot be read, or a listener nobody could log in at, stops
it there. Later, a renewed certificate is taken when its file changes or its setting does; if it cannot be read, the
former one stays, and that is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from moldau.broker.channels import PeerSecurity
from moldau.broker.config import BrokerConfig, Endpoint, InvalidConfig
from moldau.seams.network import FrameHandler, Listener

if TYPE_CHECKING:
    from ssl import SSLContext

    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasAudit, HasConfig, HasLoop, HasTime
    from moldau.broker.quorum.parts import HasQuorum
    from moldau.broker.requests.dispatch import Dispatcher
    from moldau.security.sasl.authenticator import MechanismOffer
    from moldau.security.sasl.client import Credentials
    from moldau.security.sasl.mechanism import ServerMechanism
    from moldau.security.scram_users import ClusterUsers
    from moldau.security.tls import TlsSettings

    class Needs(HasAudit, HasConfig, HasController, HasLoop, HasTime, HasQuorum, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)
_LOOK_MS = 10_000.0
_TOKEN_CHARACTERS_MAX = 64 * 1024


class NodeSecurity:
    """Belongs to the event loop. Costs nothing on a node whose listeners are all plain."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._contexts: dict[str, _Context] = {}  # of listeners
        self._outgoing: dict[str, _Context] = {}  # towards those of others, by listener
        self._listeners: Mapping[str, Listener] = {}
        self._users: ClusterUsers | None = None

    def tls(self, endpoint: Endpoint) -> SSLContext | None:
        """The context of a listener. Raises InvalidConfig."""
        if not endpoint.uses_tls:
            return None
        from moldau.security.tls import server_context

        made = self._contexts[endpoint.listener] = _Context(server_context, self._tls_settings(endpoint.listener))
        return made.context

    def handler(self, endpoint: Endpoint, dispatcher: Dispatcher) -> FrameHandler:
        """What stands in front of the dispatcher. Raises InvalidConfig."""
        if endpoint.uses_sasl:
            from moldau.broker.requests.authentication import SaslGate

            offers = self._offers(self._broker.config, endpoint.listener)
            return SaslGate(self._broker, dispatcher, lambda: offers)
        if endpoint.uses_tls:
            from moldau.broker.requests.authentication import TlsGate
            from moldau.security.principal_mapping import PrincipalMapping

            rules = str(self._broker.config.for_listener(endpoint.listener, "ssl.principal.mapping.rules"))
            try:
                return TlsGate(self._broker, dispatcher, PrincipalMapping(rules))
            except ValueError as error:
                raise InvalidConfig.for_value("ssl.principal.mapping.rules", rules, str(error)) from None
        return dispatcher

    def to_brokers(self) -> PeerSecurity | None:
        """How other brokers want to be talked to; None if their listener is plain. Raises InvalidConfig."""
        config = self._broker.config
        if not config.is_broker or config.standalone:
            return None
        name = config.inter_broker_listener_name
        return self._towards(name, config.get_str("sasl.mechanism.inter.broker.protocol"))

    def to_controllers(self) -> PeerSecurity | None:
        """The same for controllers."""
        config = self._broker.config
        if config.standalone or not config.controller_listener_names:
            return None
        name = config.controller_listener_names[0]
        return self._towards(name, config.get_str("sasl.mechanism.controller.protocol"))

    def watch(self, listeners: Mapping[str, Listener]) -> None:
        """Look from time to time whether certificates were renewed."""
        self._listeners = listeners
        if self._contexts or self._outgoing:
            self._look_again()
        config = self._broker.config
        if config.is_controller and config.get_str_or_none("delegation.token.secret.key") is not None:
            self._sweep_tokens()

    def reload(self) -> None:
        """Settings changed, or files may have."""
        for name, held in self._contexts.items():
            if self._renew(name, held):
                self._listeners[name].renew_tls(held.context)
        for name, held in self._outgoing.items():
            self._renew(name, held)

    def _sweep_tokens(self) -> None:
        """The active controller forgets delegation tokens that nobody can use any more."""
        from moldau.controller.delegation_tokens import expired_token_records

        broker = self._broker
        interval_ms = broker.config.get_int("delegation.token.expiry.check.interval.ms")
        broker.wheel.add(broker.clock.monotonic_ms() + interval_ms, self._sweep_tokens)
        if broker.controller.is_active:
            broker.controller.decide(lambda image, _: expired_token_records(image, broker.clock.wall_ms()))

    def _look_again(self) -> None:
        broker = self._broker
        broker.wheel.add(broker.clock.monotonic_ms() + _LOOK_MS, self._look_again)
        self.reload()

    def _renew(self, listener: str, held: _Context) -> bool:
        from moldau.security.tls import TlsTrouble

        try:
            is_new = held.renew(self._tls_settings(listener))
        except TlsTrouble as error:
            _log.error("the certificate of listener %s cannot be renewed, so the former one stays: %s", listener, error)
            return False
        if is_new:
            _log.warning("the certificate of listener %s was renewed: new connections use it", listener)
        return is_new

    def _tls_settings(self, listener: str) -> TlsSettings:
        from moldau.broker.config.listener_security import tls_settings

        return tls_settings(self._broker.config, listener)

    def _towards(self, listener: str, mechanism: str) -> PeerSecurity | None:
        config = self._broker.config
        protocol = config.listener_protocols.get(listener, "PLAINTEXT")
        if protocol == "PLAINTEXT":
            return None
        tls: Callable[[], SSLContext] | None = None
        if protocol.endswith("SSL"):
            from moldau.security.tls import client_context

            held = self._outgoing[listener] = _Context(client_context, self._tls_settings(listener))

            def tls() -> SSLContext:
                return held.context

        if not protocol.startswith("SASL_"):
            return PeerSecurity(tls)
        from moldau.broker.config.listener_security import own_credentials, own_token_file
        from moldau.security.sasl.mechanism import OAUTHBEARER

        if mechanism == OAUTHBEARER:
            return PeerSecurity(tls, _token_in(own_token_file(config, listener)))
        credentials = own_credentials(config, listener, mechanism)
        return PeerSecurity(tls, lambda: credentials)

    def _offers(self, config: BrokerConfig, listener: str) -> dict[str, MechanismOffer]:
        from moldau.broker.config.listener_security import enabled_mechanisms
        from moldau.security.sasl.authenticator import MechanismOffer

        offers = {}
        for mechanism in enabled_mechanisms(config, listener):
            longest = config.for_listener(listener, "connections.max.reauth.ms", mechanism)
            assert isinstance(longest, int)
            offers[mechanism] = MechanismOffer(self._beginning(config, listener, mechanism), longest)
        return offers

    def _beginning(self, config: BrokerConfig, listener: str, mechanism: str) -> Callable[[], ServerMechanism]:
        from moldau.security.sasl.mechanism import OAUTHBEARER, PLAIN

        if mechanism == OAUTHBEARER:
            return self._bearer_tokens(config, listener)
        if mechanism == PLAIN:
            from moldau.broker.config.listener_security import plain_users
            from moldau.security.sasl.plain import PlainServer

            passwords = plain_users(config, listener)
            return lambda: PlainServer(passwords)
        from secrets import token_urlsafe

        from moldau.security.sasl.scram import ScramServer

        users = self._cluster_users(config)
        return lambda: ScramServer(mechanism, users, lambda: token_urlsafe(24))

    def _bearer_tokens(self, config: BrokerConfig, listener: str) -> Callable[[], ServerMechanism]:
        from importlib.util import find_spec

        from moldau.broker.config.listener_security import bearer_rules
        from moldau.broker.node.bearer_keys import BearerKeys
        from moldau.security.bearer_tokens import KeysUnavailable, TokenVerifier, fetch_keys, is_file
        from moldau.security.sasl.oauthbearer import OAuthBearerServer

        if find_spec("jwt") is None:
            raise InvalidConfig("OAUTHBEARER needs `pip install 'moldau[security]'`", "sasl.enabled.mechanisms")
        url, rules = bearer_rules(config, listener)
        verifier = TokenVerifier(rules)
        if is_file(url):  # a file can be looked at before anybody relies on it
            try:
                verifier.load(fetch_keys(url))
            except KeysUnavailable as error:
                raise InvalidConfig.for_value("sasl.oauthbearer.jwks.endpoint.url", url, str(error)) from None
        BearerKeys(self._broker, url, verifier).start()
        return lambda: OAuthBearerServer(verifier)

    def _cluster_users(self, config: BrokerConfig) -> ClusterUsers:
        if self._users is None:
            from moldau.security.scram_users import ClusterUsers

            broker = self._broker
            self._users = ClusterUsers(
                lambda: broker.metadata_log.committed, config.get_str_or_none("delegation.token.secret.key")
            )
        return self._users


def _token_in(path: str) -> Callable[[], Credentials]:
    """Read for each connection: tokens end, and whoever gets new ones writes them there. Raises InvalidConfig if there
    is none now."""
    from moldau.security.sasl.client import Credentials, LoginRefused
    from moldau.security.sasl.mechanism import OAUTHBEARER

    def read() -> Credentials:
        try:
            with open(path, encoding="ascii") as file:
                token = file.read(_TOKEN_CHARACTERS_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LoginRefused(f"no token can be read from {path}: {type(error).__name__}") from None
        if not token or not token.isprintable() or " " in token:
            raise LoginRefused(f"{path} holds no token")
        return Credentials(OAUTHBEARER, bearer_token=token)

    try:
        read()
    except LoginRefused as error:
        key = "sasl.oauthbearer.token.endpoint.url"
        raise InvalidConfig(f"Cannot use {key}: {error}", key) from None
    return read


class _Context:
    """A TLS context, and what it was made of."""

    def __init__(self, make: Callable[[TlsSettings], SSLContext], settings: TlsSettings) -> None:
        from moldau.security.tls import TlsTrouble, file_stamps

        self._make = make
        self._settings = settings
        self._stamps = file_stamps(settings)
        try:
            self.context = make(settings)
        except TlsTrouble as error:
            raise InvalidConfig(f"Cannot use {error.setting}: {error.problem}", error.setting) from None

    def renew(self, settings: TlsSettings) -> bool:
        """Whether there is a new one. Raises TlsTrouble, and says it once per change."""
        from moldau.security.tls import file_stamps

        stamps = file_stamps(settings)
        if settings == self._settings and stamps == self._stamps:
            return False
        self._settings, self._stamps = settings, stamps
        self.context = self._make(settings)
        return True
