"""The commands that do an explained engine again, and that tell when to."""

import shlex
from collections.abc import Iterable, Iterator, Sequence

from fusescope.profiler.explanation import Explanation, Side
from fusescope.profiler.run import Provenance
from fusescope.report.shaping import Report

MODEL = "MODEL.onnx"
"""What the commands call the unquantized model."""

_BUILD_FLAGS = {
    "opt_level": "--opt-level",
    "aux_streams": "--aux-streams",
    "avg_timing_iterations": "--avg-timing-iterations",
    "workspace_bytes": "--workspace",
}
_COMPILED = "compiled"
"""How an engine came to be begins with this if fusescope built it."""


def rebuilding(explanations: Sequence[Explanation], report: Report) -> list[str]:
    """Shell commands that build every engine of a report, and explain them."""
    runs = [f"runs/{engine.label.replace('/', '_')}" for engine in report.engines]
    lines = [line for run, engine in zip(runs, report.engines, strict=True) for line in _build(engine.side, run)]
    for explanation, (base, place) in zip(explanations, report.pairs, strict=True):
        against = () if base is None else ("--baseline", runs[base])
        gpu = ("--gpu", explanation.gpu) if explanation.gpu else ()
        lines.append(shlex.join(("fusescope", "explain", runs[place], *against, *gpu, "--markdown", "study.md")))
    return lines


def release_checks(sides: Iterable[Side]) -> list[str]:
    """Shell commands that hold the installed release against those that built these engines."""
    compiled = (side.provenance for side in sides if side.provenance.how.startswith(_COMPILED))
    return list(dict.fromkeys(_release_check(origin) for origin in compiled))


def _release_check(origin: Provenance) -> str:
    used = f"{origin.runtime}=={origin.runtime_version}"
    words = ("--release", used, "--release", "installed", "--target", origin.target)
    return shlex.join(("fusescope", "releases", "check", *words))


def _build(side: Side, run: str) -> Iterator[str]:
    origin = side.provenance
    if not origin.how.startswith(_COMPILED):
        yield f"# {run}: {origin.how}"
        return
    model = MODEL
    converting = ["--dtype", str(origin.options["dtype"])] if origin.options.get("dtype") else []
    if origin.recipe:
        model = f"{origin.name}.onnx"
        yield shlex.join(("fusescope", "quantize", MODEL, "-o", model, *_recipe_flags(origin), *converting))
    options = [word for shape in str(origin.options.get("shape", "")).split() for word in ("--shape", shape)]
    if not origin.recipe:
        options += converting
    for key, flag in _BUILD_FLAGS.items():
        value = origin.options.get(key)
        if value is not None:
            options += [flag, str(int(value) >> 20 if key == "workspace_bytes" else value)]
    words = ("--runtime", origin.runtime, "--target", origin.target, *options, "--name", origin.name)
    yield shlex.join(("fusescope", "build", model, "-o", run, *words))


def _recipe_flags(origin: Provenance) -> list[str]:
    recipe = origin.recipe
    single = ("format", "placement", "weights", "store")
    flags = [word for key in single if key in recipe for word in (f"--{key}", recipe[key])]
    for key, flag in {
        "ops": "--op",
        "keep_ops": "--keep-op",
        "keep_shapes": "--keep-shape",
        "tensors": "--tensor",
    }.items():
        values = recipe.get(key, ()) or (["none"] if key in recipe else [])
        flags += [word for value in values for word in (flag, value)]
    if recipe.get("verdicts"):
        flags += ["--verdicts", "RUN"]
    asked = (str(why) for why in recipe.get("kept", {}).values())
    patterns = dict.fromkeys(why.removeprefix("--keep ") for why in asked if why.startswith("--keep "))
    return [*flags, *(word for pattern in patterns for word in ("--keep", pattern))]
