"""A process that calls without a pause: `python worker.py KIND URL STORE SECONDS`.

Prints "ready", waits for a line, and then prints how many calls succeeded and how many raised an error. KIND
is how its client is limited: "shaped", "adaptive" (shaped), or "botocore" (by its own adaptive mode).
"""

import json
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from shapekit import Adaptive
from shapekit.integrations.botocore import shape

KINDS = {"shaped": {"rate": "20/s"}, "adaptive": {"adaptive": Adaptive(min="5/s", max="100/s")}}

if __name__ == "__main__":
    kind, url, store, seconds = sys.argv[1:]
    client = boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id="AKID",
        aws_secret_access_key="secret",
        config=Config(retries={"mode": "standard" if kind in KINDS else "adaptive"}),
    )
    if kind in KINDS:
        shape(client, store=store, name="aws", **KINDS[kind])
    print("ready", flush=True)
    sys.stdin.readline()
    succeeded = failed = 0
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            client.list_queues()
        except ClientError:
            failed += 1
        else:
            succeeded += 1
    print(json.dumps([succeeded, failed]), flush=True)
