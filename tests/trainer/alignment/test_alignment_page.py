"""The sections of docs/alignment.md on candidates and on synthesis, done."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import tiny_models, train_runs
from support.pages import DOCS

import labelguard as lg
from labelguard.cli.main import main

SECTIONS = ("Candidates and best of N", "Synthesis")
PAGE = (DOCS / "alignment.md").read_text(encoding="utf-8")


@pytest.mark.docs
def test_the_commands_of_the_sections_run_in_their_order():
    tiny_models.saved(Path("base"))
    pq.write_table(pa.table({"prompt": ["tea?", "rain?", "maps?"]}), "prompts.parquet")
    Path("train.yaml").write_text(train_runs.QUICK)
    options = {"mechanism": "statistic", "features": "length+style", "epsilon": 3, "delta": 1e-5}
    lg.privatize(train_runs.labels(), project=lg.init("."), **options)
    consoles = "".join(
        text
        for title in SECTIONS
        for text in re.findall(
            r"```console\n(.*?)```",
            PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0],
            re.DOTALL,
        )
    )
    lines = re.findall(r"(?m)^\$ labelguard (.*)$", consoles)
    assert len(lines) == 6
    for line in lines:
        result = CliRunner().invoke(main, shlex.split(line))
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert Path("aligned/TRAINING_CARD.md").is_file()
