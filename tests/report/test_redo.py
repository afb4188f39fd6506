"""The commands that do an engine again: every option that made it is in them."""

import shlex
from dataclasses import replace
from typing import Any

from fusescope.profiler.explanation import Explanation
from fusescope.report.redo import rebuilding, release_checks
from fusescope.report.shaping import gather

RECIPE = {
    "format": "int8",
    "placement": "conv-inputs",
    "weights": "per-tensor",
    "kept": {"/stem/Conv": "it reads 3 channels", "/a b": "--keep /a *", "/a c": "--keep /a *"},
}


def changed(explanation: Explanation, **provenance: Any) -> Explanation:
    """The explanation with another origin of its quantized engine."""
    side = explanation.quantized
    return replace(explanation, quantized=replace(side, provenance=replace(side.provenance, **provenance)))


class TestRebuilding:
    """`rebuilding`."""

    def test_recipe_and_options(self, pair: Explanation) -> None:
        """Format, placement, weights and what was asked to be kept; builder options in the units of their flags."""
        options = {"opt_level": 1, "aux_streams": 0, "avg_timing_iterations": None, "workspace_bytes": 64 << 20}
        known = changed(pair, recipe=RECIPE, options=options)
        lines = rebuilding([known], gather([known]))
        assert lines == [
            "fusescope build MODEL.onnx -o runs/fp16 --runtime tensorrt-rtx --target sm120 --opt-level 1 --name fp16",
            "fusescope quantize MODEL.onnx -o fp8.onnx --format int8 --placement conv-inputs --weights per-tensor "
            "--keep '/a *'",
            "fusescope build fp8.onnx -o runs/fp8 --runtime tensorrt-rtx --target sm120 --opt-level 1 --aux-streams 0 "
            "--workspace 64 --name fp8",
            "fusescope explain runs/fp8 --baseline runs/fp16 --markdown study.md",
        ]

    def test_what_was_done_to_the_given_model(self, pair: Explanation) -> None:
        """A model that was converted is converted before it is quantized; its shape is given to the build."""
        known = changed(pair, recipe=RECIPE, options={"dtype": "fp16", "shape": "x=1x3x8x8 y=1x4"})
        quantize, build = (line.split() for line in rebuilding([known], gather([known]))[1:3])
        assert quantize[-2:] == ["--dtype", "fp16"]
        assert "--dtype" not in build
        assert build[9:13] == ["--shape", "x=1x3x8x8", "--shape", "y=1x4"]

    def test_a_shared_baseline_is_built_once(self, pair: Explanation) -> None:
        """Two engines against one baseline: three builds and two explanations."""
        other = changed(pair, name="other")
        lines = rebuilding([pair, other], gather([pair, other]))
        assert [line.split()[1] for line in lines] == ["build", "build", "build", "explain", "explain"]

    def test_a_recorded_engine(self, pair: Explanation) -> None:
        """What was not built here is not said to be: its line is a comment."""
        recorded = changed(pair, how="recorded by trtexec")
        assert "# runs/fp8: recorded by trtexec" in rebuilding([recorded], gather([recorded]))

    def test_hostile_names(self, pair: Explanation) -> None:
        """A name is one argument of the shell's, whatever it holds, and stays in its folder."""
        evil = "x; rm -rf $(HOME)/../y"
        named = changed(pair, name=evil, target="a b")
        words = [shlex.split(line) for line in rebuilding([named], gather([named]))]
        assert words[1][-1] == evil
        assert "runs/x; rm -rf $(HOME)_.._y" in words[1]
        assert words[1][words[1].index("--target") + 1] == "a b"


class TestReleaseChecks:
    """`release_checks`."""

    def test_once_per_release_and_target(self, pair: Explanation) -> None:
        """Engines of one release and target need one check, another target another, a recording none."""
        assert pair.baseline
        sides = [pair.baseline, pair.quantized, changed(pair, target="sm89").quantized]
        assert [line.split()[-1] for line in release_checks(sides)] == ["sm120", "sm89"]
        assert release_checks([changed(pair, how="recorded by trtexec").quantized]) == []
