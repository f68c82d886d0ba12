"""`moldau registry …`: subjects and schemas of a schema registry, over Confluent's API."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.failure import ExitCode, counted, fail, misused, tell
from moldau.cli.frame import Commands, Output, RegistryTarget

app = Commands(help="Schemas of a registry: list, show, register, check, compatibility, delete.")


class Kind(StrEnum):
    """Confluent's words."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
_SUFFIXES = {".avsc": Kind.AVRO, ".avro": Kind.AVRO, ".json": Kind.JSON, ".proto": Kind.PROTOBUF}
_NOT_DELETED_YET = (40405, 40407)  # a subject, a version
_DELETED_ALREADY = (40404, 40406)
_NO_LEVEL_OF_ITS_OWN = (40408, 40409, 40401)  # a level, a mode, a subject nobody knows

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="For example orders-value.")]
OneSubject = Annotated[str | None, typer.Argument(metavar="SUBJECT", help="Of all others, if none is named.")]
SchemaFile = Annotated[Path, typer.Argument(metavar="FILE", help=".avsc, .json or .proto; - for standard input.")]
Version = Annotated[str, typer.Option("--version", "-v", metavar="N", help="A number, or latest.")]
Deleted = Annotated[bool, typer.Option("--deleted", help="Those that were deleted and can come back, too.")]
Type = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="avro, json or protobuf, if the file's name does not say.")
]
References = Annotated[
    list[str] | None,
    typer.Option("--reference", "-r", metavar="NAME=SUBJECT:VERSION", help="A schema it imports; may be repeated."),
]
Normalize = Annotated[bool, typer.Option("--normalize", help="Let the registry bring it into its usual form first.")]


@app.command("list", watchable=True)
def list_subjects(
    registry: RegistryTarget,
    output: Output,
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Only those that begin with it.")] = "",
    deleted: Deleted = False,
) -> None:
    """Subjects: what schemas are filed under, most often TOPIC-key and TOPIC-value."""
    names = sorted(str(each) for each in _list(registry.ask("GET", "subjects", deleted=deleted)))
    output.show([{"subject": each} for each in names if each.startswith(prefix)], empty="no subjects")


@app.command(watchable=True)
def versions(registry: RegistryTarget, output: Output, subject: Subject, deleted: Deleted = False) -> None:
    """The versions of a subject, with their ids."""
    found = _numbers(registry.ask("GET", "subjects", subject, "versions", deleted=deleted))
    rows = [_row(registry.ask("GET", "subjects", subject, "versions", each, deleted=deleted)) for each in found]
    output.show([{name: value for name, value in row.items() if name != "schema"} for row in rows], empty="no versions")


@app.command()
def show(
    registry: RegistryTarget,
    output: Output,
    subject: Annotated[str | None, typer.Argument(metavar="SUBJECT", help="For example orders-value.")] = None,
    version: Version = "latest",
    schema_id: Annotated[int | None, typer.Option("--id", min=0, help="The schema of this id, instead.")] = None,
    deleted: Deleted = False,
) -> None:
    """A schema, by subject and version, or by id. Only its text is on standard output."""
    if (subject is None) == (schema_id is None):
        misused("say which: SUBJECT, or --id N")
    if subject is not None:
        row = _row(registry.ask("GET", "subjects", subject, "versions", _version(version), deleted=deleted))
        said = f"{row['subject']}, version {row['version']}: id {row['id']}, {row['type']}"
    else:
        row = _row({"id": schema_id, **_object(registry.ask("GET", "schemas", "ids", schema_id or 0), "schema")})
        used = _list(registry.ask("GET", "schemas", "ids", schema_id or 0, "versions", deleted=deleted))
        row["used_by"] = [
            f"{each['subject']}:{each['version']}" for each in (_object(one, "subject", "version") for one in used)
        ]
        said = f"id {schema_id}: {row['type']}, used by {', '.join(row['used_by']) or 'nobody'}"
    if output.is_for_scripts:
        output.show([row], document=row)
        return
    tell(said + (f", imports {' '.join(row['references'])}" if row["references"] else ""))
    if sys.stdout.isatty():
        output.line(_pretty(row["schema"]))
    else:
        typer.echo(row["schema"].removesuffix("\n"), color=True)  # as it is: it may become a file


@app.command()
def references(registry: RegistryTarget, output: Output, subject: Subject, version: Version = "latest") -> None:
    """The schemas that import this one: it cannot be deleted before them."""
    newest = registry.ask("GET", "subjects", subject, "versions", _version(version))
    number = _object(newest, "version")["version"]
    rows = [
        {"subject": used["subject"], "version": used["version"], "id": each}
        for each in _list(registry.ask("GET", "subjects", subject, "versions", number, "referencedby"))
        for found in _list(registry.ask("GET", "schemas", "ids", each, "versions"))
        for used in [_object(found, "subject", "version")]
    ]
    output.show(rows, empty="nobody")


