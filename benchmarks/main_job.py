"""Measure what fusescope claims of its main job: `python benchmarks/main_job.py`.

All in one run, as ratios where a machine's speed would matter:

* the study of HRNet-W18 against the builder calls alone, one after the other (goal: at most 1.5);
* `fusescope --help` against `python -c "import click"` (goal: at most 1.5);
* the peak memory of explaining HRNet-W18 (goal: at most 400 MB).
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "samples" / "hrnet_w18.toml"
HELP_RUNS = 15

# Prints the seconds that parser and builder took, each engine alone on the machine, and nothing else beside them.
BUILDER_ALONE = """
import sys
from pathlib import Path
from fusescope.graph.batch import with_batch
from fusescope.profiler.build import build, prepare
from fusescope.profiler.runtimes import CompileOptions
from fusescope.study.config import read_config
from fusescope.study.runner import Models
config = read_config(Path(sys.argv[1]))
models = Models(config)
total = 0.0
for index, variant in enumerate((None, *config.variant)):
    model = prepare(with_batch(models.of(variant), 1), "alone")
    options = CompileOptions(target=config.build.target)
    run = build(model, Path(sys.argv[2]) / str(index), runtime=config.build.runtime, options=options)
    total += run.provenance.parse_s + run.provenance.build_s
print(total)
"""

# Prints the peak resident memory of the process in bytes (Linux counts in KiB).
EXPLAIN = """
import resource, sys
from pathlib import Path
from fusescope.profiler.explain import explain
from fusescope.profiler.run import read_run
explain(read_run(Path(sys.argv[1])), read_run(Path(sys.argv[2])))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def python(code: str, *arguments: Path) -> str:
    """Run `code` in a process of its own and return what it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def seconds(*command: str) -> float:
    """Wall time of a command."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Print one line per claim."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study_s = seconds(sys.executable, "-m", "fusescope", "study", str(SAMPLE), "-o", str(folder / "study"))
        alone_s = float(python(BUILDER_ALONE, SAMPLE, folder))
        print(f"study {study_s:.1f} s, builder calls alone {alone_s:.1f} s: ratio {study_s / alone_s:.2f} (goal 1.5)")

        runs = folder / "study" / "runs"
        peak = int(python(EXPLAIN, runs / "b1-fp8-per-channel", runs / "b1-fp16"))
        print(f"explaining HRNet-W18: peak {peak / 1e6:.0f} MB (goal 400 MB)")
        size = (folder / "study" / "report.html").stat().st_size
        layers = json.loads((folder / "study" / "study.json").read_text())["explanations"][0]["quantized"]["layers"]
        print(f"report {size / 1e6:.1f} MB, {layers} layers in its first engine")

    pairs = [
        (seconds(sys.executable, "-m", "fusescope", "--help"), seconds(sys.executable, "-c", "import click"))
        for _ in range(HELP_RUNS)
    ]
    ratio = statistics.median(help_s / click_s for help_s, click_s in pairs)
    print(f"fusescope --help against import click, median of {HELP_RUNS} pairs: ratio {ratio:.2f} (goal 1.5)")


if __name__ == "__main__":
    main()
