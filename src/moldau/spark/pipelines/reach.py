"""Whether cluster and registry can be reached, asked before Spark starts: a wrong address is told within seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.client.cluster import Cluster
from moldau.client.connection import ClientError
from moldau.client.sasl import AuthenticationFailed
from moldau.client.settings import ClientSettings
from moldau.spark.connecting import client_settings
from moldau.spark.pipelines import model
from moldau.spark.pipelines.durations import seconds_of
from moldau.spark.pipelines.errors import PipelineError, Problem
from moldau.spark.pipelines.secrecy import keeping_secrets
from moldau.spark.registry.client import Registry, RegistryError, RegistrySettings, UnknownSchema

if TYPE_CHECKING:
    from moldau.spark.registry.formats import ReaderSchema

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
    """Raise PipelineError if no broker answers, the login is refused, a topic to read is not there, or the registry
    does not answer or has no schema for a source."""
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
    _require_registry(pipeline)


def _require_registry(pipeline: model.Pipeline) -> None:
    for source in pipeline.sources.values():
        how = getattr(source, "parse", None)
        if isinstance(source, model.TopicSource | model.PatternSource) and isinstance(how, model.RegistryParse):
            newest_schema(pipeline, source, how)
    sink = next((each for each in pipeline.sinks if isinstance(each, model.TopicSink) and each.schema), None)
    if sink is None:
        return
    try:
        Registry(_registry_settings(pipeline)).latest(f"{sink.topic}-value")
    except UnknownSchema:
        return  # it will be registered
    except RegistryError as error:
        raise PipelineError([Problem(sink.where.of("schema"), str(error), "check `registry:`")]) from error


def newest_schema(
    pipeline: model.Pipeline, source: model.TopicSource | model.PatternSource, how: model.RegistryParse
) -> ReaderSchema:
    """What the values of a source are read as; raises PipelineError."""
    from moldau.spark.registry.formats import reader_schema

    subject = how.subject or f"{getattr(source, 'topic', '')}-value"
    try:
        found = reader_schema(how.values, _registry_settings(pipeline), subject, how.message)
    except (RegistryError, UnknownSchema) as error:
        told = f"the schema of {subject!r} cannot be had: {error}"
        raise PipelineError([Problem(how.where.mark, told, "check `registry:` and `subject:`")]) from error
    try:
        found.spark_type()
    except ValueError as error:
        raise PipelineError([Problem(how.where.mark, f"the schema of {subject!r} has no columns: {error}")]) from error
    return found


def _registry_settings(pipeline: model.Pipeline) -> RegistrySettings:
    return RegistrySettings.parse(pipeline.registry, seconds_of(pipeline.outage))


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
