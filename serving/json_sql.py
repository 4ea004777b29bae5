"""Values as JSON in Trino's SQL. Its own cast makes no JSON of times with a zone, and a view with a cast to a whole row
breaks when the table gets another field: so every field is named."""

import re
from dataclasses import dataclass

_NAME = re.compile(r'"((?:[^"]|"")+)"|([a-z_][a-z0-9_]*)', re.IGNORECASE)
_ZONED = re.compile(r"(timestamp|time)(\(\d+\)) with time zone")


@dataclass(frozen=True)
class Type:
    """A type of Trino's: ``text`` of a plain one, ``element`` of an array, ``fields`` of a row."""

    text: str = ""
    element: "Type | None" = None
    fields: "tuple[tuple[str, Type], ...]" = ()


def json_of(expression: str, type_: str) -> str:
    """SQL that makes JSON of an expression whose type Trino writes as ``type_``; null where that is null. Raises
    ValueError for a type that cannot be read."""
    value, _ = _castable(expression, parse(type_), 0)
    return f"CAST({value} AS JSON)"


def parse(text: str) -> Type:
    """A type as Trino writes it. Raises ValueError."""
    parsed, at = _parse(text, 0)
    if at != len(text):
        raise ValueError(f"no type of Trino's: {text!r} from {text[at:]!r} on")
    return parsed


def _parse(text: str, at: int) -> tuple[Type, int]:
    if text.startswith("array(", at):
        element, at = _parse(text, at + len("array("))
        return Type(element=element), _expect(text, at, ")")
    if text.startswith("row(", at):
        fields, at = [], at + len("row(")
        while True:
            name = _NAME.match(text, at)
            if name is None:
                raise ValueError(f"no name of a field in {text!r} at {text[at:]!r}")
            type_, at = _parse(text, _expect(text, name.end(), " "))
            fields.append(((name[1] or name[2]).replace('""', '"'), type_))
            if text.startswith(")", at):
                return Type(fields=tuple(fields)), at + 1
            at = _expect(text, at, ", ")
    plain = re.compile(r"[a-z]+[a-z ]*(\(\d+(, ?\d+)?\)[a-z ]*)?").match(text, at)
    if plain is None:
        raise ValueError(f"no type in {text!r} at {text[at:]!r}")
    return Type(plain[0]), plain.end()


def _expect(text: str, at: int, part: str) -> int:
    if not text.startswith(part, at):
        raise ValueError(f"{part!r} is missing in {text!r} at {text[at:]!r}")
    return at + len(part)


def _castable(expression: str, type_: Type, depth: int) -> tuple[str, str]:
    """(an expression that Trino makes JSON of, its type)."""
    if type_.element is not None:
        item = f"item{depth}"
        value, text = _castable(item, type_.element, depth + 1)
        if value == item:
            return expression, f"array({text})"
        return f"transform({expression}, {item} -> {value})", f"array({text})"
    if type_.fields:
        made = [(name, *_castable(f"{expression}.{_quoted(name)}", one, depth)) for name, one in type_.fields]
        text = f"row({', '.join(f'{_quoted(name)} {one}' for name, _, one in made)})"
        values = ", ".join(value for _, value, _ in made)
        return f"if({expression} IS NULL, NULL, CAST(row({values}) AS {text}))", text
    text = _ZONED.sub(r"\1\2", type_.text)
    return (expression, text) if text == type_.text else (f"CAST({expression} AS {text})", text)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
