"""Handlers for Kafka topics that lose, double or reorder nothing they promised not to; for any Kafka cluster.

    from moldau.toolkit import App, Retry

Everything public is here; `moldau.toolkit.testing` has `TestApp`.
"""

from moldau.toolkit.app import App
from moldau.toolkit.codecs import Avro, ByField, ByHeader, Float32, Float64, Int16, Int32, Int64
from moldau.toolkit.errors import (
    BatchFailed,
    CircuitOpen,
    HandlerFailed,
    SendFailed,
    SetupError,
    SpoolFull,
    ToolkitError,
    Undecodable,
    WrongType,
)
from moldau.toolkit.handling import FromHeader, FromKey
from moldau.toolkit.message import Message
from moldau.toolkit.policy import Batch, Breaker, Retry
from moldau.toolkit.registry import Registry
from moldau.toolkit.scheduler import Limits
from moldau.toolkit.sending import Delivery, Producer, Receipt, Record, Topic
from moldau.toolkit.spool import Spool
from moldau.toolkit.testing import TestApp
from moldau.toolkit.trace import OpenTelemetry

__all__ = [
    "App",
    "Avro",
    "Batch",
    "BatchFailed",
    "Breaker",
    "ByField",
    "ByHeader",
    "CircuitOpen",
    "Delivery",
    "Float32",
    "Float64",
    "FromHeader",
    "FromKey",
    "HandlerFailed",
    "Int16",
    "Int32",
    "Int64",
    "Limits",
    "Message",
    "OpenTelemetry",
    "Producer",
    "Receipt",
    "Record",
    "Registry",
    "Retry",
    "SendFailed",
    "SetupError",
    "Spool",
    "SpoolFull",
    "TestApp",
    "ToolkitError",
    "Topic",
    "Undecodable",
    "WrongType",
]
