"""``fusescope releases``."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusescope.cli.options import FILE, Seconds, dumps, force_option, json_option, print_json, say

if TYPE_CHECKING:
    from fusescope.graph.patterns import Case
    from fusescope.profiler.releases import Release
    from fusescope.profiler.releases.suite import CaseResult


@click.group()
def command() -> None:
    """Ask of a TensorRT release which Quantizes it fuses, and what changed from one release to the next.

    Each runtime speaks for itself: what TensorRT for RTX does never answers the question for full TensorRT.
    """


@command.command()
@click.option(
    "--release",
    "names",
    multiple=True,
    required=True,
    metavar="RELEASE",
    help="tensorrt-rtx==1.7.1.116, or installed; repeatable, compared in the order given.",
)
@click.option("--target", default="sm120", show_default=True, help="What to compile for, such as sm89.")
@click.option("--pattern", "patterns", multiple=True, metavar="GLOB", help="Only matching patterns.")
@click.option("--model", "models", multiple=True, type=FILE, help="An ONNX model of yours to add to the suite.")
@click.option("--baseline", type=FILE, help="Compare with this stored matrix; exit 1 when something got worse.")
@click.option("--write-baseline", type=FILE, help="Store the matrix in this file.")
@click.option("--html", type=FILE, help="Write the matrix as an HTML page.")
@click.option("--junit", type=FILE, help="Write the changes as JUnit XML, for CI systems.")
@click.option(
    "--timeout",
    type=Seconds(),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="End a compiler that works on one pattern for this long.",
)
@force_option
@json_option
def check(
    names: tuple[str, ...],
    target: str,
    patterns: tuple[str, ...],
    models: tuple[Path, ...],
    baseline: Path | None,
    write_baseline: Path | None,
    html: Path | None,
    junit: Path | None,
    timeout: float,
    force: bool,
    as_json: bool,
) -> None:
    """Compile the pattern suite with one or more releases, and compare them.

    A release that is not installed is downloaded once into the cache. Exit status 1 when a release lost a fusion
    that the one before it, or the baseline, has.
    """
    from fusescope.graph.files import refuse_existing, write_text
    from fusescope.profiler.releases import release_named
    from fusescope.profiler.releases.matrix import against, changes, matrix, matrix_document, read_matrix
    from fusescope.report.releases import junit_xml, print_matrix

    for output in filter(None, (write_baseline, html, junit)):
        refuse_existing(output, force=force)
    stored = read_matrix(baseline) if baseline else None
    releases = list(dict.fromkeys(release_named(name) for name in names))
    cases = _cases(patterns, models)
    found = matrix(_run(releases, cases, target, timeout), target)
    differences = (*changes(found), *(against(stored, found) if stored else ()))
    document = matrix_document(found, differences)
    if write_baseline:
        write_text(write_baseline, dumps({**document, "changes": []}))
    if html:
        from fusescope.report.html import render_releases

        write_text(html, render_releases(found, differences))
    if junit:
        write_text(junit, junit_xml(found, differences))
    if as_json:
        print_json(document)
    else:
        print_matrix(found, differences if stored or len(releases) > 1 else None)
    for output in filter(None, (write_baseline, html, junit)):
        say(f"wrote {output}")
    better = {change.pattern for change in differences if change.direction == "better"}
    if better:
        own = ", ".join(model.name for model in models if model.name in better)
        say(f"something got better: the study of {own or 'a model with such sites'} is worth repeating")
    if any(change.direction == "worse" for change in differences):
        raise SystemExit(1)


@command.command("list")
def list_cached() -> None:
    """List the releases in the cache."""
    from fusescope.profiler.releases.overlays import cache_folder, cached_releases

    for name in cached_releases():
        click.echo(name)
    say(f"cache: {cache_folder()}")


@command.command()
@click.argument("release")
def remove(release: str) -> None:
    """Remove RELEASE, such as tensorrt-rtx==1.6.1.120, from the cache."""
    from fusescope.profiler.releases import release_named
    from fusescope.profiler.releases.overlays import remove_overlay

    say(f"removed {remove_overlay(release_named(release))}")


def _cases(patterns: tuple[str, ...], models: tuple[Path, ...]) -> "list[Case]":
    from fnmatch import fnmatchcase

    from fusescope.graph.errors import UserError
    from fusescope.graph.patterns import PATTERNS, cases, user_case

    names = [pattern.name for pattern in PATTERNS]
    for glob in patterns:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UserError(f"no pattern matches {glob!r}", remedy=f"the suite has {', '.join(names)}")
    wanted = [p for p in PATTERNS if not patterns or any(fnmatchcase(p.name, glob) for glob in patterns)]
    return [*cases(tuple(wanted)), *(user_case(path) for path in models)]


def _run(
    releases: "list[Release]", cases: "list[Case]", target: str, timeout_s: float
) -> "dict[Release, tuple[CaseResult, ...]]":
    from fusescope.graph.errors import UserError
    from fusescope.profiler.releases.overlays import ensure_overlay
    from fusescope.profiler.releases.suite import run_suite
    from fusescope.profiler.runtimes import ADAPTERS, runtime_named
    from fusescope.profiler.targets import check_target

    overlays = {}
    for release in releases:
        if release.runtime not in ADAPTERS:
            raise UserError(
                "full TensorRT compiles and runs on a GPU only, and this version of fusescope does not drive it",
                where=release.name,
                remedy="check releases of tensorrt-rtx here; they do not answer for full TensorRT",
            )
        check_target(target, runtime_named(release.runtime).TARGETS, ())
        overlays[release] = None if release.installed else ensure_overlay(release, say)
    say(f"compiling {len(cases)} cases with {', '.join(release.name for release in releases)}")
    with ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
        running = {
            release: pool.submit(run_suite, release, cases, target, overlay=overlays[release], timeout_s=timeout_s)
            for release in releases
        }
        return {release: future.result() for release, future in running.items()}
