"""The command line: `moldau serve` runs a broker; everything else talks to any Kafka cluster.

Nobody sees a traceback who did not ask for it: what no command foresaw ends in one line, and `--debug` (anywhere on
the line) or `MOLDAU_DEBUG=1` shows where it came from.

Invariant: this module imports nothing that the interpreter has not loaded by itself. A Ctrl-C is kept quiet from `run`
on, so what is loaded before is where one shows a traceback.
"""

import sys

TYPE_CHECKING = False  # as typing has it, which takes ten milliseconds to load
if TYPE_CHECKING:
    from typing import Any

_DEBUG = "--debug"
_DEBUG_VARIABLE = "MOLDAU_DEBUG"
_INTERRUPTED = 130  # as shells report an end by Ctrl-C
_NO_SPACE = 28  # ENOSPC; nothing is loaded for it
_PIPE_CLOSED = 141  # and one by a pipe that nobody reads
_TERMINATED = 143  # and one by SIGTERM


def main() -> None:
    status = run(sys.argv[1:])
    if status == _TERMINATED:  # what was begun is in order; who sent it sees that it worked
        import os
        import signal

        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Do what the arguments say; the exit status."""
    import os

    _open_what_is_closed()
    _show_what_can_be_shown()
    arguments, is_debug = _without_debug(arguments)
    sys.argv[1:] = arguments
    if not is_debug:
        return _done(arguments, is_debug=bool(os.environ.get(_DEBUG_VARIABLE)))
    before = os.environ.get(_DEBUG_VARIABLE)
    os.environ[_DEBUG_VARIABLE] = "1"
    try:
        return _done(arguments, is_debug=True)
    finally:  # for who runs commands in a process that goes on
        if before is None:
            del os.environ[_DEBUG_VARIABLE]


def _done(arguments: list[str], *, is_debug: bool) -> int:
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        if is_debug:
            raise
        return _INTERRUPTED
    except BrokenPipeError:
        return _leave_output()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # Rich's way to end
            return _leave_output()
        raise
    except Exception as error:
        if type(error).__name__ == "ReaderGone":
            return _leave_output()
        if is_debug:
            raise
        from moldau.cli.harmless import harmless_cell

        if isinstance(error, OSError) and error.strerror and (error.filename or error.errno == _NO_SPACE):
            what = harmless_cell(str(error.filename or "the output cannot be written"))
            print(f"moldau: {what}: {error.strerror}", file=sys.stderr)
            return 1
        reason = harmless_cell(str(error)) or "no reason given"
        print(f"moldau: {type(error).__name__}: {reason} ({_DEBUG} shows where)", file=sys.stderr)
        return 1
    return status


def _open_what_is_closed() -> None:
    """Who closes our output (`>&-`) wants none; without this, what is opened next would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            import os

            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115  for good


def _show_what_can_be_shown() -> None:
    """An output of fewer letters than Unicode has (PYTHONIOENCODING, an old locale) gets the others spelled out."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        reconfigure(errors="backslashreplace")


def _leave_output() -> int:
    """Whoever read our output has gone, as `head` does: nobody is left to tell, and the interpreter need not try."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _PIPE_CLOSED


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments less `--debug`, which may stand anywhere before `--`, and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [each for each in arguments[:end] if each != _DEBUG]
    return options + arguments[end:], len(options) < end


def _dispatch(arguments: list[str]) -> int:
    import gc

    # Loading code makes objects that stay: looking for garbage among them is time lost, here and later.
    gc.disable()
    if arguments[:1] == ["serve"]:
        from moldau.cli import serving

        plain = serving.plain_arguments(arguments[1:])
        if plain is not None:
            return serving.serve(plain)
    from moldau.cli.app import app
    from moldau.cli.terminating import terminable

    gc.enable()
    with terminable() as ended:
        try:
            status: Any = app(arguments, prog_name="moldau", standalone_mode=False)
        except Exception as error:
            status = _misused(error)
        except KeyboardInterrupt:
            if not ended:
                raise
            status = _INTERRUPTED
    if ended and status == _INTERRUPTED:
        return _TERMINATED
    return status if isinstance(status, int) else 0


def _misused(error: Exception) -> int:
    """A wrong command line: one line, and where to look. Other errors go on."""
    if type(error).__name__ == "Abort":
        return _INTERRUPTED
    if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
        raise error
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        text = error.format_message()  # with Rich it is printed already
        if text.strip():
            print(text)
        return 0 if context is not None and context.parent is None else int(error.exit_code)
    where = f" ({context.command_path} --help shows more)" if context is not None else ""
    from moldau.cli.harmless import harmless_cell

    print(f"moldau: {harmless_cell(error.format_message())}{where}", file=sys.stderr)
    return int(error.exit_code)


__all__ = ["main", "run"]
