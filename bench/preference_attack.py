"""What an attack on trained models learns of the labels that they were trained on.

    python bench/preference_attack.py           # the table; 17 minutes of one core
    python bench/preference_attack.py --tiny    # every attack once, in seconds

DPO and reward models learn from 320 pairs of the made-up language of `dpo_utility.py` (short
responses), labelled by 80 simulated labelers, four pairs each. Labels of 32 of these, the targets,
are fair coins: nothing that generalises tells of them, and a guess without the model is right half
of the time. The attacker knows all texts, all other labels and what was released of them, and has
the model; the *margin* of a pair is the difference of the log-ratios to the reference, or of the
rewards. Membership of preference data is attacked in this way by PREMIA (arXiv 2407.06443); here
the preference is what is guessed:

- *margin*: a label by the sign of its pair's margin
- *calibrated*: by the margin less that of a second model of the attacker's, trained with the same
  seed on the same data, for which the targets' labels were drawn anew
- *labeler*: all labels of a labeler at once, whether they are those given or their opposites, by
  the calibrated margins

Advantage is 2·accuracy − 1; (ε, δ) bounds it by (e^ε − 1 + 2δ)/(e^ε + 1) for whatever attack, of
one label or all of a labeler. Raw labels at many epochs are the control: if nothing is learned
there, the attack is worth nothing.

Every finished run is a line of `runs.jsonl` in `--work` and is not run again by the same code.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attack import guesses
from attack.models import TINY, Size, attack, runs
from dpo.runs import quietly_on_one_core
from utility.results import Store
from utility.tables import markdown, plain


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; print the table, and a line of JSON."""
    options = _parser().parse_args(arguments)
    size = TINY if options.tiny else Size()
    directory = options.work / ("tiny" if options.tiny else "full")
    store = Store(directory / "runs.jsonl")
    quietly_on_one_core()
    records = []
    for run in runs(size):
        record = store.get(run.key(size))
        if record is None:
            record = attack(run, size, directory)
            store.add(record)
            print(f"{run}: {record['cpu_seconds']} s", file=sys.stderr, flush=True)
        records.append(record)
    results = guesses.results(records, size.labels)
    print((markdown if options.markdown else plain)(guesses.table(results)), end="\n\n")
    print(guesses.control(results), end="\n\n")
    print(json.dumps({"bench": "preference_attack", "results": results}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = Path(tempfile.gettempdir()) / "labelguard-preference-attack"
    parser.add_argument("--work", type=Path, default=work, help="the model, releases, runs")
    parser.add_argument("--tiny", action="store_true", help="a few pairs, to see that it runs")
    parser.add_argument("--markdown", action="store_true", help="the table for the documentation")
    return parser


if __name__ == "__main__":
    sys.exit(main())
