"""Where the parts of bench/gpu.sh leave their results, and what is said of the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from labelguard.storage.files import write_atomically


def add_argument(parser: argparse.ArgumentParser) -> None:
    """The option for the directory of results."""
    out = os.environ.get("OUT", "gpu-results")
    parser.add_argument("--out", type=Path, default=out, help="models and results; default $OUT")


def machine() -> dict[str, str]:
    """The accelerator and the versions that decide speed."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "device": device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "trl": trl.__version__,
    }


def write(directory: Path, name: str, found: Mapping[str, Any]) -> None:
    """NAME.json in the directory, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / f"{name}.json", json.dumps(found, indent=1).encode())
