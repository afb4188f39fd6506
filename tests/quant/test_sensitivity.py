"""Sites one by one: against the whole model with one site quantized by `quantize` itself, and against numpy."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from fusescope.graph.errors import UserError
from fusescope.quant.data import Batch
from fusescope.quant.grafts import Grafter
from fusescope.quant.half import to_half
from fusescope.quant.insert import quantize
from fusescope.quant.sensitivity import sensitivity

Floats = NDArray[np.float32]
Run = Callable[..., dict[str, Floats]]

IMAGES, BLOCKS, CHANNELS = 12, 5, 8


def blocks_net() -> onnx.ModelProto:
    """A stem and five residual blocks: eleven sites, the two inputs of convolutions of each block and the last sum."""
    lines = ["[stem] s0 = Conv <pads = [1,1,1,1]> (x, stem_w)", "[stem_act] a0 = Relu (s0)"]
    for block in range(BLOCKS):
        lines += [
            f"[first{block}] f{block} = Conv <pads = [1,1,1,1]> (a{block}, first{block}_w)",
            f"[act{block}] r{block} = Relu (f{block})",
            f"[second{block}] d{block} = Conv <pads = [1,1,1,1]> (r{block}, second{block}_w)",
            f"[sum{block}] b{block} = Add (d{block}, a{block})",
            f"[out{block}] a{block + 1} = Relu (b{block})",
        ]
    lines += [
        f"[head] h = Conv (a{BLOCKS}, head_w)",
        "[pool] p = GlobalAveragePool (h)",
        "[flat] y = Flatten (p)",
    ]
    text = (
        '<ir_version: 9, opset_import: ["" : 19]> net (float[N,3,12,12] x) => (float[N,10] y) {'
        + "\n".join(lines)
        + "}"
    )
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    shapes = {"stem_w": (CHANNELS, 3, 3, 3), "head_w": (10, CHANNELS, 1, 1)}
    for block in range(BLOCKS):
        shapes |= {f"{place}{block}_w": (CHANNELS, CHANNELS, 3, 3) for place in ("first", "second")}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return proto


SITES = [f"{kind}{block}" for block in range(BLOCKS) for kind in "ar"] + [f"a{BLOCKS}"]
READERS = {**{f"a{block}": f"first{block}" for block in range(BLOCKS)}, f"a{BLOCKS}": "head"}
READERS |= {f"r{block}": f"second{block}" for block in range(BLOCKS)}


@pytest.fixture(name="net", scope="module")
def _net() -> onnx.ModelProto:
    return blocks_net()


@pytest.fixture(name="images", scope="module")
def _images() -> Floats:
    return np.random.default_rng(5).standard_normal((IMAGES, 3, 12, 12)).astype(np.float32)


@pytest.fixture(name="amax")
def _amax(net: onnx.ModelProto, images: Floats, run: Run) -> dict[str, float]:
    """Ranges up to 30 times too wide."""
    return too_wide(run(net, images, SITES), 30)


def too_wide(exact: Mapping[str, Floats], widest: float) -> dict[str, float]:
    """Stretch the range of each site by another factor up to `widest`, so that the sites differ as sites do."""
    factors = np.random.default_rng(8).permutation(np.geomspace(1, widest, len(SITES)))
    return {name: float(np.abs(exact[name]).max() * factor) for name, factor in zip(SITES, factors, strict=True)}


def stream(images: Floats, labels: NDArray[np.int64] | None = None) -> Callable[[], Iterator[Batch]]:
    """Return a function that streams the images by five."""

    def batches() -> Iterator[Batch]:
        for start in range(0, len(images), 5):
            part = slice(start, start + 5)
            yield Batch({"x": images[part]}, None if labels is None else labels[part], ())

    return batches


def only(net: onnx.ModelProto, site: str, amax: Mapping[str, float], form: str) -> onnx.ModelProto:
    """Quantize one site with the options that a user has: all other convolutions are kept."""
    keep = [name for tensor, name in READERS.items() if tensor != site]
    return quantize(net, format=form, amax=amax, keep=keep).proto


def spearman(first: list[float], second: list[float]) -> float:
    """Correlate two rankings."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_alone_is_the_model_with_one_site(
    net: onnx.ModelProto, images: Floats, amax: dict[str, float], run: Run, form: str
) -> None:
    """The grafted model gives bit by bit what `quantize` gives when all other convolutions are kept."""
    grafter = Grafter(net, quantize(net, format=form, amax=amax).proto)
    assert [site.tensor for site in grafter.sites] == SITES
    for site in grafter.sites[::3]:
        alone = grafter.alone(site)
        onnx.checker.check_model(alone, full_check=True)
        expected = run(only(net, site.tensor, amax, form), images, ["y"])["y"]
        assert np.array_equal(run(alone, images, ["y"])["y"], expected)
        assert not np.array_equal(expected, run(net, images, ["y"])["y"])


