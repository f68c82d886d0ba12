"""Whether the cluster can be reached, asked before Spark starts: a wrong address is told within seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from moldau.client.cluster import Cluster
from moldau.client.connection import ClientError
from moldau.client.sasl import AuthenticationFailed
from moldau.client.settings import ClientSettings
from moldau.spark.connecting import client_settings
from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import PipelineError, Problem
from moldau.spark.pipelines.secrecy import keeping_secrets

_PATIENCE_SECONDS = 3.0


def hasty_settings(pipeline: model.Pipeline) -> ClientSettings:
    """For questions to which no answer within seconds is an answer too."""
    settings = client_settings({"bootstrap.servers": pipeline.bootstrap_servers, **pipeline.kafka})
    return replace(
        settings,
        connect_timeout_s=min(settings.connect_timeout_s, _PATIENCE_SECONDS),
        request_timeout_s=min(settings.request_timeout_s, 2 * _PATIENCE_SECONDS),
    )


@keeping_secrets
def require_cluster(pipeline: model.Pipeline) -> None:
    """Raise PipelineError if no broker answers, the login is refused, or a topic to read is not there."""
    sources = {
        topic.strip(): source
        for source in pipeline.sources.values()
        if isinstance(source, model.TopicSource)
        for topic in source.topic.split(",")
    }
    written = {sink.topic for sink in pipeline.sinks if isinstance(sink, model.TopicSink)}
    for topic in written:  # what the pipeline writes itself may come into being with its first record
        sources.pop(topic, None)
    uses_topics = any(isinstance(each, model.TopicSource | model.PatternSource) for each in pipeline.sources.values())
    if not pipeline.bootstrap_servers or not (uses_topics or written):
        return
    missing = _missing(pipeline, sources)
    if missing:
        raise PipelineError(
            (
                Problem(sources[name].where.of("topic"), f"there is no topic {name!r}", "create it first")
                for name in missing
            ),
            concerns="topics",
        )


def require_brokers(pipeline: model.Pipeline) -> None:
    """Raise PipelineError if no broker answers, or the login is refused."""
    _missing(pipeline, ())


def _missing(pipeline: model.Pipeline, topics: Iterable[str]) -> Iterable[str]:
    """Which of the topics are not there."""
    mark = pipeline.where.of("kafka")
    try:
        with Cluster(hasty_settings(pipeline), patience_s=_PATIENCE_SECONDS, pause_s=0.5) as cluster:
            return cluster.topics(topics).missing
    except AuthenticationFailed as error:
        problem = Problem(mark, str(error), "check the login under `kafka:`")
        raise PipelineError([problem], concerns="login") from error
    except ClientError as error:
        told = f"no broker answers at {pipeline.bootstrap_servers}: {error}"
        problem = Problem(mark, told, "check `bootstrap.servers`, and that the cluster is up")
        raise PipelineError([problem], concerns="cluster") from error
