"""The command line: `moldau serve` runs a broker; everything else talks to any Kafka cluster."""


def main() -> None:
    import gc

    # Loading code makes objects that stay: looking for garbage among them is time lost, here and later.
    gc.disable()
    from moldau.cli.app import app

    gc.enable()
    app()


__all__ = ["main"]