def test_the_ratio_by_numpy(net: onnx.ModelProto, images: Floats, amax: dict[str, float], run: Run) -> None:
    """The signal-to-noise ratio of a site is that of its own model on the first four images."""
    few = images[:4]
    exact = run(net, few, ["y"])["y"].astype(float)
    for site in sensitivity(net, quantize(net, format="int8", amax=amax).proto, stream(images)):
        error = run(only(net, site.tensor, amax, "int8"), few, ["y"])["y"] - exact
        assert site.snr_db == pytest.approx(10 * np.log10((exact**2).sum() / (error**2).sum()), abs=1e-3)
        assert (site.readers, site.nonfinite, site.alone) == ((READERS[site.tensor],), 0, None)


@pytest.mark.parametrize(("form", "widest"), [("int8", 1), ("int8", 30), ("fp8", 1), ("fp8", 2**14)])
def test_four_images_rank_as_many_do(net: onnx.ModelProto, images: Floats, run: Run, form: str, widest: float) -> None:
    """The ranking of eleven sites on four images is nearly that on all: Spearman's correlation is over 0.9."""
    variant = quantize(net, format=form, amax=too_wide(run(net, images, SITES), widest)).proto
    found = sensitivity(net, variant, stream(images), exact=len(SITES))
    few = [site.snr_db for site in found]
    many = [site.alone.snr_db for site in found if site.alone is not None]
    assert few == sorted(few)
    assert spearman(few, many) > 0.9


def test_only_the_top_is_run(net: onnx.ModelProto, images: Floats, amax: dict[str, float], run: Run) -> None:
    """The noisiest sites get their accuracy, with its paired difference to the reference, and the others none."""
    labels = run(net, images, ["y"])["y"].argmax(axis=1)
    done: list[int] = []
    variant = quantize(net, format="int8", amax=amax).proto
    found = sensitivity(net, variant, stream(images, labels), exact=2, progress=done.append)
    assert [site.alone is not None for site in found] == [True] * 2 + [False] * 9
    for site in found[:2]:
        expected = run(only(net, site.tensor, amax, "int8"), images, ["y"])["y"].argmax(axis=1)
        assert site.difference is not None
        assert site.difference.first_only == (expected != labels).sum()
    assert done == [4] * len(SITES) + [5, 5, 2]


def test_a_float16_variant(net: onnx.ModelProto, images: Floats, amax: dict[str, float], run: Run) -> None:
    """Its float16 scales and codes go into the float32 reference, which then errs as the float16 model does, nearly."""
    half = to_half(net)
    grafter = Grafter(net, quantize(half, format="int8", amax=amax).proto)
    exact = run(net, images, ["y"])["y"]
    for site in grafter.sites[:4]:
        error = run(grafter.alone(site), images, ["y"])["y"] - exact
        expected = run(only(half, site.tensor, amax, "int8"), images, ["y"])["y"] - exact
        assert np.corrcoef(error.ravel(), expected.ravel())[0, 1] > 0.9


