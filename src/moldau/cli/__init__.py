"""The command line: `moldau serve` runs a broker; everything else talks to any Kafka cluster.

Nobody sees a traceback who did not ask for it: what no command foresaw ends in one line, and `--debug` (anywhere on
the line) or `MOLDAU_DEBUG=1` shows where it came from.
"""

import sys

_DEBUG = "--debug"
_INTERRUPTED = 130  # as shells report an end by Ctrl-C


def main() -> None:
    import os

    arguments, is_debug = _without_debug(sys.argv[1:])
    sys.argv[1:] = arguments
    try:
        _dispatch(arguments)
    except KeyboardInterrupt:
        if is_debug:
            raise
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has gone, as `head` does: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if is_debug or os.environ.get("MOLDAU_DEBUG"):
            raise
        reason = str(error) or "no reason given"
        print(f"moldau: {type(error).__name__}: {reason} ({_DEBUG} shows where)", file=sys.stderr)
        sys.exit(1)


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments less `--debug`, which may stand anywhere before `--`, and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [each for each in arguments[:end] if each != _DEBUG]
    return options + arguments[end:], len(options) < end


def _dispatch(arguments: list[str]) -> None:
    import gc

    # Loading code makes objects that stay: looking for garbage among them is time lost, here and later.
    gc.disable()
    if arguments[:1] == ["serve"]:
        from moldau.cli import serving

        plain = serving.plain_arguments(arguments[1:])
        if plain is not None:
            sys.exit(serving.serve(plain))
    from moldau.cli.app import app

    gc.enable()
    app()


__all__ = ["main"]
