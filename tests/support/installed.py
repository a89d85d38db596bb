"""What is installed, as far as labelguard can see."""

import importlib.metadata

from labelguard import extras


def without(monkeypatch, *packages):
    """Let these packages seem not to be installed."""
    known = importlib.metadata.distribution

    def distribution(name):
        if name in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(extras, "distribution", distribution)
