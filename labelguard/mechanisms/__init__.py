"""Arrays of labels in, arrays of releases out: no ledger, no project, no files."""
