"""Guests who are erased for good: their records have a place in the log, and nothing else of theirs is ever read again.

They are told by keyed hashes of their refs, so that the list says nothing of anybody to whom the key is not known. An
erased ref stays erased at any position: an update that comes later would take back what was never added.

A record that is bad is erased as well where it *names* one of them, and this module alone says what that is. Whoever
has the values in the clear (:func:`pattern`) and whoever has their hashes (:class:`Erased`) finds the same: what
stands by itself, in whatever spelling JSON has for it. A value that is *weak*, by which others mean something else,
names him only where a guest's ref is expected.
"""

import hmac
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

ERASED_VALUE = b'{"erased":true}'
"""Of a record without a key: what stands in the raw archive in the place of an erased one."""

WEAK_BELOW = 6
"""Bytes; a shorter value is weak."""

_BEFORE, _AFTER = rb"(?<![\w-])(?<![\w-][.@+])", rb"(?![\w-]|[.@+][\w-])"
_LETTER = rb"[\w\x80-\xff]"
_START, _END = re.compile(_BEFORE + b"(?=" + _LETTER + b")"), re.compile(b"(?<=" + _LETTER + b")" + _AFTER)
_STRONG = re.compile(_LETTER + b".*" + _LETTER, re.DOTALL)
_ESCAPES = re.compile(rb'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')
_LEVELS = 3
_FIELD = rb'"(?:guestRef|guest_ref%s)"\s*:\s*(?:"((?:[^"\\]|\\.)*)"|([\w.+-]+))'
_OF_GUESTS, _OF_OTHERS = re.compile(_FIELD % rb"|ref", re.DOTALL), re.compile(_FIELD % b"", re.DOTALL)


@dataclass(frozen=True)
class Erased:
    """The erasures 1 … ``number``: ``digests`` of all their refs, and the ``refs`` of those that are not finished yet,
    whose records may still be in the columnar archive. ``names``: digests of what a bad record names them by, and the
    ``lengths`` of that in bytes (:func:`names_of`)."""

    secret: bytes = b""
    digests: frozenset[bytes] = frozenset()
    refs: tuple[str, ...] = ()
    number: int = 0
    names: frozenset[bytes] = frozenset()
    lengths: tuple[int, ...] = ()
    _cache: dict[bytes, bool] = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.digests)

    def __getstate__(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in _STATE)  # what was asked here is of no use elsewhere

    def __setstate__(self, state: tuple[object, ...]) -> None:
        for name, value in zip(_STATE, state, strict=True):
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

    def is_named_in(self, entity: str, *values: bytes | None) -> bool:
        """Whether one of ``values``, of a bad record or its key, names an erased guest. They need not be JSON."""
        return any(self._is_named(entity, value) for value in values)

    def _is_named(self, entity: str, value: bytes | None) -> bool:
        if not self.digests or not value:
            return False
        return any(self.has(ref) for ref in guests_in(entity, value)) or any(
            digest(self.secret, part) in self.names for form in forms(value) for part in parts(form, self.lengths)
        )


_STATE = ("secret", "digests", "refs", "number", "names", "lengths")

NOBODY = Erased()


def digest(secret: bytes, ref: bytes) -> bytes:
    """HMAC-SHA256 of a ref: what is kept of it."""
    return hmac.digest(secret, ref, "sha256")


def is_weak(value: str) -> bool:
    """Whether a value is a number, or so short that others mean something else by it, or begins or ends with what is
    no letter or digit."""
    data = value.encode()
    return len(data) < WEAK_BELOW or value.isdecimal() or _STRONG.fullmatch(data) is None


def names_of(secret: bytes, values: Iterable[str]) -> dict[str, int]:
    """What is kept of values by which a bad record names a guest: digest in hex → length in bytes. Weak ones have no
    part in it."""
    return {digest(secret, value.encode()).hex(): len(value.encode()) for value in values if not is_weak(value)}


def forms(value: bytes) -> Iterator[bytes]:
    """``value`` as it is, and with what JSON escapes put in its place, JSON within JSON too."""
    yield value
    for _ in range(_LEVELS):
        if (plain := unescaped(value)) == value:
            return
        yield plain
        value = plain


def unescaped(value: bytes) -> bytes:
    """``value`` without JSON's escapes, wherever one stands."""
    return _ESCAPES.sub(_meant, value)


def _meant(escapes: re.Match[bytes]) -> bytes:
    text: str = json.loads(b'"' + escapes[0] + b'"')
    return text.encode(errors="surrogatepass")


def parts(value: bytes, lengths: Collection[int]) -> Iterator[bytes]:
    """All parts of ``value`` of these lengths that stand by themselves: what :func:`pattern` matches of values that are
    not weak, if they are known."""
    ends = {match.start() for match in _END.finditer(value)}
    for match in _START.finditer(value):
        for length in lengths:
            if match.start() + length in ends:
                yield value[match.start() : match.start() + length]


def pattern(values: Collection[bytes]) -> re.Pattern[bytes]:
    """Matches any of ``values`` in bytes where it stands by itself: ``g-1000`` is neither in ``g-10002`` nor in
    ``g-1000@x``, ``ann@x.org`` neither in ``jo.ann@x.org`` nor in ``ann@x.org.uk``. Matches nothing if there are no
    values."""
    if not values:
        return re.compile(rb"(?!)")
    each = b"|".join(re.escape(value) for value in sorted(values, key=len, reverse=True))
    return re.compile(_BEFORE + b"(?:" + each + b")" + _AFTER)


def guests_in(entity: str, value: bytes) -> Iterator[bytes]:
    """What fields that hold a guest's ref say in JSON, or what is left of it: ``guestRef``, in a guest ``ref`` too."""
    fields = _OF_GUESTS if entity == "guest" else _OF_OTHERS
    for form in forms(value):
        for match in fields.finditer(form):
            yield unescaped(match[1]) if match[1] is not None else match[2]
