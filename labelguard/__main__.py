"""`python -m labelguard`."""

from labelguard.cli import main

main(prog_name="labelguard")
