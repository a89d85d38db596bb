"""What people write into files: how it is read, what it may say, and how a mistake is told."""
