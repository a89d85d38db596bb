"""Settings that people write into files: how they are read and checked."""
