"""`python -m labelguard`."""

from labelguard.cli.main import main

main(prog_name="labelguard")
