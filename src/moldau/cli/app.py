"""All commands in one place. Each lives in a file of its own and imports what it needs when it runs."""

import typer

from moldau.cli import (
    app_run,
    certs,
    cluster,
    console,
    consume,
    dlq,
    lag,
    pipeline,
    produce,
    relay,
    serve,
    topic,
    trace,
    user,
)
from moldau.cli.format import format_node

app = typer.Typer(
    name="moldau",
    help="Apache Kafka's design in Python: a broker for stock Kafka clients, and tools for any Kafka cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("cluster")(cluster.cluster)
app.command("format")(format_node)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(topic.app, name="topic")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(app_run.app, name="app")
app.add_typer(dlq.app, name="dlq")
app.add_typer(user.app, name="user")
app.add_typer(certs.app, name="certs")
app.command("lag")(lag.lag)
app.command("trace")(trace.trace)
app.command("relay")(relay.relay)
app.command("console")(console.console)
app.command("console-user")(console.console_user)


def _show_version(wanted: bool) -> None:
    if wanted:
        from moldau import __version__

        typer.echo(f"moldau {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Apache Kafka's design in Python: a broker for stock Kafka clients, and tools for any Kafka cluster."""
