"""docs/reference/cli.md is what scripts/cli_page prints, with every command and option."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import adaptive

ROOT = Path(adaptive.__file__).parent.parent
loader = SourceFileLoader("cli_page", str(ROOT / "scripts/cli_page"))
cli_page = module_from_spec(spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
loader.exec_module(cli_page)


def test_the_page_is_what_the_script_prints() -> None:
    made = cli_page.page()
    assert (ROOT / "docs/reference/cli.md").read_text() == made, "python scripts/cli_page > docs/reference/cli.md"


def test_examples_are_of_commands_that_exist() -> None:
    names = {name for name, _ in cli_page.commands(cli_page.typer.main.get_command(cli_page.app))}
    assert names == set(cli_page.EXAMPLES)
