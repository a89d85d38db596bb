"""Commands as tests type them."""

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from support.codings import choose_coding

from labelguard.cli.main import main

# What a first release of a few labelers takes where nobody is there to ask.
FIRST = ("--once", "--yes", "--accept-little-use")
# `privatize` by randomized response, without a question.
PRIVATIZE = ("privatize", "--mechanism", "rr", *FIRST)


# Runs a command, none of whose modules may be among those that are named first.
LOADING = """
import sys
from labelguard.cli.main import main
code = main(sys.argv[2:], standalone_mode=False)
loaded = set(sys.argv[1].split(",")) & set(sys.modules)
assert not loaded, loaded
sys.exit(code)
"""


def run_without(modules, *arguments, **options):
    """Run `labelguard` in a process of its own, which must load none of these modules."""
    command = [sys.executable, "-c", LOADING, ",".join(modules), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def run(*arguments, code=0, project=None, **options):
    """Run `labelguard` in this process, which must end with this code, or with any if None."""
    where = () if project is None else ("--project", project.state)
    if {*arguments} & {"privatize", "plan", "inspect"} and "--label-values" not in arguments:
        coding = choose_coding([word for word in arguments if isinstance(word, str | Path)])
        where = (*where, *(("--label-values", coding) if coding else ()))
    result = CliRunner().invoke(main, [str(word) for word in (*arguments, *where)], **options)
    assert code in (None, result.exit_code), result.output
    return result