@app.command()
def register(
    registry: RegistryTarget,
    output: Output,
    subject: Subject,
    file: SchemaFile,
    kind: Type = None,
    imports: References = None,
    normalize: Normalize = False,
) -> None:
    """Make a schema the newest version of a subject. One that is there already stays what it is."""
    body = _read(file, kind, imports)
    there = _looked_up(registry, subject, body, normalize=normalize)
    row = there
    if row is None:
        answer = registry.ask("POST", "subjects", subject, "versions", body=body, normalize=normalize)
        schema_id = _object(answer, "id")["id"]
        # Its version is asked for: registries do not agree on saying it.
        row = _looked_up(registry, subject, body, normalize=normalize) or {"id": schema_id}
    result = "registered" if there is None else "there already"
    told = {"subject": subject, "version": row.get("version"), "id": row["id"], "result": result}
    output.done(f"{subject}: version {told['version'] or '?'}, id {told['id']}, {result}", told)


@app.command()
def check(
    registry: RegistryTarget,
    output: Output,
    subject: Subject,
    file: SchemaFile,
    version: Annotated[
        str, typer.Option("--version", "-v", metavar="N", help="Against this one: a number, latest or all.")
    ] = "latest",
    kind: Type = None,
    imports: References = None,
    normalize: Normalize = False,
) -> None:
    """Whether a schema could become the next version. Exit code 6 if not; nothing is changed."""
    body = _read(file, kind, imports)
    against = [] if version == "all" else [_version(version)]
    path = ("compatibility", "subjects", subject, "versions", *against)
    found = _object(registry.ask("POST", *path, body=body, verbose=True, normalize=normalize), "is_compatible")
    is_fine = bool(found.get("is_compatible"))
    reasons = [str(each) for each in found.get("messages") or ()]
    words = "compatible" if is_fine else "not compatible"
    output.done(
        "\n".join([f"{subject}: {words} with {version}", *(f"  {each}" for each in reasons)]),
        {"subject": subject, "version": version, "compatible": is_fine, "reasons": reasons},
    )
    if not is_fine:
        raise typer.Exit(ExitCode.UNHEALTHY)


