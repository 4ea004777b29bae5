"""Objects of the raw archive in an S3 store."""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from changelog.archive.secor import partition_of
from runtime.errors import TransientError
from runtime.settings import ObjectStore

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


log = logging.getLogger("archive")

CHANGED = ("PreconditionFailed", "412", "ConditionalRequestConflict", "NoSuchKey")
"""What stores answer where an object is no longer the one that was meant to be replaced."""

ATTEMPTS = 5


class ArchiveObject(NamedTuple):
    """An object in a listing. ``etag`` changes when its bytes do."""

    key: str
    etag: str
    size: int
    partition: int


def s3_client(store: ObjectStore) -> "S3Client":
    """A client for an S3 endpoint, path-style, with a few retries."""
    return boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key.get_secret_value(),
        # a checksum that nobody asked for makes botocore fail at an answer of 500 that has one, with AttributeError
        config=Config(
            s3={"addressing_style": "path"},
            retries={"max_attempts": 4},
            connect_timeout=5,
            read_timeout=60,
            response_checksum_validation="when_required",
        ),
    )


class ArchiveStore:
    """The archive's bucket. botocore's errors pass through: the caller decides what a failure means."""

    def __init__(self, store: ObjectStore) -> None:
        self._client = s3_client(store)
        self._bucket = store.archive_bucket
        self.prefix = store.archive_prefix

    def list_objects(self, topic: str, day: str | None = None) -> Iterator[ArchiveObject]:
        """All archive objects of a topic, or those of one day (YYYY-MM-DD), in the order of their names."""
        folder = f"{self.prefix}/{topic}/" + (f"dt={day}/" if day else "")
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder)
        for page in pages:
            for item in page.get("Contents", ()):
                partition = partition_of("/" + item["Key"])
                if partition is not None:
                    yield ArchiveObject(item["Key"], item["ETag"], item["Size"], partition)

    def get(self, key: str, etag: str | None = None) -> bytes:
        """An object whole. Raises TransientError if it is no longer the one that was listed with ``etag``."""
        same: dict[str, Any] = {"IfMatch": etag} if etag else {}
        try:
            return self._client.get_object(Bucket=self._bucket, Key=key, **same)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("PreconditionFailed", "412"):
                raise TransientError(f"{key} changed after it was listed; run this again") from error
            raise

    def look(self) -> None:
        """Raise botocore's error unless the store answers."""
        self._client.list_objects_v2(Bucket=self._bucket, MaxKeys=1)

    def read(self, key: str) -> tuple[bytes, str]:
        """An object whole, as it is now, and its etag."""
        found = self._client.get_object(Bucket=self._bucket, Key=key)
        return found["Body"].read(), found["ETag"]

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Put an object in the place of the one of this name. Returns its etag, as a listing tells it. Raises
        TransientError if that is no longer the one with ``etag``: then nothing is put."""
        try:
            return self._client.put_object(Bucket=self._bucket, Key=key, Body=data, IfMatch=etag)["ETag"]
        except ClientError as error:
            if error.response["Error"]["Code"] in CHANGED:
                raise TransientError(f"{key} was replaced by somebody else; run this again") from error
            raise

    def claim(self, topic: str, topic_id: str) -> str:
        """Note, once and for ever, which topic the archive of this name is made from. Returns the id noted first."""
        key = f"{self.prefix}/{topic}/_topic-id"
        self.put_if_absent(key, topic_id.encode())
        return self.get(key).decode()

    def note_empty(
        self, topic: str, partition: int, stretch: tuple[int, int], ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Note which ``ranges`` (first, last) hold no record, of the offsets from ``stretch[0]`` to before
        ``stretch[1]``, all of which were read. A second call changes nothing."""
        name = f"{self._empty(topic)}{partition}_{stretch[0]:020d}_{stretch[1]:020d}.json"
        self.put_if_absent(name, json.dumps(ranges).encode())

    def empty_ranges(self, topic: str, partition: int, first: int, last: int) -> list[tuple[int, int]]:
        """What :meth:`note_empty` noted of the offsets from ``first`` to ``last``: (first, last) of each range."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._empty(topic)}{partition}_"
        )
        names = [item["Key"] for page in pages for item in page.get("Contents", ())]
        found: list[tuple[int, int]] = []
        for name in names:
            since, end = (int(part) for part in name.rpartition("/")[2].removesuffix(".json").split("_")[1:])
            if since <= last and end > first:
                try:
                    found += map(tuple, json.loads(self.get(name)))
                except ValueError as error:  # what it said is not known then, and looks like a gap
                    log.warning("%s is damaged (%s); move it away", name, error)
        return [(start, stop) for start, stop in found if start <= last and stop >= first]

    def _empty(self, topic: str) -> str:
        return f"{self.prefix}/{topic}/_empty/"

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store an object unless one of this name is there. Returns whether it was stored."""
        attempt = 0
        while True:
            attempt += 1
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*")
                return True
            except ClientError as error:
                code = error.response["Error"]["Code"]
                if code in ("PreconditionFailed", "412"):
                    return False
                if code != "ConditionalRequestConflict" or attempt == ATTEMPTS:
                    raise  # a conflict: somebody else stores it at this moment
