"""How commands end: the exit codes, stable for scripts, and errors as one line that says what to do.

Nobody sees a traceback who did not ask for it: what a client raises is explained here, and what nobody foresaw ends in
a line that names `--debug`.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

from moldau.cli.harmless import harmless

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class ExitCode(IntEnum):
    """What `$?` says afterwards; docs/cli.md has the table."""

    OK = 0
    FAILED = 1  # the cluster refused, or something went wrong on the way
    USAGE = 2  # wrong arguments or settings: nothing was begun
    UNREACHABLE = 3  # no broker answers
    NOT_FOUND = 4  # a topic, group, broker… that was named is not there
    DENIED = 5  # login failed, or the user may not do that
    UNHEALTHY = 6  # looked, and found something wrong: health, doctor, log verify, lag --max
    INTERRUPTED = 130  # Ctrl-C, as shells report it
    PIPE_CLOSED = 141  # whoever read our output has gone, as `head` does


class Explained(NamedTuple):
    message: str
    code: ExitCode


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    typer.echo(f"moldau: {harmless(message)}", err=True)
    raise typer.Exit(code)


def misused(message: str) -> NoReturn:
    """For arguments that cannot be: checked before anything begins."""
    fail(message, ExitCode.USAGE)


def tell(message: str) -> None:
    """A word to people, beside the output."""
    typer.echo(f"moldau: {harmless(message)}", err=True)


def no_broker(bootstrap_servers: str, why: str = "") -> Explained:
    reason = f" ({why})" if why else ""
    message = f"no broker answers at {bootstrap_servers}{reason}: is it running? (`moldau serve` starts one)"
    return Explained(message, ExitCode.UNREACHABLE)


def explain(error: BaseException, bootstrap_servers: str) -> Explained | None:
    """What to tell about an exception of a client; None for one that is nobody's business but ours."""
    if isinstance(error, TimeoutError):  # of a future: the client still tries
        return no_broker(bootstrap_servers, "no answer in time")
    if "confluent_kafka" in sys.modules:
        from confluent_kafka import KafkaError, KafkaException

        if isinstance(error, KafkaException):
            cause = error.args[0] if error.args else None
            if isinstance(cause, KafkaError):
                return explain_code(cause, bootstrap_servers)
            return Explained(str(error), ExitCode.FAILED)
    if "moldau.client.connection" in sys.modules:
        from moldau.client.admin import UnknownBroker
        from moldau.client.cluster import UnknownTopic
        from moldau.client.connection import BrokerError, ClientError, Disconnected
        from moldau.client.sasl import AuthenticationFailed

        if isinstance(error, Disconnected):
            return no_broker(bootstrap_servers, str(error))
        if isinstance(error, BrokerError):
            return Explained(str(error), code_of(int(error.code)))
        if isinstance(error, AuthenticationFailed):
            return Explained(str(error), ExitCode.DENIED)
        if isinstance(error, UnknownBroker | UnknownTopic):
            return Explained(str(error), ExitCode.NOT_FOUND)
        if isinstance(error, ClientError):
            return Explained(str(error), ExitCode.FAILED)
    if "moldau.client.security" in sys.modules:
        from moldau.client.security import SettingError

        if isinstance(error, SettingError):
            return Explained(str(error), ExitCode.USAGE)
    return None


_NOT_FOUND = frozenset({3, 69, 91, 100, 102, 105})  # topic or partition, group, resource, topic id, broker, transaction
_DENIED = frozenset({29, 30, 31, 53, 58, 65})  # topic, group, cluster, transactional id, login, token


def code_of(kafka_code: int) -> ExitCode:
    """How a command ends that a broker refused with this error."""
    if kafka_code in _NOT_FOUND:
        return ExitCode.NOT_FOUND
    return ExitCode.DENIED if kafka_code in _DENIED else ExitCode.FAILED


def explain_code(error: KafkaError, bootstrap_servers: str) -> Explained:
    """librdkafka's errors: its own are negative, those of brokers positive."""
    code = error.code()
    if code in (error._TRANSPORT, error._ALL_BROKERS_DOWN, error._RESOLVE):
        return no_broker(bootstrap_servers)
    if code in (error._TIMED_OUT, error._TIMED_OUT_QUEUE):
        return no_broker(bootstrap_servers, "no answer in time")
    if code == error._AUTHENTICATION:
        return Explained(f"login at {bootstrap_servers} failed: {error.str()}", ExitCode.DENIED)
    if code == error._INVALID_ARG:
        return Explained(f"a setting is not valid: {error.str()}", ExitCode.USAGE)
    if code in (error._UNKNOWN_TOPIC, error._UNKNOWN_PARTITION):
        return Explained(f"{error.str()} (`moldau topic list` shows what there is)", ExitCode.NOT_FOUND)
    # librdkafka says whom an error is from, which nobody asked.
    return Explained(error.str().removeprefix("Broker: "), code_of(code))


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
