"""An object store: moto's server, which the variables of AWS name."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyarrow.fs import S3FileSystem


@contextmanager
def serve_bucket(patch: pytest.MonkeyPatch, bucket: str) -> Iterator[S3FileSystem]:
    """Storage with one empty bucket, as long as the server runs."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        patch.setenv(name, value)
    try:
        filesystem = S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True)
        filesystem.create_dir(bucket)
        yield filesystem
        filesystem.delete_dir_contents(bucket)
    finally:
        server.stop()
