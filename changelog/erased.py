"""Guests who are erased for good: their records have a place in the log, and nothing else of theirs is ever read again.

They are told by keyed hashes of their refs, so that the list says nothing of anybody to whom the key is not known. An
erased ref stays erased at any position: an update that comes later would take back what was never added.
"""

import hmac
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

import orjson

ERASED_VALUE = b'{"erased":true}'
"""Of a record without a key: what stands in the raw archive in the place of an erased one."""

_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"|[\w-]+')
_WORD = re.compile(rb"[\w-]+")
_BEFORE, _AFTER = r"(?<![\w-])", r"(?![\w-])"


@dataclass(frozen=True)
class Erased:
    """The erasures 1 … ``number``: ``digests`` of all their refs, and the ``refs`` of those that are not finished yet,
    whose records may still be in the columnar archive."""

    secret: bytes = b""
    digests: frozenset[bytes] = frozenset()
    refs: tuple[str, ...] = ()
    number: int = 0
    _cache: dict[bytes, bool] = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.digests)

    def __getstate__(self) -> tuple[bytes, frozenset[bytes], tuple[str, ...], int]:
        return self.secret, self.digests, self.refs, self.number  # what was asked here is of no use elsewhere

    def __setstate__(self, state: tuple[bytes, frozenset[bytes], tuple[str, ...], int]) -> None:
        for name, value in zip(("secret", "digests", "refs", "number"), state, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_cache", {})

    def has(self, ref: bytes | str | None) -> bool:
        """Whether this is the ref of an erased guest."""
        if not self.digests or not ref:
            return False
        key = ref.encode() if isinstance(ref, str) else ref
        known = self._cache.get(key)
        if known is None:
            if len(self._cache) > 100_000:
                self._cache.clear()
            known = self._cache[key] = digest(self.secret, key) in self.digests
        return known

    def is_named_in(self, value: bytes) -> bool:
        """Whether a JSON text or a word of ``value``, which need not be JSON, is the ref of an erased guest."""
        return bool(self.digests) and any(self.has(token) for token in _tokens(value))


NOBODY = Erased()


def digest(secret: bytes, ref: bytes) -> bytes:
    """HMAC-SHA256 of a ref: what is kept of it."""
    return hmac.digest(secret, ref, "sha256")


def _tokens(value: bytes) -> set[bytes]:
    found = set(_WORD.findall(value))
    for text in (match[0] for match in _TOKEN.finditer(value) if match[1] is not None):
        try:
            found.add(orjson.loads(text).encode())
        except orjson.JSONDecodeError:
            found.add(text[1:-1])
    return found


@lru_cache(64)
def pattern(values: Collection[str]) -> re.Pattern[bytes]:
    """Matches any of ``values`` in bytes where it stands by itself: ``g1`` is not found in ``g12``. Written as UTF-8,
    or as JSON escapes it. Matches nothing if there are no values."""
    written = {form for value in values for form in (value.encode(), orjson.dumps(value)[1:-1], _escaped(value))}
    if not written:
        return re.compile(rb"(?!)")
    each = b"|".join(re.escape(form) for form in sorted(written, key=len, reverse=True))
    return re.compile(_BEFORE.encode() + b"(?:" + each + b")" + _AFTER.encode())


def sql_pattern(value: str) -> str:
    """The same of one value as a regular expression of Java's and PostgreSQL's, its own characters taken literally."""
    literal = "".join(c if c.isalnum() or c in "_-" else f"\\x{{{ord(c):x}}}" for c in value)
    return f"{_BEFORE}{literal}{_AFTER}"


def _escaped(value: str) -> bytes:
    return "".join(c if ord(c) < 128 else f"\\u{ord(c):04x}" for c in value).encode()
