"""JSON whose numbers stay what they are: money is compared with ``=``, so no digit may come or go on the way."""

import json
from decimal import Context, Decimal
from typing import Any

import orjson

_SHORT = 18
"""So many digits fit into 64 bits."""

_DIGITS = Context(prec=1000)
"""More than any number of the log has: one of 400 digits is bad."""


def parse(text: bytes) -> Any:
    """JSON with numbers as they stand: a fraction is a Decimal (12.10 keeps its zero), and so is what has more digits
    than 64 bits. :func:`text_of` and ``changelog.envelope.encode`` are ways back. Raises ValueError for what is not
    JSON."""
    return _DECODER.decode(text.decode())


def text_of(value: Any) -> bytes:
    """JSON of what :func:`parse` gave; no number becomes longer than it was by more than a sign."""
    return orjson.dumps(value, default=_number)


def canonical(value: Any) -> str:
    """Text that is the same for values that are the same JSON, and for no others: members of objects in order, numbers
    by their value (12.10 and 12.1 are one, and so are 12.0 and 12; true and 1 are not)."""
    return text_of(_plain(value)).decode()


def _number(value: Any) -> orjson.Fragment:
    if not isinstance(value, Decimal):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return orjson.Fragment(str(value))


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _SHORT else Decimal(text)


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_int=_integer)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        number = _DIGITS.normalize(value)
        return int(number) if number == number.to_integral_value() and number.adjusted() < _SHORT else number
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
