"""``fusescope releases`` and ``fusescope sites --rules``: the matrix, the gate, the cache, the observed rules."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusescope.profiler.releases.overlays import CACHE_VARIABLE

Call = Callable[..., Any]
CHECK = ("releases", "check", "--release", "installed", "--pattern", "conv-relu")


@pytest.mark.compiles
class TestCheck:
    """The check of one release, on one pattern."""

    def test_the_document(self, call: Call) -> None:
        """Each case has a row with its verdicts and kernels, and stdout holds nothing else."""
        document = json.loads(call(*CHECK, "--json").out)
        assert (document["schema"], document["target"], document["changes"]) == ("fusescope.releases", "sm120", [])
        assert [row["pattern"] for row in document["rows"]] == [
            f"conv-relu/{form}/{weights}" for form in ("fp8", "int8") for weights in ("per-tensor", "per-channel")
        ]
        for row in document["rows"]:
            assert row["release"].startswith("tensorrt-rtx==")
            assert {"pattern", "release", "verdict", "kernels"} <= set(row)
            assert len(row["sites"]) == 2

    def test_the_gate(self, call: Call, tmp_path: Path) -> None:
        """The same release passes its own baseline; a baseline in which a Quantize was fused does not pass."""
        assert call(*CHECK, "--write-baseline", "base.json").status == 0
        passed = call(*CHECK, "--baseline", "base.json")
        assert passed.status == 0
        assert "no change" in passed.out
        stored = json.loads((tmp_path / "base.json").read_text())
        stored["rows"][0]["sites"][1]["verdict"] = "fused"
        (tmp_path / "better.json").write_text(json.dumps(stored))
        failed = call(*CHECK, "--baseline", "better.json", "--junit", "out.xml", "--html", "out.html")
        assert failed.status == 1
        assert "fused became alone" in failed.out
        suite = ET.parse(tmp_path / "out.xml").getroot()[0]  # noqa: S314 - our own file
        assert (suite.get("tests"), suite.get("failures")) == ("4", "1")
        page = (tmp_path / "out.html").read_text(encoding="utf-8")
        assert "fused became alone" in page
        assert "http://" not in page.replace("http://www.w3.org", "")

    def test_something_better_is_no_failure(self, call: Call, tmp_path: Path) -> None:
        """A Quantize that was lost in the baseline makes the study worth repeating."""
        call(*CHECK, "--write-baseline", "base.json")
        stored = json.loads((tmp_path / "base.json").read_text())
        stored["rows"][0]["sites"][1]["verdict"] = "lost"
        (tmp_path / "worse.json").write_text(json.dumps(stored))
        called = call(*CHECK, "--baseline", "worse.json")
        assert called.status == 0
        assert "is worth repeating" in called.err

    def test_a_model_of_ones_own(self, call: Call, tiny: Path) -> None:
        """It is a row beside the patterns."""
        call("quantize", tiny, "-o", "own<b>.onnx")
        document = json.loads(call(*CHECK, "--model", "own<b>.onnx", "--json", "--html", "page.html").out)
        assert document["rows"][-1]["pattern"] == "own<b>.onnx"
        assert "own&lt;b&gt;.onnx" in (tiny.parent / "page.html").read_text(encoding="utf-8")


class TestRefusals:
    """One line each."""

    def test_no_release(self, refused: Call) -> None:
        """The message shows how a release is named."""
        assert "tensorrt-rtx==1.7.1.116" in refused("releases", "check", "--release", "newest")

    @pytest.mark.compiles
    def test_no_pattern(self, refused: Call) -> None:
        """The message lists the patterns."""
        assert "residual-add-fp16-skip" in refused(*CHECK[:4], "--pattern", "nothing-*")

    @pytest.mark.compiles
    def test_unknown_target(self, refused: Call) -> None:
        """The message lists the targets."""
        assert "sm89" in refused(*CHECK, "--target", "sm61")

    def test_full_tensorrt(self, refused: Call) -> None:
        """It is said that this needs a GPU, and nothing is downloaded."""
        message = refused("releases", "check", "--release", "tensorrt==11.4.0.106")
        assert "GPU" in message

    @pytest.mark.compiles
    def test_a_baseline_that_is_none(self, refused: Call, tmp_path: Path) -> None:
        """The message says how to make one."""
        (tmp_path / "other.json").write_text("{}")
        assert "--write-baseline" in refused(*CHECK, "--baseline", "other.json")

    def test_nothing_to_remove(self, refused: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A release that is not in the cache cannot be removed from it."""
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
        assert "not in the cache" in refused("releases", "remove", "tensorrt-rtx==1.0")


def test_an_empty_cache_lists_nothing(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's place is said on stderr."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    called = call("releases", "list")
    assert not called.out
    assert str(tmp_path / "cache") in called.err


def test_sites_by_what_a_release_was_seen_to_do(call: Call, tiny: Path) -> None:
    """The stored rules name the patterns that they were seen with."""
    call("quantize", tiny, "-o", "tiny.fp8.onnx")
    document = json.loads(call("sites", "tiny.fp8.onnx", "--rules", "tensorrt-rtx-1.7", "--json").out)
    by_tensor = {site["tensor"]: site for site in document["sites"]}
    assert by_tensor["fr"]["reason"] == "epilogue"
    assert "tensorrt-rtx==1.7.1.116" in by_tensor["fr"]["source"]
