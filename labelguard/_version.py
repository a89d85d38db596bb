"""The version, where every room can read it, and what builds the package too."""

__version__ = "0.4.0"
