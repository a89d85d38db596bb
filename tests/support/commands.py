"""Commands as tests type them."""

from click.testing import CliRunner

from labelguard.cli.main import main

# What a first release of a few labelers takes where nobody is there to ask.
FIRST = ("--once", "--yes", "--accept-little-use")
# `privatize` by randomized response, without a question.
PRIVATIZE = ("privatize", "--mechanism", "rr", *FIRST)


def run(*arguments, code=0, project=None, **options):
    """Run `labelguard` in this process, which must end with this code, or with any if None."""
    where = () if project is None else ("--project", project.state)
    result = CliRunner().invoke(main, [str(word) for word in (*arguments, *where)], **options)
    assert code in (None, result.exit_code), result.output
    return result
