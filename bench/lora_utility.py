"""A reward model by LoRA: labeler-level DP-SGD (ULS) against soft labels of a private head.

    python bench/lora_utility.py                # both tables; a quarter of an hour of one core
    python bench/lora_utility.py --tiny         # every way once, in seconds

A GPT-2 of some 30,000 parameters, pretrained on the made-up language of `dpo_utility.py` (with
short responses), becomes a reward model by LoRA, 1,056 numbers of it with the head. 200 or 2,000
simulated labelers give ten labels each on 2,000 pairs. ULS learns from them directly, at (ε, 1e-5)
for each labeler; or a head on features of responses, learned by a statistic release at the same
price, gives every pair a probability, and the same model learns from these (`RewardTrainer`).
*Accuracy* is how often the reward orders the sides of 1,000 fresh pairs as the planted utility
does. There are two of these: that of `dpo_utility.py`; and its second part alone, how much of a
response keeps to the topic of its prompt, of which features of responses cannot say anything.

Of the labels' learning rate two values were tried, on the first preference; of ULS four learning
rates and several numbers of steps, on both: all at 2,000 labelers, with ε = 3 or without privacy,
seed 0. All configurations share what was chosen. ULS clips at the median norm of gradients of
labels at random. Without privacy the same steps are taken without noise.

Every finished run is a line of `runs.jsonl` in `--work` and is not run again by the same code.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lora import tables
from lora.runs import TINY, Size, finished, quietly, runs
from utility.results import Store
from utility.tables import markdown, plain


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing; prints the tables, and a line of JSON."""
    options = _parser().parse_args(arguments)
    size, directory = TINY if options.tiny else Size(), options.work
    directory = directory / ("tiny" if options.tiny else "full")
    store = Store(directory / "runs.jsonl")
    quietly()
    found = []
    for run in runs(size):
        record = store.get(run.key(size))
        if record is None:
            record = finished(run, size, directory)
            store.add(record)
            print(json.dumps(record), file=sys.stderr, flush=True)
        found.append(record)
    shown = markdown if options.markdown else plain
    for table in (tables.table(found), tables.times(found)):
        print(shown(table), end="\n\n")
    print(json.dumps({"bench": "lora_utility", "runs": found}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = Path(tempfile.gettempdir()) / "labelguard-lora-utility"
    parser.add_argument("--work", type=Path, default=work, help="the model, finished runs")
    parser.add_argument("--tiny", action="store_true", help="a few pairs, to see that it runs")
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    return parser


if __name__ == "__main__":
    sys.exit(main())
