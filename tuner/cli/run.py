"""`tuner run` and `tuner resume`: carry out a study, with progress, and say what came of it."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import EXIT_INTERRUPTED, formats
from tuner.cli.inputs import launcher_option, searcher_option, space_options, study_config
from tuner.cli.interrupts import StopOnSignal
from tuner.cli.leaderboard import (
    Leaderboard,
    against_baseline,
    footnotes,
    print_leaderboard,
    read_leaderboard,
)
from tuner.cli.options import json_option, store_option, stored_study_argument, verbosity_options
from tuner.cli.output import print_json, say
from tuner.cli.progress import make_display
from tuner.cli.stores import store_and_name
from tuner.config import default_store_url, without_password
from tuner.errors import NothingFeasibleError
from tuner.parts import check_parts

if TYPE_CHECKING:
    from tuner.controller import StudyOutcome
    from tuner.study import Study

_NUM_SHOWN = 10
# What may help where every trial failed, by the last one's kind of failure.
_CURES = {
    "timeout": "raise measure.deadline_s or make the step smaller; ",
    "oom": "use more devices, a smaller micro-batch, ZeRO or recomputation; ",
}
_QUERY = "SELECT study, config, tokens_per_s FROM best_configs"

plain_option = click.option("--plain", is_flag=True, help="Plain lines in place of a live display.")
max_trials_option = click.option(
    "--max-trials", type=int, metavar="N", help="Configurations to search."
)


@click.command(
    epilog="\b\nExamples:\n  tuner run --model gpt2-124m --max-trials 12\n  tuner run study.toml\n"
    "  tuner run study.toml --set space.tp=[1,2] --set training.dtype=bf16\n"
    "  tuner run study.toml --dry-run   what would be tried\n\n"
    "Without STUDY.toml and --model, study.toml or tuner.toml of this folder or one above it is "
    "used. Ctrl-C stops "
    "in good order (exit code 130), and `tuner resume` goes on."
)
@space_options
@max_trials_option
@searcher_option
@launcher_option
@store_option
@click.option("--name", metavar="NAME", help="Name of the study.")
@click.option("--dry-run", is_flag=True, help="Show what would be tried; run and store nothing.")
@plain_option
@json_option
@verbosity_options
@click.pass_context
def run(
    ctx: click.Context,
    /,
    study: str | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    plain: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Search for the fastest configuration of a model."""
    from tuner.study import create_study

    config = study_config(study, overrides, **options)
    check_parts(config)
    if dry_run:
        from tuner.cli.dry_run import show_plan

        show_plan(config, as_json=as_json)
        return
    ctx.exit(carry_out(create_study(config), plain=plain, as_json=as_json))


@click.command(
    epilog="\b\nExamples:\n  tuner resume                   the newest study\n"
    "  tuner resume my-study\n  tuner resume my-study --max-trials 48   with a larger budget\n"
    "  tuner resume my-study --join           help the process that runs it\n\n"
    "A trial that is finished is never run again."
)
@stored_study_argument
@store_option
@max_trials_option
@click.option("--join", is_flag=True, help="Run trials of a study that another process leads.")
@plain_option
@json_option
@verbosity_options
@click.pass_context
def resume(
    ctx: click.Context,
    study: str | None,
    store: str | None,
    max_trials: int | None,
    join: bool,
    plain: bool,
    as_json: bool,
) -> None:
    """Go on with a study that was stopped."""
    from tuner.study import open_study

    url, name = store_and_name(study, store)
    opened = open_study(url, name)
    if max_trials is not None:
        search = opened.config.search.model_copy(update={"max_trials": max_trials})
        opened.config = opened.config.model_copy(update={"search": search})
    if join:
        ctx.exit(_join(opened, plain=plain, as_json=as_json))
    say(f"resuming {opened.name}")
    ctx.exit(carry_out(opened, plain=plain, as_json=as_json))


def _join(study: "Study", *, plain: bool, as_json: bool) -> int:
    """Help a study that another process leads; the exit code."""
    from tuner.trial_joiner import join_study

    say(f"helping {study.name}")
    display = make_display(_title(study), plain=plain)
    with StopOnSignal(display.on_stop) as signals, display:
        outcome = join_study(study, display, signals.stop)
    study.store.close()
    if as_json:
        print_json(
            {"study": study.name, "num_trials": outcome.num_trials, "reason": outcome.reason}
        )
    else:
        say(f"ran {outcome.num_trials} trials of {study.name}; left because {outcome.reason}")
    return EXIT_INTERRUPTED if signals.stop.is_set() else 0


