"""`tuner completion`: the script that teaches a shell the commands and options."""

import click

from tuner.cli.options import verbosity_options
from tuner.errors import UsageError

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="\b\nExamples:\n  tuner completion bash >> ~/.bashrc\n"
    "  tuner completion fish > ~/.config/fish/completions/tuner.fish"
)
@click.argument("shell", type=click.Choice(_SHELLS))
@verbosity_options
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for shell completion."""
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise UsageError(f"no completion for {shell!r}", f"shells: {', '.join(_SHELLS)}")
    script = completion_class(ctx.find_root().command, {}, "tuner", "_TUNER_COMPLETE")
    click.echo(script.source())