@app.command()
def level(
    registry: RegistryTarget,
    output: Output,
    subject: OneSubject = None,
    to: Annotated[str | None, typer.Option("--set", metavar="LEVEL", help=f"One of {', '.join(LEVELS)}.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="What holds for all others holds for it again.")] = False,
) -> None:
    """Which changes of a schema are allowed: the level of compatibility, of a subject or of all others."""
    _setting(registry, output, "config", "compatibility", subject, _chosen("--set", to, LEVELS), unset=unset)


@app.command()
def mode(
    registry: RegistryTarget,
    output: Output,
    subject: OneSubject = None,
    to: Annotated[str | None, typer.Option("--set", metavar="MODE", help=f"One of {', '.join(MODES)}.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="What holds for all others holds for it again.")] = False,
    force: Annotated[bool, typer.Option("--force", help="IMPORT although there are schemas already.")] = False,
) -> None:
    """Whether schemas may be registered: the mode, of a subject or of all others. IMPORT takes ids from elsewhere."""
    _setting(registry, output, "mode", "mode", subject, _chosen("--set", to, MODES), unset=unset, force=force)


@app.command()
def delete(
    registry: RegistryTarget,
    output: Output,
    subject: Subject,
    version: Annotated[
        str | None, typer.Option("--version", "-v", metavar="N", help="Only this one; all of them, if not said.")
    ] = None,
    permanent: Annotated[bool, typer.Option("--permanent", help="For good: the ids are unknown from then on.")] = False,
) -> None:
    """Delete a subject, or one version of it. Its ids stay readable, and it can be registered again."""
    from moldau.client.schema_registry import RegistryRefusal

    path: tuple[str | int, ...] = ("subjects", subject)
    if version is not None:
        number = _version(version)
        if permanent and number == "latest":  # it would be another one the second time
            newest = registry.ask("GET", "subjects", subject, "versions", "latest", deleted=True)
            number = _object(newest, "version")["version"]
        path += ("versions", number)
    if permanent:  # what is not deleted yet is deleted first, as registries want it
        try:
            registry.try_to_ask("DELETE", *path)
        except RegistryRefusal as refusal:
            if refusal.status != 404 or refusal.code is None:
                registry.refused(refusal)
    gone = registry.ask("DELETE", *path, permanent=permanent)
    numbers = _numbers(gone if isinstance(gone, list) else [gone])
    result = "deleted for good" if permanent else "deleted"
    rows = [{"subject": subject, "version": each, "result": result} for each in numbers]
    if output.is_for_scripts:
        output.show(rows)
    else:
        output.line(f"{result} {counted(len(rows), 'version')} of {subject}: {' '.join(map(str, numbers))}")


def _setting(
    registry: RegistryTarget,
    output: Output,
    what: str,
    name: str,
    subject: str | None,
    to: str | None,
    *,
    unset: bool,
    force: bool = False,
) -> None:
    """`config` and `mode` of registries work alike."""
    if unset and (to is not None or subject is None):
        misused("--unset goes with a SUBJECT, and not with --set")
    path = (what, *([subject] if subject is not None else []))
    if unset:
        registry.ask("DELETE", *path)
    elif to is not None:
        registry.ask("PUT", *path, body={name: to}, force=force)
    found, is_own = _effective(registry, what, subject)
    row = {"subject": subject, name: found.get(f"{name}Level", found.get(name)), "from": "subject" if is_own else "all"}
    place = subject or "all subjects"
    if is_own or subject is None:
        output.done(f"{place}: {row[name]}", row)
    else:
        output.done(f"{place}: {row[name]}, as all that have none of their own", row)


def _effective(registry: RegistryTarget, what: str, subject: str | None) -> tuple[Any, bool]:
    """What holds, and whether it was said of this subject."""
    from moldau.client.schema_registry import RegistryRefusal

    if subject is not None:
        try:
            return _object(registry.try_to_ask("GET", what, subject)), True
        except RegistryRefusal as refusal:
            if refusal.code not in _NO_LEVEL_OF_ITS_OWN:
                registry.refused(refusal)
    return _object(registry.ask("GET", what)), False


def _chosen(option: str, given: str | None, known: tuple[str, ...]) -> str | None:
    if given is None:
        return None
    word = given.upper().replace("-", "_")
    if word not in known:
        misused(f"{option} {given}: one of {', '.join(known)}")
    return word


def _version(given: str) -> str | int:
    if given == "latest":
        return given
    if not (given.isascii() and given.isdecimal() and 0 < int(given) < 1 << 31):
        misused(f"--version {given}: a number from 1, or latest")
    return int(given)


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else fail("what answers is no schema registry: it sends no list")


def _numbers(found: Any) -> list[int]:
    if not all(isinstance(each, int) for each in _list(found)):
        fail("what answers is no schema registry: its versions are no numbers")
    return sorted(found)


def _object(found: Any, *names: str) -> dict[str, Any]:
    """With what is asked for by name."""
    if not isinstance(found, dict) or not all(each in found for each in names):
        fail(f"what answers is no schema registry: it sends no {' and '.join(names) or 'object'}")
    return found


def _row(found: Any) -> dict[str, Any]:
    """A schema as all commands show it. Confluent's registry leaves out what is usual: AVRO, no references."""
    if not isinstance(found, dict) or "schema" not in found:
        fail("what answers is no schema registry: it sends no schema")
    row: dict[str, Any] = {name: found[name] for name in ("subject", "version") if name in found}
    imported = [_object(each, "name", "subject", "version") for each in _list(found.get("references") or [])]
    return row | {
        "id": found.get("id"),
        "type": found.get("schemaType", Kind.AVRO.value),
        "references": [f"{each['name']}={each['subject']}:{each['version']}" for each in imported],
        "schema": str(found["schema"]),
    }


def _looked_up(
    registry: RegistryTarget, subject: str, body: dict[str, Any], *, normalize: bool
) -> dict[str, Any] | None:
    """The version under which it is there, if it is."""
    from moldau.client.schema_registry import RegistryRefusal

    try:
        found = registry.try_to_ask("POST", "subjects", subject, body=body, normalize=normalize)
    except RegistryRefusal as refusal:
        if refusal.status == 404 and refusal.code is not None:
            return None
        registry.refused(refusal)
    return _object(found, "id")


def _read(file: Path, kind: str | None, imports: list[str] | None) -> dict[str, Any]:
    """A schema as registries take it; what can be seen to be wrong is said before anybody is asked."""
    chosen = _chosen("--type", kind, tuple(Kind)) or _SUFFIXES.get(file.suffix.lower())
    if chosen is None:
        misused(f"--type: is {file} avro, json or protobuf? Its name does not say")
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        misused(f"cannot read {file}: {error.strerror}")
    except UnicodeDecodeError as error:
        misused(f"{file} is no UTF-8: {error}")
    if not text.strip():
        misused(f"{file} is empty")
    if chosen != Kind.PROTOBUF:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            misused(f"{file} is no {chosen} schema: it is no JSON ({error})")
    body: dict[str, Any] = {"schema": text}
    if chosen != Kind.AVRO:
        body["schemaType"] = str(chosen)
    if imports:
        body["references"] = [_reference(each) for each in imports]
    return body


def _reference(text: str) -> dict[str, Any]:
    name, equals, place = text.partition("=")
    subject, colon, version = place.rpartition(":")
    if not (name and equals and subject and colon and version.isascii() and version.isdecimal()):
        misused(f"--reference {text}: write NAME=SUBJECT:VERSION, for example shop.Price=price-value:1")
    return {"name": name, "subject": subject, "version": int(version)}


def _pretty(schema: str) -> str:
    """For people; what is no JSON is shown as it is."""
    try:
        return json.dumps(json.loads(schema), indent=2, ensure_ascii=False)
    except ValueError:
        return schema
