"""How an engine's model was quantized, in a line of Markdown."""

from fusescope.graph.units import count, plural
from fusescope.profiler.explanation import Explanation
from fusescope.report.markdown_text import code, text

_KEPT_SHOWN = 12
_UNKNOWN = {
    "implicit": "the compiler chose 8 bits by itself",
    "explicit": "its Quantizes are those of a model that is not known",
    "unknown": "the recording does not tell",
    "none": "no tensor quantized",
}
"""Key of `QUANTIZATIONS` to what is known where the model is not there."""


def recipe_told(explanation: Explanation) -> str:
    """The recipe as `fusescope quantize` recorded it, or what is known without; what it kept, and whose scales."""
    side, origin = explanation.quantized, explanation.quantized.provenance
    kept = origin.recipe.get("kept", {})
    parts = [
        f"{_how(explanation)}; {plural(explanation.quantize.sites, 'Quantize site')}; {count(side.weighted_in_8_bits)} "
        f"of {count(side.weighted)} convolutions and gemms read 8-bit tensors."
    ]
    if kept:
        listed = ", ".join(f"{code(node)} ({text(str(why))})" for node, why in list(kept.items())[:_KEPT_SHOWN])
        more = f" and {count(len(kept) - _KEPT_SHOWN)} more" if len(kept) > _KEPT_SHOWN else ""
        parts.append(f"Kept in high precision: {listed}{more}.")
    if origin.scales:
        parts.append(f"Activation scales: {text(origin.scales)}.")
    return " ".join(parts)


def _how(explanation: Explanation) -> str:
    origin = explanation.quantized.provenance
    recorded = {key: value for key, value in origin.recipe.items() if key != "kept"}
    if recorded:
        return ", ".join(f"{text(str(key))} {code(str(value))}" for key, value in recorded.items())
    if explanation.quantize.sites:
        return "its Quantizes came with the model, by a recipe that is not recorded"
    known = explanation.quantization == "explicit" and origin.model_name
    return _UNKNOWN["none" if known else explanation.quantization]
