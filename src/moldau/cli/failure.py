"""How commands end: the exit codes, stable for scripts, and errors as one line that says what to do.

Nobody sees a traceback who did not ask for it: what a client raises is explained here, and what nobody foresaw ends in
a line that names `--debug`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

from moldau.cli.harmless import harmless_cell

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
    is_late: bool = False  # a broker was still at it


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    tell(message)
    raise typer.Exit(code)


def misused(message: str) -> NoReturn:
    """For arguments that cannot be: checked before anything begins."""
    fail(message, ExitCode.USAGE)


def one_of(option: str, given: str | None, known: Collection[str]) -> None:
    """What an option may be, whatever the case of its letters; nothing given is fine."""
    if given is not None and given.lower() not in known:
        misused(f"{option} {given}: one of {', '.join(known)}")


def tell(message: str) -> None:
    """A word to people, beside the output: one line, whatever others wrote that is in it."""
    typer.echo(f"moldau: {harmless_cell(message)}", err=True)


def no_broker(bootstrap_servers: str, why: str = "") -> Explained:
    reason = f" ({why})" if why else ""
    message = f"no broker answers at {bootstrap_servers}{reason}: is it running? (`moldau serve` starts one)"
    return Explained(message, ExitCode.UNREACHABLE)


_REQUEST_TIMED_OUT = 7  # a broker's: it goes on with what it was asked for
_LOOK_FIRST = "it may have been done all the same; look before trying again"


def in_doubt(explained: Explained, bootstrap_servers: str) -> Explained:
    """The same about a change: that nobody answered does not mean that nothing was done."""
    if explained.code == ExitCode.UNREACHABLE:
        return Explained(f"no answer from {bootstrap_servers} any more: {_LOOK_FIRST}", explained.code)
    if explained.is_late:
        return explained._replace(message=f"{explained.message}: {_LOOK_FIRST}")
    return explained


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
            return Explained(str(error), code_of(int(error.code)), int(error.code) == _REQUEST_TIMED_OUT)
        if isinstance(error, AuthenticationFailed):
            return Explained(str(error), ExitCode.DENIED)
        if isinstance(error, UnknownBroker | UnknownTopic):
            return Explained(str(error), ExitCode.NOT_FOUND)
        if isinstance(error, ClientError):
            return Explained(str(error), ExitCode.FAILED)
    if "moldau.toolkit.errors" in sys.modules:
        found = _of_the_toolkit(error, bootstrap_servers)
        if found is not None:
            return found
    if "moldau.client.security" in sys.modules:
        from moldau.client.security import SettingError

        if isinstance(error, SettingError):
            return Explained(str(error), ExitCode.USAGE)
    return None


def _of_the_toolkit(error: BaseException, bootstrap_servers: str) -> Explained | None:
    from moldau.toolkit.errors import ClusterAway, NotThere, SetupError, ToolkitError

    if not isinstance(error, ToolkitError):
        return None
    codes = ((NotThere, ExitCode.NOT_FOUND), (ClusterAway, ExitCode.UNREACHABLE), (SetupError, ExitCode.USAGE))
    for kind, code in codes:
        if isinstance(error, kind):
            return Explained(str(error), code)
    # What it says is the toolkit's; what a broker or the client said before it decides how the command ends.
    cause = None if error.__cause__ is None else explain(error.__cause__, bootstrap_servers)
    return Explained(str(error), ExitCode.FAILED if cause is None else cause.code)


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
    return Explained(error.str().removeprefix("Broker: "), code_of(code), code == _REQUEST_TIMED_OUT)


def counted(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
