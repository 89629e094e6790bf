"""`headwater run`: pipelines from files, several in one process, restarted when they fail."""

from __future__ import annotations

import runpy
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.target_options import say
from headwater.dashboard import serve
from headwater.errors import HeadwaterError, PipelineFileError
from headwater.logs import setup_logging
from headwater.metrics import StreamRecord
from headwater.runtime import Interrupt, StopNow
from headwater.stream import StopRequested, Stream, StreamHandle
from headwater.stream.handle import stop_all
from headwater.stream.stream import reading_definitions
from headwater.stream.user_code import failure_text, headline
from headwater.stream.view import ProgressView

LOOK_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 300.0  # a run of this length was well: failures are counted anew


def run(
    files: Annotated[
        list[Path],
        typer.Argument(exists=True, dir_okay=False, readable=True, help="Pipeline files."),
    ],
    port: Annotated[
        str | None,
        typer.Option(
            "--port",
            envvar="HEADWATER_PORT",
            help="Serve page, metrics and JSON of all pipelines there: 9090, or 0.0.0.0:9090.",
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts", min=0, help="How often in a row a failed pipeline is restarted."
        ),
    ] = 5,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log as JSON lines.")] = False,
    progress: Annotated[bool, typer.Option(help="Show how far the pipelines are.")] = True,
) -> None:
    """Run the pipelines of one or more files, until their ranges are read or until Ctrl-C.

    A pipeline file defines `stream` and `target`, or `pipelines`, a list of (stream, target):

        stream = portal_stream(id="usdc", …)

        target = duckdb_target("chain.duckdb")

    A pipeline that fails with an error that a retry may mend is started again, after a pause that
    grows; others go on meanwhile. The exit code is 1 if one has failed for good, 0 after SIGTERM,
    130 after Ctrl-C.

        headwater run transfers.py

        headwater run transfers.py swaps.py --port 9090 --json-logs
    """  # fmt: skip
    if json_logs:
        setup_logging(json_lines=True)
    jobs = [job for file in files for job in _jobs_of(file)]
    _check_ids(jobs)
    if port is not None:
        say(f"dashboard: {serve(port).url}")
    interrupt = Interrupt()

    def records() -> list[StreamRecord]:
        return [job.record for job in jobs if job.record]

    view = ProgressView(records, shown=progress, always_ends=True)
    with view, interrupt.handling(view.say):
        with suppress(StopRequested):
            _supervise(jobs, interrupt, view, restarts)
        _stop([job.handle for job in jobs if job.handle is not None])
    failures = {job.id: job.error for job in jobs if job.error is not None}
    for stream_id, error in failures.items():
        say(f"{stream_id}: {failure_text(error)}", "red")
    code = 1 if failures else interrupt.exit_code()
    if interrupt.signal == signal.SIGTERM and not failures:
        code = 0  # a supervisor has asked for the end, and all is stored
    if code:
        raise typer.Exit(code)


@dataclass
class _Job:
    """One pipeline of a file. `index` is its place there, by which a restart finds it again."""

    file: Path
    index: int
    id: str
    pipeline: tuple[Stream, Any]
    handle: StreamHandle | None = None
    error: BaseException | None = None
    failures: int = 0
    not_before: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def record(self) -> StreamRecord | None:
        return None if self.handle is None else self.handle.record

    @property
    def is_over(self) -> bool:
        return self.handle is not None and not self.handle.is_active and not self.not_before

    def start(self) -> None:
        stream, target = self.pipeline
        self.began, self.not_before = time.monotonic(), 0.0
        self.handle = stream.start(target)


def _stop(handles: list[StreamHandle]) -> None:
    """Stop every run, and wait until all have ended; at a second signal, break them off.

    What is not broken off in a moment then ends with the process, which `Interrupt` sees to.
    """
    broken_off = False
    while True:
        try:
            if broken_off:
                for handle in handles:
                    handle.interrupt.break_off()
            stop_all(handles)
        except StopNow:
            broken_off = True
        else:
            return


def _supervise(jobs: list[_Job], interrupt: Interrupt, view: ProgressView, restarts: int) -> None:
    """Start every job, and start again what failed, until all are over."""
    for job in jobs:
        job.start()
    while not all(job.is_over for job in jobs):
        interrupt.sleep(LOOK_S)
        for job in jobs:
            if job.not_before and time.monotonic() >= job.not_before:
                job.pipeline = _jobs_of(job.file)[job.index].pipeline  # a target runs once
                job.start()
            elif job.error is None and job.handle is not None and not job.handle.is_active:
                _judge(job, job.handle.exception(), view, restarts)


def _judge(job: _Job, error: BaseException | None, view: ProgressView, restarts: int) -> None:
    """Decide whether a job that has ended is started again."""
    if error is None or job.not_before:
        return
    if time.monotonic() - job.began > STEADY_S:
        job.failures = 0
    job.failures += 1
    if not getattr(error, "retryable", False) or job.failures > restarts:
        job.error = error
        return
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (job.failures - 1))
    again = f"starting again in {pause:.0f} s ({job.failures} of {restarts})"
    view.say(f"{job.id}: {headline(error)}; {again}")
    job.not_before = time.monotonic() + pause


def _jobs_of(file: Path) -> list[_Job]:
    return [
        _Job(file, index, stream.id, (stream, target))
        for index, (stream, target) in enumerate(read_pipelines(file))
    ]


def read_pipelines(file: Path) -> list[tuple[Stream, Any]]:
    """Run a file, and return the pipelines that it defines.

    Raises:
        PipelineFileError: it fails, defines none, or runs one itself (then nothing is run).
    """
    try:
        with reading_definitions(str(file)):
            names = runpy.run_path(str(file), run_name="headwater.pipeline_file")
    except HeadwaterError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file)]
        raise PipelineFileError(
            "the file cannot be run",
            file=file,
            line=lines[-1] if lines else None,
            reason=f"{type(error).__name__}: {error}",
        ) from error
    return list(_pipelines(file, names))


def _pipelines(file: Path, names: Mapping[str, Any]) -> Iterator[tuple[Stream, Any]]:
    pipelines = names.get("pipelines", [(names.get("stream"), names.get("target"))])
    for pipeline in pipelines:
        if (
            not isinstance(pipeline, tuple)
            or len(pipeline) != 2
            or not isinstance(pipeline[0], Stream)
            or pipeline[1] is None
        ):
            defined = sorted(key for key in names if not key.startswith("_"))
            raise PipelineFileError(
                "the file defines no pipeline", file=file, defines=", ".join(defined)
            )
        yield pipeline


def _check_ids(jobs: list[_Job]) -> None:
    ids = [job.id for job in jobs]
    for stream_id in ids:
        if ids.count(stream_id) > 1:
            raise PipelineFileError("two pipelines have the same id", id=stream_id)
