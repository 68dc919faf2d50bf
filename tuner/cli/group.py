"""The command line's top: its commands by name, imported only when one of them is used."""

import difflib
import importlib
import importlib.util
from collections.abc import Mapping

import click

from tuner import __version__
from tuner.cli.options import verbosity_options
from tuner.errors import UsageError

# name -> where the command is, and its line in `tuner --help` (a test compares the two)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("tuner.cli.init:init", "Write a commented study file to start from."),
    "run": ("tuner.cli.run:run", "Search for the fastest configuration of a model."),
    "resume": ("tuner.cli.run:resume", "Go on with a study that was stopped."),
    "rank": ("tuner.cli.rank:rank", "Show the leaderboard of a study."),
    "compare": (
        "tuner.cli.compare:compare",
        "Say whether the best throughput fell between two studies.",
    ),
    "show": ("tuner.cli.show:show", "Show everything that is known of one trial."),
    "export": (
        "tuner.cli.export:export",
        "Write a trial's configuration in the words of a trainer.",
    ),
    "report": (
        "tuner.cli.report:report",
        "Write the report of a study: the winner and why, in tables and figures.",
    ),
    "serve": ("tuner.cli.serve:serve", "Show studies and trials in the browser, read-only."),
    "watch": (
        "tuner.cli.watch:watch",
        "Watch a running study: progress, running trials, best so far, last failures.",
    ),
    "studies": ("tuner.cli.studies:studies", "List the studies of a database."),
    "sql": ("tuner.cli.sql:sql_command", "Ask the results database in SQL, read-only."),
    "db": ("tuner.cli.db:db_group", "Look after the results database."),
    "import": ("tuner.cli.db:import_command", "Take over another tool's results as a new study."),
    "plan": ("tuner.cli.plan:plan", "Predict the fastest configurations without running any."),
    "calibrate": (
        "tuner.cli.calibrate:calibrate",
        "Measure this machine and write it down as a cluster file.",
    ),
    "why": ("tuner.cli.why:why", "Say whether a configuration is legal, and if not, why."),
    "spaces": ("tuner.cli.spaces:spaces", "List knobs, rules, searchers, launchers and adapters."),
    "presets": ("tuner.cli.spaces:presets", "List the models and clusters that come along."),
    "smoke": ("tuner.cli.checks:smoke", "Run a tiny search end to end, in under a minute."),
    "doctor": (
        "tuner.cli.checks:doctor",
        "Check this machine before the first trial, and the cluster if one is given.",
    ),
    "completion": ("tuner.cli.completion:completion", "Print the script for shell completion."),
}  # fmt: skip


class LazyGroup(click.Group):
    """A group that knows its commands' names and help, but imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, of the commands that are installed."""
        return [name for name, (place, _) in COMMANDS.items() if _is_installed(place)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 -- the table is ours
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name for a misspelt command."""
        known = self.list_commands(ctx)
        name = args[0]
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"no command is called {name!r}", f"{hint}known: {', '.join(known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _is_installed(place: str) -> bool:
    return importlib.util.find_spec(place.partition(":")[0]) is not None


_EPILOG = """\b
Examples:
  tuner run --model gpt2-124m          search on the devices of this machine
  tuner init && tuner run study.toml   the same from a file that you can edit
  tuner rank --top 5                   the fastest of the newest study
  tuner show 7                         one trial: steps, ranks, memory, failure

\b
Exit codes: 0 ok, 1 a fault of the tuner, 2 wrong usage or study file, 3 nothing feasible,
4 the machine lacks something, 5 results database, 6 not expressible in that trainer,
7 slower than before (tuner compare), 130 interrupted (go on with tuner resume).
"""


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tuner")
@verbosity_options
def tuner() -> None:
    """Find the fastest way to train a model on the machines you have, by measuring it."""
