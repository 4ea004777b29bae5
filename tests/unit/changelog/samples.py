"""One good entity of each kind, all of one guest, and the bytes of their changes."""

from typing import Any

from changelog.envelope import encode, envelope

TIME = "2026-01-31T12:00:00.000Z"
KEY = b"g-1"

SAMPLES: dict[str, dict[str, Any]] = {
    "guest": {"ref": "g-1", "firstName": "Ada", "email": None, "createdAt": TIME, "modifiedAt": TIME},
    "session": {
        "ref": "s-1",
        "guestRef": "g-1",
        "channel": "WEB",
        "startedAt": TIME,
        "endedAt": None,
        "modifiedAt": TIME,
    },
    "order": {
        "ref": "o-1",
        "guestRef": "g-1",
        "status": "PLACED",
        "currency": "GBP",
        "total": 5.1,
        "items": [{"sku": "a", "name": "Äpfel", "quantity": 2, "unitPrice": 2.55}],
        "createdAt": TIME,
        "modifiedAt": TIME,
    },
    "event": {"ref": "e-1", "guestRef": "g-1", "type": "VIEW", "channel": "WEB", "quantity": None, "createdAt": TIME},
}


def change(current: dict[str, Any] | None = None, original: dict[str, Any] | None = None) -> bytes:
    """The bytes of a change: service ``shop``, identifier ``i-1``."""
    return encode(envelope("shop", "i-1", current, original))
