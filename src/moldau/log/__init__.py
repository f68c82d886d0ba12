"""Storage: one partition is one folder of segments, in Apache Kafka's own formats."""

from moldau.log.config import CompressionType, LogConfig, TimestampType
from moldau.log.context import LogContext
from moldau.log.dirs.log_manager import DirInfo, LogManager
from moldau.log.dirs.move import MoveJob
from moldau.log.dirs.opening import OpenReport
from moldau.log.dirs.settings import ManagerSettings
from moldau.log.errors import LogError
from moldau.log.flush import FlushJob
from moldau.log.index.txn_index import AbortedTxn
from moldau.log.jobs import Job
from moldau.log.origin import AppendOrigin
from moldau.log.partition_log import PartitionLog
from moldau.log.recovery.recovery import RecoveryReport, open_log
from moldau.log.results import ActiveProducer, Appended, ReadInfo
from moldau.log.timestamps import FoundOffset

__all__ = [
    "AbortedTxn",
    "ActiveProducer",
    "AppendOrigin",
    "Appended",
    "CompressionType",
    "DirInfo",
    "FlushJob",
    "FoundOffset",
    "Job",
    "LogConfig",
    "LogContext",
    "LogError",
    "LogManager",
    "ManagerSettings",
    "MoveJob",
    "OpenReport",
    "PartitionLog",
    "ReadInfo",
    "RecoveryReport",
    "TimestampType",
    "open_log",
]
