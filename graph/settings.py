"""TOML files that people write, validated: what is wrong with one is said in one line, with the nearest name."""

import json
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from fusescope.graph.errors import UserError


class Section(BaseModel):
    """A table of a TOML file: what it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)  # strict: "3" and true are no numbers


S = TypeVar("S", bound=Section)


def read_settings(path: Path, kind: type[S]) -> S:
    """Read a TOML file.

    Args:
        path: The file.
        kind: What its top level may hold.

    Raises:
        UserError: It cannot be read, is no TOML, has an unknown key (with the nearest name) or a value that does not
            fit.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=path, remedy="check the path") from error
    except ValueError as error:
        raise UserError(f"is not TOML: {error}", where=path, remedy="mend that line") from error
    return checked_settings(document, kind, path)


def checked_settings(document: dict[str, Any], kind: type[S], where: object) -> S:
    """Validate settings that are there as plain data.

    Args:
        document: Keys and values.
        kind: What it may hold.
        where: What to name in messages.

    Raises:
        UserError: There is an unknown key, one that is missing, or a value that does not fit.
    """
    try:
        return kind.model_validate_json(json.dumps(document, default=str))  # strict JSON takes paths and lists
    except ValidationError as error:
        raise _first_complaint(error, kind, where) from error


def _first_complaint(error: ValidationError, kind: type[Section], where: object) -> UserError:
    complaints = error.errors()
    # An unknown key first: it may be the one that is missing, misspelt.
    complaint = next((each for each in complaints if each["type"] == "extra_forbidden"), complaints[0])
    place = complaint["loc"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    if complaint["type"] == "extra_forbidden":
        known = list(_section_at(kind, place[:-1]).model_fields)
        near = get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return UserError(f"unknown key {key!r}", where=where, remedy=f"{hint}known here are {', '.join(known)}")
    if complaint["type"] == "missing":
        return UserError(f"lacks the key {key!r}", where=where, remedy="add it")
    given = f", not {complaint['input']!r}" if isinstance(complaint["input"], (str, int, float)) else ""
    problem = complaint["msg"].removeprefix("Value error, ")
    return UserError(f"{key}: {problem}{given}".removeprefix(": "), where=where, remedy="mend the value")


def _section_at(kind: type[Section], place: Sequence[int | str]) -> type[Section]:
    """Find the section that a place in the file belongs to; whole numbers number the tables of an array."""
    for part in place:
        if isinstance(part, str):
            kind = next(inner for inner in _parts(kind.model_fields[part].annotation) if issubclass(inner, Section))
    return kind


def _parts(annotation: Any) -> list[type[Any]]:
    """List the types that an annotation such as `tuple[Variant, ...]` or `Build | None` is made of."""
    inner = [part for argument in get_args(annotation) for part in _parts(argument)]
    return inner or ([annotation] if isinstance(annotation, type) else [])
