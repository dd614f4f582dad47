"""The ``dynabro`` command: its subcommands and the handling of errors."""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from dynabro_cli import __version__
from dynabro_cli.cli.hints import advice
from dynabro_cli.core.errors import (
    DatabaseError,
    DynabroError,
    InterruptedRunError,
    PreemptedError,
    SpecError,
)
from dynabro_cli.core.lazy import torch, when_loaded
from dynabro_cli.core.machine.settings import check_settings
from dynabro_cli.experiment.spec import fields
from dynabro_cli.runs.executors.interruptions import check_arrived, handle_signals
from dynabro_cli.runs.screen.terminal import close, complain, in_use, prepare, say, unwritable

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Click's error for wrong options; some versions of typer include a copy of click."""

COMPLETION = ("--install-completion", "--show-completion")
HELP_OPTIONS = ["-h", "--help"]
HELP_ALL = "--help-all"
MAIN_OPTIONS = {
    "run": "--task --model --method --aggregator --pre --attack --switching --workers --byzantine "
    "--budget --batch-size --lr --eval-every --seed --data --db --device --threads --rerun "
    "--save-model --log --tag --json --quiet --plugin".split(),
    "sweep": "name --set --dry-run --db --jobs --device --data-dir --threads --retry-failed "
    "--rerun --log --tag --json --quiet --plugin".split(),
}
"""Options and arguments in the short help of commands with many."""
NEW_OBJECTS = 50_000
"""Objects between two searches for unused ones: importing modules makes many objects, and nearly
all of them stay.
"""
MOST_LINES = 200
"""Most lines of one error: each point of a sweep of 100,000 may have a problem."""

GROUPS = {
    "Make runs": {
        "demo": "make.demo.demo",
        "run": "make.run.run",
        "sweep": "make.sweep.sweep",
        "search": "make.search.search",
        "status": "read.status.status",
        "logs": "read.show.logs",
    },
    "Answer questions": {
        "plot": "read.plot.plot",
        "compare": "read.compare.compare",
        "select": "make.select.select",
        "leaderboard": "read.leaderboard.leaderboard",
        "report": "read.web.report",
        "verify": "make.verify.app",
    },
    "Read the database": {
        "runs": "read.runs.runs",
        "query": "read.runs.query",
        "export": "read.runs.export",
        "diff": "read.diff.diff",
        "evaluate": "make.evaluate.evaluate",
        "browse": "read.web.browse",
        "tag": "read.runs.tag",
        "db": "db.app",
    },
    "Components": {
        "list": "read.catalogue.list_",
        "show": "read.show.show",
        "new": "read.catalogue.new",
    },
}
"""The module and the function of each command, or its commands, by the group and in the order of
the help.
"""
COMMANDS = {name: place for group in GROUPS.values() for name, place in group.items()}


def application(command: str | None = None) -> typer.Typer:
    """Return the application with one command, whose module alone is imported; with all of them for
    any other word.
    """
    app = typer.Typer(
        name="dynabro",
        help="Byzantine-robust learning with Byzantine workers that change identity during "
        "training: run experiments, store "
        "every number in SQL, and read them.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": HELP_OPTIONS},
    )
    app.callback()(dynabro)
    for group, commands in GROUPS.items():
        for name, place in commands.items():
            if command in COMMANDS and name != command:
                continue
            module, _, function = place.rpartition(".")
            loaded = getattr(importlib.import_module(f"{__package__}.{module}"), function)
            if isinstance(loaded, typer.Typer):
                app.add_typer(loaded, name=name, rich_help_panel=group)
            else:
                app.command(name, rich_help_panel=group)(loaded)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        say(f"dynabro {__version__}")
        raise typer.Exit


