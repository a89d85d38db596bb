"""An object store: moto's server, which the variables of AWS name."""

import json
import secrets
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


@contextmanager
def permit(patch: pytest.MonkeyPatch, *actions: str) -> Iterator[tuple[str, str]]:
    """What follows has credentials that may do these actions alone; yields them."""
    import boto3
    from moto import settings

    iam, name = boto3.client("iam"), f"job-{secrets.token_hex(4)}"
    iam.create_user(UserName=name)
    rule = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [rule]})
    iam.put_user_policy(UserName=name, PolicyName=name, PolicyDocument=document)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    with patch.context() as inner:
        inner.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        inner.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        inner.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
        yield key["AccessKeyId"], key["SecretAccessKey"]
