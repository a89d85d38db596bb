"""A command loads pyarrow without pandas, and neither loses by it."""

import subprocess
import sys

CODE = """
import gc, sys
from labelguard.cli.loading import load_engines
with load_engines():
    import pyarrow as pa
assert gc.isenabled() and "pandas" not in sys.modules
table = pa.table({"a": pa.array([1, 2])})
assert table["a"].to_numpy().tolist() == [1, 2] and "pandas" not in sys.modules
import pandas as pd
assert pa.Table.from_pandas(pd.DataFrame({"a": [1, 2]}), preserve_index=False).equals(table)
assert table.to_pandas()["a"].tolist() == pa.array(pd.Series([1, 2])).to_pylist() == [1, 2]
"""


def test_pandas_is_loaded_by_whoever_wants_it_alone():
    subprocess.run([sys.executable, "-c", CODE], check=True)