def carry_out(study: "Study", *, plain: bool = False, as_json: bool = False) -> int:
    """Run a study to its end or until Ctrl-C, and print what came of it.

    Returns:
        The exit code.
    """
    from tuner.controller import run_study

    display = make_display(_title(study), plain=plain)
    with StopOnSignal(display.on_stop) as signals, display:
        outcome = run_study(study, display, signals.stop)
    board = read_leaderboard(study.store, study.store.get_study(study.id))
    study.store.close()
    if as_json:
        print_json(_document(outcome, board))
    else:
        _print_for_people(study, outcome, board)
    if outcome.status == "interrupted":
        return EXIT_INTERRUPTED
    return _exit_code(outcome, board)


def _title(study: "Study") -> str:
    cluster = study.cluster
    devices = f"{cluster.num_devices} x {cluster.device_name}"
    return (
        f"study {study.name}: {study.model.name} on {devices}, {len(study.candidates)} legal"
        f" configurations, searcher {study.config.search.searcher},"
        f" launcher {study.config.launcher.name}"
    )


def _exit_code(outcome: "StudyOutcome", board: Leaderboard) -> int:
    """0 where there is a result.

    Raises:
        NothingFeasibleError: every trial failed; the message says why the last one did.
    """
    if board.rows:
        return 0
    failures = [row.failure for row in board.trials if row.failure is not None]
    why = f"; the last one said: {failures[-1].message}" if failures else ""
    cure = _CURES.get(failures[-1].kind, "") if failures else ""
    raise NothingFeasibleError(
        f"none of {len(board.trials)} trials gave a number{why}",
        hint=f"{cure}`tuner rank --all` lists the reasons, `tuner show N -v` has the traceback",
    )


def _document(outcome: "StudyOutcome", board: Leaderboard) -> dict[str, Any]:
    return {
        "study": board.study.name,
        "status": outcome.status,
        "reason": outcome.reason,
        "num_trials": outcome.num_trials,
        "median_tokens_per_s": board.median_tokens_per_s,
        "baseline_tokens_per_s": board.baseline_tokens_per_s,
        "leaderboard": board.records(),
    }


def _print_for_people(study: "Study", outcome: "StudyOutcome", board: Leaderboard) -> None:
    say(f"\n{formats.plural(outcome.num_trials, 'trial')}; {outcome.reason}")
    if board.rows:
        print_leaderboard(board, _NUM_SHOWN)
        for note in footnotes(board, _NUM_SHOWN):
            say(note)
        _print_verdict(board)
    steps = _next_steps(study, board, is_finished=outcome.status == "completed")
    width = max((len(command) for command, _ in steps), default=0)
    for command, purpose in steps:
        say(f"  {command:<{width}}  {purpose}")


def _print_verdict(board: Leaderboard) -> None:
    best = board.records(1)[0]
    against = f"{formats.ratio(best['speedup_vs_median'])} the median configuration"
    if baseline := against_baseline(board):
        against += f", {baseline}"
    say(f"\nbest: {best['label']}, {formats.throughput(best['tokens_per_s'])} tokens/s, {against}")
    if board.num_leaders > 1:
        rivals = formats.plural(board.num_leaders - 1, "other")
        say(f"the measurements cannot tell it from {rivals} at position 1")


def _next_steps(study: "Study", board: Leaderboard, *, is_finished: bool) -> list[tuple[str, str]]:
    """Commands that make sense now, with what they are for."""
    url = study.config.store.url
    where = "" if url == default_store_url() else f" --store {shlex.quote(without_password(url))}"
    steps = []
    if not is_finished:
        steps.append((f"tuner resume {study.name}{where}", "go on where this stopped"))
    if board.rows:
        number = board.rows[0].trial_number
        steps += [
            (f"tuner rank {study.name} --all{where}", "everything that was tried"),
            (f"tuner show {number} --study {study.name}{where}", "the fastest trial in detail"),
            (f"tuner export {number} --study {study.name} --to NAME{where}", "for your trainer"),
            (f"tuner sql '{_QUERY}'{where}", "ask the database in SQL"),
        ]
    return steps
