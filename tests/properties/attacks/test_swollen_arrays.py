"""A small file of arrays takes little memory, whatever it says of itself."""

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest
from support.preferences import STATISTIC, TABLE
from support.releases import make_release

from labelguard.errors import ProjectError
from labelguard.release.head import FILE, Head, Window
from labelguard.storage import portions

LARGE = 300 << 20


def _zeros(path, method):
    """A head of zeros: honest sizes, compressed a thousandfold."""
    head = {name: np.zeros(1) for name in ("metric", "coefficients", "statistic", "noise")}
    about = {"features": "length", "identity": "", "shape": {}}
    head["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    head["projection"] = np.zeros(LARGE // 8)
    with zipfile.ZipFile(path, "w", method) as file:
        for name, values in head.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values)


def _boastful(path, shape):
    """A header that announces what does not follow."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("about.npy", content.getvalue())


def _overlapping(path):
    """Many names for one piece of the file."""
    content = io.BytesIO()
    np.lib.format.write_array(content, np.zeros(1 << 20))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.npy", content.getvalue())
        file.filelist += file.filelist * 40


SWOLLEN = {
    "deflated": lambda path: _zeros(path, zipfile.ZIP_DEFLATED),
    "lzma": lambda path: _zeros(path, zipfile.ZIP_LZMA),
    "boastful": lambda path: _boastful(path, (LARGE // 8,)),
    "boastful in many dimensions": lambda path: _boastful(path, (1 << 10,) * 3),
    "overlapping": _overlapping,
}


@pytest.mark.quick("deflated")
@pytest.mark.parametrize("kind", SWOLLEN)
def test_a_small_file_of_arrays_takes_little_memory(tmp_path, kind):
    SWOLLEN[kind](tmp_path / FILE)
    assert (tmp_path / FILE).stat().st_size < 10 << 20
    tracemalloc.start()
    with pytest.raises(ProjectError, match="is damaged"):
        Head.load(tmp_path)
    with pytest.raises(ProjectError, match="is damaged"):
        Window.load(tmp_path / FILE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\x01\x00"])
def test_what_is_no_file_of_arrays_is_refused(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ProjectError, match="is damaged"):
        Head.load(tmp_path)


def test_arrays_of_objects_are_refused(tmp_path):
    np.savez(tmp_path / FILE, about=np.array([{}], dtype=object))
    with pytest.raises(ProjectError, match="is damaged"):
        Head.load(tmp_path)


def test_what_was_packed_is_loaded(tmp_path):
    content = {"a": np.arange(6.0).reshape(2, 3).T, "b/c": np.array(2.5), "d": np.zeros((0, 4))}
    (tmp_path / "packed").write_bytes(portions.pack_arrays(content))
    loaded = portions.load_arrays(tmp_path / "packed")
    assert loaded.keys() == content.keys()
    assert all((loaded[name] == content[name]).all() for name in content)


def test_a_released_head_is_loaded(project):
    release = make_release(TABLE, epsilon=3, delta=1e-5, project=project, **STATISTIC)
    assert Head.load(release.path).features == "length"
