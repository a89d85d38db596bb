"""The command line: a command, its options and how its result looks are one file."""
