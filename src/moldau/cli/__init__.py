"""The command line: `moldau serve` runs a broker; everything else talks to any Kafka cluster."""


def main() -> None:
    from moldau.cli.app import app

    app()


__all__ = ["main"]
