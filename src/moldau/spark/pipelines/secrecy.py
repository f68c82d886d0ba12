"""Texts for people without what they should not see: secrets of the file, and passwords in URLs.

Invariant: what a pipeline raises, writes into its status or says holds no secret of its file, wherever in the file the
secret stands, and however whoever complains about it has written it (quoted, escaped, in capitals).
"""

from __future__ import annotations

import functools
import json
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import PipelineError, Problem

P = ParamSpec("P")
T = TypeVar("T")
_HIDDEN_SETTINGS = "spark.redaction.regex"
_HIDDEN_BY_SPARK = "(?i)secret|password|token|access[.]?key"  # unless told otherwise
_HIDDEN_TEXT = "spark.sql.redaction.string.regex"
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*:)\S+@")
_LINE_CHARACTERS_MIN = 4  # of a secret with several lines, each that could tell something


def redacted(text: str, pipeline: model.Pipeline | None = None) -> str:
    return concealed(text, pipeline.secrets if pipeline is not None else ())


def concealed(text: str, secrets: Iterable[str]) -> str:
    forms = {form for secret in secrets for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = re.sub(re.escape(form), "***", text, flags=re.IGNORECASE)
    return _URL_PASSWORD.sub(r"\1***@", text)


def _forms(secret: str) -> Iterator[str]:
    """A secret as it is, and as messages have it."""
    lines = [line.strip() for line in secret.splitlines()]
    for part in (secret, secret.strip(), *(each for each in lines if len(each) >= _LINE_CHARACTERS_MIN)):
        if part:
            yield part
            yield repr(part)[1:-1]
            yield json.dumps(part)[1:-1]
            yield json.dumps(part, ensure_ascii=False)[1:-1]
            yield urllib.parse.quote(part, safe="")
            yield urllib.parse.quote_plus(part)


def spark_settings(pipeline: model.Pipeline) -> dict[str, str]:
    """The pipeline's settings of Spark, and which of them its pages must not show."""
    found = dict(pipeline.spark)
    hidden = [name for name, value in found.items() if any(secret in value for secret in pipeline.secrets)]
    if hidden:
        known = found.get(_HIDDEN_SETTINGS, _HIDDEN_BY_SPARK)
        found[_HIDDEN_SETTINGS] = "|".join((known, *(f"^{re.escape(name)}$" for name in hidden)))
    return found


def hide_in_plans(session: Any, pipeline: model.Pipeline) -> None:
    """A secret in an expression is part of Spark's plan. Its text hides it then; single nodes Spark never redacts."""
    if pipeline.secrets:
        forms = sorted((re.escape(secret) for secret in pipeline.secrets), key=len, reverse=True)
        known = session.conf.get(_HIDDEN_TEXT, None)
        # The last one fits nothing: the word in it makes Spark hide this setting, too.
        session.conf.set(_HIDDEN_TEXT, "|".join((*([known] if known else []), *forms, "(?!)secret")))


def without_secrets(error: PipelineError, secrets: Iterable[str]) -> PipelineError:
    secrets = list(secrets)
    problems = [
        Problem(each.mark, concealed(each.message, secrets), concealed(each.fix, secrets)) for each in error.problems
    ]
    return PipelineError(problems, concerns=error.concerns)


def tells_secrets(error: BaseException | None, secrets: Iterable[str]) -> bool:
    """Whether an exception, or one that led to it, has a secret in its text: a traceback would show it."""
    secrets = list(secrets)
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if concealed(str(error), secrets) != str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def keeping_secrets(
    work: Callable[Concatenate[model.Pipeline, P], T],
) -> Callable[Concatenate[model.Pipeline, P], T]:
    """For what is done with a pipeline: an exception that would tell a secret is replaced by one that does not, and
    nothing leads back to it."""

    @functools.wraps(work)
    def guarded(pipeline: model.Pipeline, /, *args: P.args, **options: P.kwargs) -> T:
        told: PipelineError
        try:
            return work(pipeline, *args, **options)
        except Exception as error:
            if not tells_secrets(error, pipeline.secrets):
                raise
            if isinstance(error, PipelineError):
                told = without_secrets(error, pipeline.secrets)
            else:
                message = concealed(f"{type(error).__name__}: {error}", pipeline.secrets)
                told = PipelineError([Problem(pipeline.where.mark, message)])
        raise told

    return guarded
