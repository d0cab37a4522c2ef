"""Write the pages that are read from code: `python docs/generate.py`. `docs/conf.py` does it when the site is built."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import typer

from adaptive.cli.app import app
from adaptive.cli.config_command import sections

ROOT: Final = Path(__file__).parents[1]
COMMANDS = """# Command line

Every command with its arguments and options, as `adaptive-train COMMAND --help` prints them.

- Keys without a flag are set by `--set KEY=VALUE`: [Settings](settings.md).
- Every command ends with one of these [exit codes](exit-codes.md).
- `--debug`, anywhere on the line, shows the traceback of an error.
"""
EXAMPLES = {
    "run": "adaptive-train run --data csv:clicks.csv --schema clicks.toml --policy lfu --out runs/clicks",
    "eval": "adaptive-train eval runs/clicks --data csv:new.csv --group-by user",
    "predict": "adaptive-train predict runs/clicks --data csv:new.csv --out scores.csv",
    "export": "adaptive-train export runs/clicks --out served",
    "compare": "adaptive-train compare --policies lru,lfu,slipstream --seeds 3 --out runs/compared",
    "simulate": "adaptive-train simulate --policies lru,lfu --device-rows 5%,10%,20%",
    "prepare": "adaptive-train prepare clicks.prepared --data csv:clicks.csv --schema clicks.toml",
    "config": "adaptive-train config tier",
    "doctor": "adaptive-train doctor",
    "policies list": "adaptive-train policies list",
    "policies show": "adaptive-train policies show lfu",
    "policies check": "adaptive-train policies check mine.py:Mine",
}
SETTINGS = """# Settings

All settings of a run with their defaults, as `adaptive-train config` prints them.

Settings are resolved in this order: flag, `--set KEY=VALUE`, environment variable, `--config FILE` (TOML or JSON),
`--preset`, default. The environment variable of a key is `ADAPTIVE_` and the key in capitals, with `__` for the dot:
`ADAPTIVE_TIER__DEVICE_ROWS=10%`. Parameters of a policy are `policy.NAME`; `adaptive-train policies show NAME` lists
them. `null` means no value.
"""


def commands_page() -> str:
    """Return the page of all commands and their options."""
    return COMMANDS + "".join(command_text(name, command) for name, command in commands(typer.main.get_command(app)))


def settings_page() -> str:
    """Return the page of all settings, by section."""
    text = SETTINGS
    for section in sections():
        text += f"\n## {section.title}\n\n{section.meaning}\n\n"
        text += "| key | default | allowed | meaning |\n|---|---|---|---|\n"
        for setting in section.settings:
            flag = f" (`{setting.flag}`)" if setting.flag else ""
            cells = (f"`{setting.key}`{flag}", f"`{setting.default}`", setting.allowed, setting.meaning)
            text += f"| {' | '.join(map(cell, cells))} |\n"
    return text


PAGES: Final[dict[str, Callable[[], str]]] = {
    "docs/reference/cli.md": commands_page,
    "docs/reference/settings.md": settings_page,
}
"""Pages that git does not track, and what returns their text."""


def write(root: Path = ROOT) -> None:
    """Write all pages under a folder."""
    for name, page in PAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(page(), encoding="utf-8")


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands that do something, with the words that call them."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        elif not command.hidden:
            yield f"{above}{name}", command


def command_text(name: str, command: Any) -> str:
    """Return the text of one command."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    parts = [f"\n## `{name}`", one_line(command.help), f"    {EXAMPLES[name]}"]
    if arguments:
        rows = [f"| `{argument.metavar or argument.name.upper()}` | {cell(argument.help)} |" for argument in arguments]
        parts.append("\n".join(["| argument | meaning |", "|---|---|", *rows]))
    panels = dict.fromkeys(panel_of(option) for option in options)
    for panel in panels:
        rows = [row(option) for option in options if panel_of(option) == panel]
        parts.append("\n".join([f"| {panel} | value | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def panel_of(option: Any) -> str:
    return getattr(option, "rich_help_panel", None) or "Options"


def row(option: Any) -> str:
    """Return the line of an option in its table."""
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f"`{option.metavar or option.type.name.upper()}`"
    return f"| {flags} | {cell(value)} | {cell(option.help)} |"


def cell(text: str | None) -> str:
    return one_line(text).replace("|", "\\|")


def one_line(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


if __name__ == "__main__":
    write()