def test_an_older_reference(residual_net: Callable[..., onnx.ModelProto], images: Floats) -> None:
    """A model of opset 13 is raised to that of its FP8 variant, as `quantize` raised it; an image at a time."""
    old = residual_net(opset=13)
    variant = quantize(old, format="fp8").proto
    assert variant.opset_import[0].version == 19
    sixteen = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
    found = sensitivity(old, variant, stream(sixteen), exact=1)
    assert {site.tensor: set(site.readers) for site in found} == {
        "sr": {"first"},
        "fr": {"second"},
        "ar": {"left", "right"},
    }


def test_a_site_that_breaks_comes_first(net: onnx.ModelProto, images: Floats, amax: dict[str, float]) -> None:
    """A scale of NaN makes the outputs NaN: the site has no ratio, is first, and never agrees."""
    variant = quantize(net, format="int8", amax=amax).proto
    scale = next(each for each in variant.graph.initializer if each.name == "r2_scale")
    scale.CopyFrom(numpy_helper.from_array(np.array(np.nan, np.float32), scale.name))
    first = sensitivity(net, variant, stream(images), exact=1)[0]
    assert (first.tensor, first.snr_db, first.nonfinite) == ("r2", None, 4)
    assert first.alone is not None
    assert first.alone.nonfinite == IMAGES


def test_what_cannot_be_ranked(net: onnx.ModelProto, images: Floats, amax: dict[str, float]) -> None:
    """A quantized reference, an unquantized variant, another model, and no images are one line each."""
    variant = quantize(net, format="int8", amax=amax).proto
    with pytest.raises(UserError, match="the reference is quantized itself"):
        sensitivity(variant, variant, stream(images))
    with pytest.raises(UserError, match="quantizes no activation"):
        sensitivity(net, net, stream(images))
    other = onnx.parser.parse_model(onnx.printer.to_text(net).replace("r3", "other3"))
    with pytest.raises(UserError, match="tensor 'r3' of the quantized model: is not in the reference"):
        sensitivity(other, variant, stream(images))
    with pytest.raises(UserError, match="no image"):
        sensitivity(net, variant, lambda: ())


def test_a_reference_with_batch_normalization(images: Floats, run: Run) -> None:
    """`quantize` folds it into the convolution: the folded weights take the place of both, for the readers only."""
    text = """<ir_version: 9, opset_import: ["" : 19]> net (float[N,3,12,12] x) => (float[N,4] y) {
        [one] a = Conv <pads = [1,1,1,1]> (x, w1)
        [norm1] b = BatchNormalization (a, g1, h1, m1, v1)
        [act] c = Relu (b)
        [two] d = Conv <pads = [1,1,1,1]> (c, w2)
        [norm2] e = BatchNormalization (d, g2, h2, m2, v2)
        [pool] p = GlobalAveragePool (e)
        [flat] y = Flatten (p)
    }"""
    net = onnx.parser.parse_model(text)
    rng = np.random.default_rng(2)
    shapes = {"w1": (6, 3, 3, 3), "w2": (4, 6, 3, 3)}
    shapes |= {f"{kind}{place}": (channels,) for place, channels in ((1, 6), (2, 4)) for kind in "ghmv"}
    for name, shape in shapes.items():
        values = rng.random(shape) + 0.1
        net.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    amax = {"c": float(run(net, images, ["c"])["c"].max())}
    variant = quantize(net, format="int8", amax=amax).proto
    (site,) = sensitivity(net, variant, stream(images), exact=1)
    assert (site.tensor, site.readers) == ("c", ("two",))
    grafter = Grafter(net, variant)
    # It is the only site, so the variant has nothing else quantized; folding rounds, so that a few codes may differ.
    exact, expected = (run(model, images, ["y"])["y"] for model in (net, variant))
    found = run(grafter.alone(grafter.sites[0]), images, ["y"])["y"]
    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(expected - exact)
