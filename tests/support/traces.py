"""Looks for a text in everything a directory holds, whatever it is coded in."""

import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
from support.preferences import dump


def contents(directory):
    """Every file below a directory: as it is, and what is compressed or coded in it, as text."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        data = path.read_bytes()
        yield str(path), data
        if data[:4] == b"PAR1":
            if data[-4:] != b"PAR1":
                continue  # torn: nobody can decode it, and the test that makes it knows
            file = pq.ParquetFile(path)
            yield f"{path} (columns)", repr(file.read().to_pydict()).encode()
            yield f"{path} (metadata)", repr(file.metadata.to_dict()).encode()
        elif path.suffix == ".arrow" and data:  # an empty bucket has no schema
            yield f"{path} (columns)", repr(pa.ipc.open_stream(data).read_all()).encode()
        elif path.suffix in (".gz", ".zst"):
            kind = {".gz": "gzip", ".zst": "zstd"}[path.suffix]
            yield f"{path} (decompressed)", pa.input_stream(str(path), compression=kind).read()
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from ((f"{path}/{name}", archive.read(name)) for name in archive.namelist())
        elif path.suffix == ".sqlite3":
            yield f"{path} (tables)", repr(dump(path.parent)).encode()


def where(directory, text):
    """The files that hold a text or bytes, plain or in hexadecimal digits."""
    wanted = [text.encode()] if isinstance(text, str) else [text, text.hex().encode()]
    return [name for name, data in contents(directory) if any(piece in data for piece in wanted)]
