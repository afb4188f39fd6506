"""Numbers and names as a person reads them: with a unit and no more digits than they are worth, nothing hidden."""


def megabytes(size: int | None, *, signed: bool = False) -> str:
    """Bytes as MB (10^6), as kB or B where they are few; ``-`` where not known."""
    return _scaled(size, {"MB": 10**6, "kB": 10**3, "B": 1}, signed=signed)


def mebibytes(size: int | None, *, signed: bool = False) -> str:
    """Bytes as MiB (2^20), as plan sizes are published, as KiB or B where they are few; ``-`` where not known."""
    return _scaled(size, {"MiB": 2**20, "KiB": 2**10, "B": 1}, signed=signed)


def microseconds(time_us: float | None, *, signed: bool = False) -> str:
    """Microseconds with three digits or more; ``-`` where not known."""
    if time_us is None or time_us != time_us:  # noqa: PLR0124 - NaN is the value that differs from itself
        return "-"
    digits = 0 if abs(time_us) >= 100 else 1 if abs(time_us) >= 10 else 2
    return f"{time_us:{'+' if signed and time_us else ''},.{digits}f} us"


def percent(share: float | None) -> str:
    """A share as percent; ``-`` where not known."""
    return "-" if share is None or share != share else f"{100 * share:.1f} %"  # noqa: PLR0124 - as above


def count(number: int, *, signed: bool = False) -> str:
    """A count with a thousands separator, and its sign if asked for."""
    return f"{number:{'+' if signed and number else ''},d}"


def plural(number: int, one: str, many: str = "") -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def sentence(clause: str) -> str:
    """A clause as a sentence: with a capital, unless a name in quotes begins it, and a full stop."""
    return f"{clause[:1].upper()}{clause[1:]}{'' if clause.endswith('.') else '.'}"


def printable(text: str) -> str:
    """Text from someone's file so that a terminal only shows it: what is no visible character becomes its escape."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def _scaled(size: int | None, units: dict[str, int], *, signed: bool) -> str:
    if size is None:
        return "-"
    unit = next((unit for unit, scale in units.items() if abs(size) >= scale), next(iter(units)))
    value = size / units[unit]
    digits = 0 if unit == "B" or not size else 1 if abs(value) >= 9.995 else 2
    return f"{value:{'+' if signed and size else ''},.{digits}f} {unit}"