def dynabro(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Byzantine-robust learning with Byzantine workers that change identity during training."""
    for line in check_settings():
        complain(f"warning: {line}")


def _plain(command: Any) -> Any:
    """Return ``command`` with help texts in which brackets are plain text, as in ``[default:
    none]``, not markup of rich, and whose paragraphs are as wide as the terminal.

    Its options that take one value are refused if they are given twice.
    """
    for part in (command, *command.params):
        if getattr(part, "help", None):
            part.help = re.sub(r"(\\*)(?=\[[a-z#/@])", r"\1\1\\", part.help)
            part.help = re.sub(r"(?<=\S)\n(?=\S)", " ", part.help)
    if command.name == "run":
        for option in command.params:  # the fields are the panel without a name, which comes first
            option.rich_help_panel = None if option.name in fields() else "Making and storing"
    if command.name in MAIN_OPTIONS:
        command.context_settings = {"help_option_names": [*HELP_OPTIONS, HELP_ALL]}
        command.format_help = functools.partial(_short_help, command, command.format_help)
    command.make_parser = functools.partial(_strict_parser, command.make_parser)
    for child in getattr(command, "commands", {}).values():
        _plain(child)
    return command


def _short_help(command: Any, format_help: Callable[..., None], *places: Any) -> None:
    """Print the help of a command with its main options, or with all of them."""
    names = () if HELP_ALL in sys.argv else MAIN_OPTIONS[command.name]
    # hidden for the help alone: shells complete no hidden options
    more = [each for each in command.params if names and each.opts[0] not in names]
    for option in more:
        option.hidden = True
    format_help(*places)
    for option in more:
        option.hidden = False
    if more:
        say(f" {len(more)} more options: dynabro {command.name} {HELP_ALL}")


def _strict_parser(make: Callable[[Any], Any], context: Any) -> Any:
    """Return a command's parser, which raises SpecError if an option for one value is given twice:
    click keeps the last one.
    """
    parser = make(context)
    parse = parser.parse_args

    def parse_once(args: list[str]) -> Any:
        words = list(args)  # click's parser empties its list
        options, others, order = parse(args=args)
        for option, times in Counter(order).items():
            if times > 1 and not (option.multiple or option.is_flag or context.resilient_parsing):
                advice = "one of them"
                if context.info_name == "run" and option.name in fields():
                    advice += f", or for all of them: {_as_sweep(option.name, order, words)}"
                raise SpecError(
                    f"{option.opts[0]}: it is given twice, and takes one value. Try: {advice}"
                )
        return options, others, order

    parser.parse_args = parse_once
    return parser


def _as_sweep(name: str, options: Iterable[Any], words: Sequence[str]) -> str:
    """Return a command for the runs with every value of the fields that ``dynabro run`` was
    given.
    """
    typed = [
        (*word.split("=", 1), following)[:2] for word, following in itertools.pairwise([*words, ""])
    ]
    settings = ""
    for option in dict.fromkeys(options):
        values = [value for word, value in typed if word in option.opts and option.name in fields()]
        # a chain of pre-aggregators is one value
        values = ["+".join(values)] if option.multiple and values else values
        settings += "".join(f" --set {shlex.quote(f'{option.name}={value}')}" for value in values)
    return f"echo 'name: {name}' | dynabro sweep -{settings}"


def main() -> None:
    """Run the command line; every expected error becomes one line on standard error and a
    documented exit code.
    """
    prepare()
    _search_rarely()
    handle_signals()
    try:
        code = _command()
        # some versions of typer raise this for Ctrl-C, without a message
        if code == InterruptedRunError.exit_code:
            complain("interrupted")
    except DynabroError as error:
        lines = error.problems if isinstance(error, SpecError) else [str(error)]
        # which does not name the row
        if isinstance(error, DatabaseError) and isinstance(error.__cause__, ValueError):
            lines = [_wrong_row() or str(error)]
        for line in lines[:MOST_LINES]:
            complain(line)
        if len(lines) > MOST_LINES:
            complain(f"{len(lines) - MOST_LINES} more lines are not shown")
        code = error.exit_code
    except UsageError as error:
        if line := _refusal(error):
            complain(line)
        code = SpecError.exit_code
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        code = InterruptedRunError.exit_code
    # typer's exit when the reader of a pipe leaves, as in `| head`; this is not an error
    except SystemExit as error:
        code = 0 if isinstance(error.__context__, BrokenPipeError) else error.code
    except OSError as error:
        code = unwritable(error)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        problem = _wrong_row()
        if problem is None:
            raise
        complain(problem)
        code = DatabaseError.exit_code
    sys.exit(close(code))


def _refusal(error: Any) -> str:
    """Return click's message of wrong words with what to type instead; empty if the error has no
    message, because a command without arguments printed its help.
    """
    message: str = error.format_message()
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "dynabro")
    parameters = getattr(getattr(context, "command", None), "params", ())
    options = {name for parameter in parameters for name in parameter.opts}
    named = getattr(error, "option_name", None)
    unknown = named if hasattr(error, "possibilities") else None
    better = advice(sys.argv[1:], unknown, options, None if unknown else named)
    if better and unknown:  # click's own guesses are of words that look alike
        message = f"there is no option {unknown}"
    elif better:
        message = message.partition(" Did you mean")[0]
    end = "?" if message.endswith("?") else "."
    return message and f"{message.rstrip('.?')}{end} Try: {better or f'{command} --help'}"


def _wrong_row() -> str | None:
    """Return the first problem of the database in use, as ``db check`` finds it; None if it finds
    none.

    Databases are not checked when they are opened, because that reads each value. So a command that
    fails at a value that dynabro has not written looks for it afterwards.
    """
    from dynabro_cli.runs.store.care.check import check

    try:
        problems = check(in_use()).problems
    except Exception:  # the command's own error says more
        return None
    return f"{problems[0]}. Try: dynabro db check, which lists all problems" if problems else None


def _command() -> Any:
    """Run the command; a signal replaces the error that it causes, because SQLite drops the
    exceptions of handlers.
    """
    try:
        # a shell that completes a line has it in the environment
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        words = sys.argv[1:] or line.split()[1:]
        command = words[0] if words else None
        if command in COMPLETION and len(words) > 1:
            raise SpecError(f"{command} takes no value. Try: dynabro {command}")
        return _plain(typer.main.get_command(application(command)))(
            standalone_mode=False, prog_name="dynabro"
        )
    except (PreemptedError, InterruptedRunError):
        raise
    except Exception:
        check_arrived()
        raise


def _search_rarely() -> None:
    """Search for unused objects rarely until torch is loaded: these objects may hold large
    tensors.
    """
    usual = gc.get_threshold()
    if 0 < usual[0] < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, *usual[1:])
        when_loaded(torch, lambda: gc.set_threshold(*usual))
