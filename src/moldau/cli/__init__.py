"""The command line: `moldau serve` runs a broker; everything else talks to any Kafka cluster."""


def main() -> None:
    import gc
    import sys

    # Loading code makes objects that stay: looking for garbage among them is time lost, here and later.
    gc.disable()
    if sys.argv[1:2] == ["serve"]:
        from moldau.cli import serving

        arguments = serving.plain_arguments(sys.argv[2:])
        if arguments is not None:
            sys.exit(serving.serve(arguments))
    from moldau.cli.app import app

    gc.enable()
    app()


__all__ = ["main"]
