"""What changed between two versions of an entity, as a JSON Patch (RFC 6902)."""

from typing import Any

from jsonpatch import JsonPatch

from changelog.envelope import Entity
from changelog.exact import canonical, text_of

Patch = list[dict[str, Any]]

LARGE_BYTES = 1 << 16
"""A record larger than this is not compared field by field: its patch replaces the document, which is as right."""

FEW = 4
"""So many operations are not worth weighing against the document."""


def patch(original: Entity | None, current: Entity | None, text: bytes) -> Patch:
    """What makes ``current`` of ``original``; empty if they are equal as JSON documents (12.10 is 12.1, true is not 1).

    None is the document ``null``: so a create replaces the whole document, and a delete replaces it by ``null``. The
    whole document is also replaced where ``text``, the record that both are from, is large, or shorter than the patch
    would be. Numbers are taken over with every digit that they have.
    """
    if original is None or current is None or len(text) > LARGE_BYTES:
        return [] if canonical(original) == canonical(current) else _whole(current)
    booleans = b"true" in text or b"false" in text  # for Python, true is 1
    before, after = (
        {
            name: value
            for name, value in one.items()
            if name not in other or value != other[name] or (booleans and canonical(value) != canonical(other[name]))
        }
        for one, other in ((original, current), (current, original))
    )
    operations: Patch = JsonPatch.from_diff(before, after, dumps=canonical).patch
    if len(operations) > FEW and len(text_of(operations)) > len(text):
        return _whole(current)
    return operations


def applied(document: Any, operations: Patch) -> Any:
    """The document after a patch; ``document`` itself stays as it is. Raises an error of jsonpatch's where it does not
    fit: the patch before it is missing."""
    return JsonPatch(operations).apply(document)


def _whole(document: Entity | None) -> Patch:
    return [{"op": "replace", "path": "", "value": document}]
