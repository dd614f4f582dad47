"""The ``dynabro`` command: its subcommands, and what happens to errors."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any

import typer

from dynabro_cli import __version__
from dynabro_cli.cli import db, list_, logs, plot, run, runs, select, show, status, sweep, verify
from dynabro_cli.cli.output import complain
from dynabro_cli.errors import DynabroError, InterruptedRunError, SpecError, StorageError
from dynabro_cli.executors.interruptions import preempted

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Click's error for wrong options; typer brings its own copy of click in some versions and not in others."""

app = typer.Typer(
    name="dynabro",
    help="Byzantine-robust learning with Byzantine workers that change identity during training: run experiments, store "
    "every number in SQL, and read them.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(sweep.sweep)
app.command()(select.select)
app.command()(status.status)
app.command()(logs.logs)
app.command()(plot.plot)
app.command("list")(list_.list_)
app.command()(show.show)
app.command()(runs.runs)
app.command()(runs.query)
app.command()(runs.export)
app.add_typer(verify.app, name="verify")
app.add_typer(db.app, name="db")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dynabro {__version__}")
        raise typer.Exit


@app.callback()
def dynabro(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Byzantine-robust learning with Byzantine workers that change identity during training."""


def main() -> None:
    """Run the command line; every expected error is one line on standard error and a documented exit code."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, preempted)
    try:
        code = app(standalone_mode=False)
        if code == InterruptedRunError.exit_code:  # what some versions of typer make of Ctrl-C, without a word
            complain("interrupted")
    except DynabroError as error:
        for line in str(error).splitlines():
            complain(line)
        code = error.exit_code
    except UsageError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if message:  # it has none where a command without arguments printed its help
            complain(f"{message.rstrip('.')}; type 'dynabro --help'")
        code = SpecError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        code = InterruptedRunError.exit_code
    except SystemExit as error:  # typer's answer to a reader that leaves, as in `| head`, which is no error
        code = 0 if isinstance(error.__context__, BrokenPipeError) else error.code
    except OSError as error:
        code = _unwritable(error)
    sys.exit(_close(code))


def _unwritable(error: OSError) -> int:
    """The exit code where standard output cannot be written: none of an error where its reader has left."""
    if isinstance(error, BrokenPipeError):
        return 0
    complain(f"the output cannot be written ({error.strerror}); make room, or send it elsewhere")
    return StorageError.exit_code


def _close(code: Any) -> Any:
    """Flush the outputs here, where it can be told if that fails; the interpreter's own attempt would end with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = code or (_unwritable(error) if stream is sys.stdout else 0)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code
