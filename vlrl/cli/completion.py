"""`vlrl completion`: a script that completes commands, options, configs and kinds of plug-ins in a shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from vlrl.plugins.registry import ConfigError, suggest

CONFIG_COMMANDS = ("train", "show", "check")  # their words are configs
KIND_COMMANDS = ("list", "new")  # their first word is a kind of plug-in


@dataclass(frozen=True)
class Command:
    """What can follow a command: its subcommands, options and words, with the first sentence of its help."""

    help: str
    options: Mapping[str, str]  # option -> help
    words: tuple[str, ...] = ()
    commands: Mapping[str, Command] | None = None


def completion(shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print a completion script: `eval "$(vlrl completion bash)"`, or for fish `vlrl completion fish |
    source`."""
    if shell not in SHELLS:
        raise ConfigError(f"completion: no script for {shell!r}.{suggest(shell, SHELLS)}")
    typer.echo(SHELLS[shell](commands()))


def commands() -> dict[str, Command]:
    """All commands of `vlrl`, read from its own definition."""
    from vlrl import cli

    for name in (*cli._COMMANDS, *cli._GROUPS):
        cli._add(name)
    return _commands(typer.main.get_command(cli.app), _words())


def _words() -> dict[str, tuple[str, ...]]:
    """Command -> the words that it takes."""
    from vlrl.cli.list import config_rows
    from vlrl.config import SLOTS
    from vlrl.plugins.stages import STAGES

    configs = tuple(row["name"] for row in config_rows() if not row["name"].startswith("accelerate/"))
    words = dict.fromkeys(CONFIG_COMMANDS, configs)
    return (
        words
        | {name: tuple(sorted({*STAGES, *SLOTS})) for name in KIND_COMMANDS}
        | {"completion": tuple(SHELLS)}
    )


def _commands(group: Any, words: Mapping[str, tuple[str, ...]]) -> dict[str, Command]:
    out = {}
    for name, item in sorted(group.commands.items()):
        inner = _commands(item, {}) if hasattr(item, "commands") else None
        out[name] = Command(_sentence(item.help), _options(item), words.get(name, ()), inner)
    return out


def _options(item: Any) -> dict[str, str]:
    found = {
        opt: _sentence(getattr(p, "help", ""))
        for p in item.params
        for opt in (*p.opts, *p.secondary_opts)
        if opt.startswith("--")
    }
    return {**found, "--help": "Show the help."}


def _sentence(text: str | None) -> str:
    return (
        (text or "")
        .strip()
        .split("\n")[0]
        .split(". ")[0]
        .rstrip(".")
        .replace("'", "")
        .replace('"', "")
        .replace("`", "")
    )


def bash(tree: Mapping[str, Command]) -> str:
    """The script for bash: a table of words per command, and files."""
    rows = [f"    '') words='{' '.join([*tree, '--help', '--version'])}' ;;"]
    for name, command in tree.items():
        rows.append(
            f"    {name}) "
            f"words='{' '.join([*(command.commands or ()), *command.words, *command.options])}' ;;"
        )
        rows += [
            f"    '{name} {sub}') words='{' '.join([*inner.words, *inner.options])}' ;;"
            for sub, inner in (command.commands or {}).items()
        ]
    groups = "|".join(name for name, command in tree.items() if command.commands)
    table = "\n".join(rows)
    return f"""_vlrl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command='' words=''
  [ "$COMP_CWORD" -gt 1 ] && command="${{COMP_WORDS[1]}}"
  case "$command" in {groups}) [ "$COMP_CWORD" -gt 2 ] && command="$command ${{COMP_WORDS[2]}}" ;; esac
  case "$command" in
{table}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _vlrl vlrl"""


def zsh(tree: Mapping[str, Command]) -> str:
    """The script for zsh, which runs bash's."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash(tree)}"


def fish(tree: Mapping[str, Command]) -> str:
    """The script for fish: one line per word, with its help. `__vlrl_at a b` holds right behind these words,
    `__vlrl_in a b` anywhere behind them."""
    lines = [
        'function __vlrl_at; set -l said (commandline -opc); test "$said[2..]" = "$argv"; end',
        "function __vlrl_in; set -l said (commandline -opc); test (count $said) -gt (count $argv); "
        'and test "$said[2..$(math (count $argv) + 1)]" = "$argv"; end',
        "complete -c vlrl -n __vlrl_at -l help -d 'Show the help.'",
        "complete -c vlrl -n __vlrl_at -l version -d 'Show the version.'",
    ]
    for name, command in tree.items():
        lines.append(f"complete -c vlrl -n __vlrl_at -f -a {name} -d '{command.help}'")
        lines += _after(name, command)
        for sub, inner in (command.commands or {}).items():
            lines.append(f"complete -c vlrl -n '__vlrl_at {name}' -f -a {sub} -d '{inner.help}'")
            lines += _after(f"{name} {sub}", inner)
    return "\n".join(lines)


def _after(said: str, command: Command) -> list[str]:
    """fish's lines for the options and words of a command."""
    lines = [
        f"complete -c vlrl -n '__vlrl_in {said}' -l {option[2:]} -d '{text}'"
        for option, text in command.options.items()
    ]
    return lines + (
        [f"complete -c vlrl -n '__vlrl_in {said}' -a '{' '.join(command.words)}'"] if command.words else []
    )


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}
