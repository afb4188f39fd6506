"""Numbers as a person reads them: with a unit and no more digits than they are worth."""


def megabytes(size: int | None, *, signed: bool = False) -> str:
    """Bytes as MB (10^6), with three or four digits; ``-`` where they are not known."""
    return _number(None if size is None else size / 1e6, "MB", signed=signed)


def mebibytes(size: int | None, *, signed: bool = False) -> str:
    """Bytes as MiB (2^20), as plan sizes are published; ``-`` where they are not known."""
    return _number(None if size is None else size / (1 << 20), "MiB", signed=signed)


def count(number: int, *, signed: bool = False) -> str:
    """A count with a thousands separator, and its sign if asked for."""
    return f"{number:{'+' if signed and number else ''},d}"


def plural(number: int, one: str, many: str = "") -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _number(value: float | None, unit: str, *, signed: bool) -> str:
    if value is None:
        return "-"
    digits = 1 if abs(value) >= 9.95 else 2 if abs(value) >= 0.1 or not value else 4
    return f"{value:{'+' if signed and value else ''},.{digits}f} {unit}"
