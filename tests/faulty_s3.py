"""A local S3 server (moto) with injected faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Respond = Callable[..., Any]
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class FaultyS3:
    """Each request for an object takes the next of `faults`: `error`, `hang`, `cut` (truncated) or `well` (none); later
    requests succeed."""

    app: Respond
    address: str = ""
    faults: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    """Paths of the requests for objects, in order."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the server stops; it ends hanging requests."""

    def __call__(self, environ: dict[str, Any], start: Respond) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        is_object = environ["REQUEST_METHOD"] == "GET" and path.endswith((".tar", ".parquet", ".safetensors"))
        if not is_object:
            return self.app(environ, start)
        self.requested.append(path)
        fault = self.faults.pop(0) if self.faults else "well"
        if fault == "error":
            start("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>injected</Message></Error>"]
        if fault == "hang":
            self.over.wait()
            start("503 Service Unavailable", [])
            return []
        body = b"".join(self.app(environ, start))
        return [body[: len(body) // 2] if fault == "cut" else body]


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """No output."""


@contextmanager
def faulty_s3(folder: Path, bucket: str = "bucket", prefix: str = "set") -> Iterator[FaultyS3]:
    """A server with the files of a folder as objects of a bucket."""
    served = FaultyS3(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, served, threaded=True, request_handler=_Quiet)
    served.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        # The store of moto is global, so it may still hold the objects of an earlier server.
        urlopen(Request(f"{served.address}/moto-api/reset", method="POST")).close()
        client = boto3.client(
            "s3",
            endpoint_url=served.address,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        client.create_bucket(Bucket=bucket)
        for path in sorted(folder.iterdir()):
            client.put_object(Bucket=bucket, Key=f"{prefix}/{path.name}", Body=path.read_bytes())
        client.close()
        yield served
    finally:
        served.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
