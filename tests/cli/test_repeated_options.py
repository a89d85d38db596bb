"""An option that is given twice is refused: the first value would be dropped without a word."""

import click
import pytest
from click.testing import CliRunner
from support.pages import DOCS, script

from labelguard.cli.main import main

REFERENCE = script(DOCS / "generate_cli.py")
COMMANDS = {
    " ".join(path): command
    for path, command in REFERENCE.commands()
    if not isinstance(command, click.Group)
}


def words_of(option):
    """The option as one would type it."""
    if option.is_flag:
        return [option.opts[-1]]
    if isinstance(option.type, click.Choice):
        return [option.opts[-1], option.type.choices[0]]
    return [option.opts[-1], "1"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_given_once_or_takes_several_values(name):
    command = COMMANDS[name]
    options = [one for one in command.get_params(click.Context(command)) if one.opts[0][0] == "-"]
    for option in options:
        if option.multiple or "--help" in option.opts:
            continue
        result = CliRunner().invoke(main, [*name.split(), *words_of(option) * 2])
        assert result.exit_code == 2, result.output
        assert f"{option.opts[-1]} is given 2 times" in result.stderr
