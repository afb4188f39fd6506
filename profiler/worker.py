"""The process that compiles: ``python -m fusescope.profiler.worker REQUEST.json FOLDER``.

REQUEST names a runtime, options and one ``model``, or ``models`` by name, each with a folder of its name in FOLDER.

An engine is built in a process of its own, so that a crash inside TensorRT is an error message, not the end of a
study. The worker writes into FOLDER what the compiler says while it says it, and `OUTCOME` last.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from fusescope.profiler.runtimes import CompileOptions, Runtime, runtime_named

BUILD_LOG = "build.log"
LAYERS = "layers.txt"
PLAN = "engine.plan"
OUTCOME = "outcome.json"
DUMP_NOTE = f"(the engine dump is in {LAYERS})"


def work(request: Path, folder: Path) -> None:
    """Compile what `request` asks for and write log, dump, plan and outcome of each model."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    runtime = runtime_named(asked["runtime"])
    options = CompileOptions(**asked["options"])
    if "model" in asked:
        compile_into(folder, runtime, Path(asked["model"]), options)
    for name, model in asked.get("models", {}).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        compile_into(folder / name, runtime, Path(model), options)


def compile_into(folder: Path, runtime: Runtime, model: Path, options: CompileOptions) -> None:
    """Compile one model and write log, dump, plan and, last, the outcome into `folder`."""
    # Unbuffered, so that a crash of the compiler leaves its last words.
    with (folder / BUILD_LOG).open("wb", buffering=0) as stream:

        def log(severity: str, message: str) -> None:
            stream.write(f"[{severity}] {message}\n".encode("utf-8", "replace"))

        compiled = runtime.compile_model(model, options, log)
        if compiled.dump:
            log("V", DUMP_NOTE)
    if compiled.plan is not None:
        (folder / PLAN).write_bytes(compiled.plan)
    if compiled.dump:
        (folder / LAYERS).write_bytes(compiled.dump.encode("utf-8", "surrogateescape"))
    outcome = {
        "version": compiled.version,
        "parse_s": compiled.parse_s,
        "build_s": compiled.build_s,
        "plan_bytes": None if compiled.plan is None else len(memoryview(compiled.plan)),
        "parser_errors": [asdict(error) for error in compiled.parser_errors],
    }
    (folder / OUTCOME).write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]))
