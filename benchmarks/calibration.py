"""Measure Q/DQ with max calibration of a large model: `python benchmarks/calibration.py [IMAGES]`.

timm's HRNet-W18 with seeded weights, on random images, on the CPU. From the ONNX file to the quantized ONNX file it is
to be at least 5 times faster than ModelOpt's ONNX quantizer, and to take at most 5 s more than 3 times as long as ONNX
Runtime alone takes for the images; memory is not to grow with them. Exit status 1 says that one of that is not so.

ModelOpt's ONNX quantizer needs packages that the extra `quantize` does not bring (`pip install nvidia-modelopt[onnx]`);
without them that row is left out. Memory is read from /proc, so on Linux only.
"""

import importlib.metadata
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx

from fusescope.graph.model import graph_of
from fusescope.quant.calibrate import calibrate
from fusescope.quant.data import Batch
from fusescope.quant.export import export
from fusescope.quant.insert import quantize
from fusescope.quant.ort import session, signature
from fusescope.quant.placement import calibration_tensors
from fusescope.quant.ranges import Ranges
from fusescope.quant.recipe import RECIPES, Method

MODEL = "hrnet_w18"
REPEATS = 3
FASTER, LOOPS, SECONDS = 5, 3, 5
"""At least this many times faster than ModelOpt; at most this many bare passes and this many seconds more."""

GROWTH = 1.05
"""Most that four times as many images may need, relative: the allocator is not exact."""


def images(proto: onnx.ModelProto, number: int) -> Iterator[Batch]:
    """Draw random images one by one."""
    (spec,) = signature(proto)
    random = np.random.default_rng(0)
    for place in range(number):
        yield Batch({spec.name: random.standard_normal(spec.shape, np.float32)}, None, (str(place),))


def bare(path: Path, number: int) -> None:
    """Run the images and do nothing else."""
    proto = onnx.load(path)
    run = session(proto)
    for batch in images(proto, number):
        run.run(None, dict(batch.inputs))


def calibrated(proto: onnx.ModelProto, number: int, method: Method = "max") -> Ranges:
    """Calibrate with the images."""
    tensors = calibration_tensors(graph_of(proto))
    return calibrate(proto, images(proto, number), tensors=tensors, method=method)


def ours(path: Path, number: int) -> None:
    """Calibrate, quantize and write, as `fusescope quantize --data --recipe study-fp8` does."""
    proto = onnx.load(path)
    ranges = calibrated(proto, number)
    made = quantize(proto, **RECIPES["study-fp8"].options(), amax=ranges.by_tensor(), source=ranges.source()).proto
    onnx.save(made, path.with_name("ours.onnx"))


def modelopts(path: Path, number: int) -> None:
    """Do the same with ModelOpt's ONNX quantizer, whose high precision is float16 too."""
    from modelopt.onnx.quantization import quantize as theirs

    proto = onnx.load(path)
    (spec,) = signature(proto)
    whole = np.concatenate([batch.inputs[spec.name] for batch in images(proto, number)])
    theirs(
        str(path),
        quantize_mode="fp8",
        calibration_data={spec.name: whole},
        calibration_method="max",
        calibration_eps=["cpu"],
        output_path=str(path.with_name("modelopt.onnx")),
    )


def seconds(work: Callable[[Path, int], None], path: Path, number: int) -> float:
    """Do some work and say how long it took."""
    start = time.perf_counter()
    work(path, number)
    return time.perf_counter() - start


def peak_mib(path: Path, number: int, method: str) -> float:
    """Calibrate in a process of its own and say how much memory that one needed at most."""
    command = [sys.executable, __file__, "--memory", str(path), str(number), method]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(path: Path, number: int, method: Method) -> None:
    """Calibrate, and print the most memory that this process ever had, in MiB."""
    calibrated(onnx.load(path), number, method)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    print(int(line.split()[1]) / 1024)


def has_modelopt() -> bool:
    """Whether ModelOpt's ONNX quantizer can be imported, which is not timed; if not, say so."""
    try:
        import modelopt.onnx.quantization  # noqa: F401
    except ImportError as error:
        print(f"ModelOpt's ONNX quantizer is left out: {str(error).splitlines()[0]}")
        return False
    return True


def main() -> None:
    """Print what was measured and whether it is as it should be."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    verdicts = []
    runtime = importlib.metadata.version("onnxruntime")
    print(f"{MODEL}, {number} images, {os.cpu_count()} cores, ONNX Runtime {runtime}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(export(MODEL), path)
        loops, wholes = [], []
        for _ in range(REPEATS):  # side by side, so that a busy machine slows both
            loops.append(seconds(bare, path, number))
            wholes.append(seconds(ours, path, number))
        loop, whole = statistics.median(loops), statistics.median(wholes)
        print(f"ONNX Runtime alone {loop:.2f} s ({min(loops):.2f} to {max(loops):.2f})")
        limit = LOOPS * loop + SECONDS
        print(f"fusescope {whole:.2f} s ({min(wholes):.2f} to {max(wholes):.2f}), to be at most {limit:.2f} s")
        verdicts.append(whole <= limit)
        if has_modelopt():
            theirs = seconds(modelopts, path, number)
            print(f"ModelOpt {theirs:.2f} s, {theirs / whole:.1f} times as long, to be at least {FASTER}")
            verdicts.append(theirs >= FASTER * whole)
        for method in ("max", "percentile"):
            few, many = (peak_mib(path, count, method) for count in (number, 4 * number))
            print(f"memory, {method}: {few:.0f} MiB for {number} images, {many:.0f} MiB for {4 * number}")
            verdicts.append(many <= GROWTH * few)
    print("as it should be" if all(verdicts) else "NOT as it should be")
    sys.exit(not all(verdicts))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if sys.argv[1:2] == ["--memory"]:
        print_peak(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])  # type: ignore[arg-type]
    else:
        main()
