"""Text and JSON out of recorded files, whatever state they are in: read whole, or refused with the reason."""

import codecs
import json
from pathlib import Path
from typing import Any

from fusescope.graph.errors import UserError

_CUT = ("Unterminated string", "Expecting value", "Expecting ',' delimiter", "Expecting property name")


def read_text(path: Path) -> str:
    """Read a text file.

    UTF-8 and UTF-16 are told apart by the byte order mark; bytes that are no UTF-8 (of Latin-1, say) become lone
    surrogates, so that they are kept and can be counted. Ends of lines and control bytes stay as they are.

    Raises:
        UserError: It is a folder, empty, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", where=path) from error
    if not data.strip():
        raise UserError("is empty", where=path, remedy="record it again")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")


def parse_json(text: str, where: object) -> Any:
    """Parse JSON as TensorRT writes it: with raw control bytes in strings, and NaN and Infinity where it has them.

    Args:
        text: The document.
        where: The file, for the message.

    Raises:
        UserError: It is no JSON, is cut short, or is nested too deeply.
    """
    return _parse(text, where, json.JSONDecoder(strict=False))


def parse_pairs(text: str, where: object) -> list[tuple[str, Any]]:
    """Parse a JSON object as `parse_json` does, with every pair of it: keys may repeat.

    Raises:
        UserError: As for `parse_json`, or it is no object.
    """
    document = _parse(text, where, json.JSONDecoder(strict=False, object_pairs_hook=tuple))
    if not isinstance(document, tuple):
        raise UserError("is no JSON object", where=where)
    return list(document)


def _parse(text: str, where: object, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        rest = text[error.pos :].strip()
        if error.msg.startswith("Unterminated string") or (not rest and error.msg.startswith(_CUT)):
            raise UserError(f"is cut short at {place}", where=where, remedy="record it again") from error
        raise UserError(f"is no valid JSON at {place} ({error.msg})", where=where) from error
    except RecursionError as error:
        raise UserError("is nested too deeply to be a recording", where=where) from error
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"holds a number that cannot be read ({error})", where=where) from error
