"""Nothing of leaving depends on labels: not what is purged, shown, left out or released later."""

import shutil
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import world
from support.commands import PRIVATIZE
from support.leaving import ASKED, BAD
from support.preferences import LAYOUTS, dump, files, opinions, write
from support.worlds import Coins

from labelguard.cli.main import main
from labelguard.inputs import quarantine
from labelguard.mechanisms import statistic
from labelguard.release.mechanisms import rr


def observed(here, layout, ranks, coins, options):
    """Everything that can be seen of a project in which `ranks` were the raw labels."""
    here.mkdir()
    seen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        world.fix(patch, world.repeatable_bytes())
        patch.setattr(rr, "randomize", coins.wrap(rr.randomize))
        patch.setattr(statistic, "add_noise", coins.noisy)
        patch.chdir(here)
        rows = LAYOUTS[layout](ASKED, ranks).to_pylist()
        for row in BAD:
            rows[row]["prompt"] = None
        write(pa.Table.from_pylist(rows), here / "in.parquet")
        more = (*PRIVATIZE, "in.parquet", "--bad-rows", "quarantine", *options)
        for arguments in (
            ("init",),
            more,
            ("labeler", "retire", "worker 5", "--yes"),
            ("labeler", "erase", "worker 2", "--yes"),
            ("labeler", "erase", "worker 2", "--yes", "--json"),
            ("labeler", "list", "--json"),
            more,
            ("budget", "journal", "--json"),
            ("budget", "verify"),
        ):
            result = CliRunner().invoke(main, arguments, catch_exceptions=False)
            assert result.exit_code == 0, result.output
            seen[f"{len(seen)}: {arguments}"] = (result.stdout, result.stderr)
        (here / "in.parquet").unlink()
        seen |= {k: v for k, v in files(here).items() if "/quarantine/" not in k}
        seen |= dump(here / ".labelguard")
        seen["directories"] = sorted(map(str, here.rglob("*")))
        seen["set aside"] = [
            pq.read_table(path)["input_row"].to_pylist()
            for path in sorted((here / ".labelguard" / "quarantine").rglob("*.parquet"))
        ]
    shutil.rmtree(here)
    return seen


COINS = ("--epsilon", "3", "--delta", "1e-5")
SUM = (*COINS, "--mechanism", "statistic", "--features", "length", "--components", "1")
SUM += ("--whitening", "0.5", "--floor", "0.001", "--clip-quantile", "0.5", "--ridge", "1")


@pytest.mark.quick("coins, pairs")
@pytest.mark.parametrize(
    ("layout", "options"),
    [
        *(pytest.param(layout, COINS, id=f"coins, {layout}") for layout in LAYOUTS),
        *(
            pytest.param(
                layout,
                SUM,
                id=f"statistic, {layout}",
                marks=[] if layout == "pairs" else pytest.mark.slow,
            )
            for layout in LAYOUTS
        ),
    ],
)
def test_nothing_of_leaving_depends_on_raw_labels(layout, options, tmp_path):
    coins = Coins({}, replayed=False)
    one = observed(tmp_path / "w", layout, opinions(len(ASKED), 1), coins, options)
    coins.replayed = True
    two = observed(tmp_path / "w", layout, opinions(len(ASKED), 9), coins, options)
    assert [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)] == []
    assert [len(rows) for rows in one["set aside"]] == [2, 2]


@pytest.mark.slow
def test_a_count_of_preferences_would_be_found(tmp_path, monkeypatch):
    """Negative control: a purge that tells how its rows were labelled."""
    purge = quarantine.purge

    def talking(directory, leavers):
        labels = pa.concat_tables(map(pq.read_table, directory.rglob("*.parquet")))["label"]
        return quarantine.RawRows(purge(directory, leavers).rows + labels.to_pylist().count(1))

    monkeypatch.setattr(quarantine, "purge", talking)
    coins = Coins({}, replayed=False)
    ranks = opinions(len(ASKED), 1)
    seen = []
    for first in (1, 3):  # the rows set aside prefer one side, then the other
        ranks[list(BAD)] = [first, 2, 2]
        seen.append(observed(tmp_path / "w", "pairs", ranks, coins, COINS))
        coins.replayed = True
    differing = [name for name in seen[0] if seen[0][name] != seen[1].get(name)]
    assert differing and all("labeler', 'erase" in name for name in differing)
