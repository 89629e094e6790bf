"""The start of a Spark on this machine: one per process, for all who wait for it.

Spark keeps its Python side in the process, so two starts at a time would break each other. A start
has a thread of its own, and whoever wants Spark joins it. One who waits can be interrupted at any
moment: Spark itself is not. A start that everyone has left before its JVM listened is ended at
once. Later it is let finish, because Python would be left with half of a Spark: whoever comes in
the meantime uses it, and otherwise it is stopped. In both cases nothing of it stays in Python.

Runs on the driver. All methods may be called from any thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Lock, RLock, Thread, current_thread, main_thread
from typing import Any, cast

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession, SQLContext

from headwater.errors import SparkStartError
from headwater.spark.jvm import Archive, JvmProcess, cut_wait, find_java

logger = logging.getLogger("headwater.spark")

EXIT_S = 2.0  # what the end of the program waits for a Spark that it has not used

making = RLock()
"""Is held while a session is made here: half of one must not be taken for a session."""


class LocalStart:
    """One start of a local Spark. Those who wait for it are events, which its end sets.

    `ended` says that Spark has started or has failed to. `take` raises the failure, and keeps a
    Spark that has started for the rest of the program.
    """

    newest: LocalStart | None = None
    _guard = Lock()

    def __init__(self, settings: Mapping[str, str], *, workers: bool) -> None:
        self.ended = Event()
        self._settings = dict(settings)
        self._workers = workers
        self._waiting: set[Event] = set()
        self._changed = Event()
        self._kept = False
        self._given_up = self._is_at_exit = False
        self._process: JvmProcess | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="headwater-spark", daemon=True)

    @classmethod
    def join(
        cls, event: Event, settings: Mapping[str, str], *, workers: bool = True
    ) -> LocalStart | None:
        """Join the start that is under way, or begin one; None if a Spark is there to stay.

        The settings are those of a start that begins here. `workers` has Python workers started
        as well.
        """
        with cls._guard:
            start = cls.newest
            if start is None or start._given_up or start._kept or start._error is not None:
                if (start is None or start._is_over) and active_context() is not None:
                    return None
                start = cls(settings, workers=workers)
                start._thread.start()  # before others know of it: a signal may end this line
                cls.newest = start
            start._waiting.add(event)
            if start.ended.is_set():
                event.set()
            else:
                event.clear()
            return start

    def take(self) -> None:
        """Keep a Spark that has started; raise the failure of one that has not.

        Called by one who waits for it, once it has ended.
        """
        with self._guard:
            if self._error is None:
                self._kept = True
                self._changed.set()
        self.check()

    def check(self) -> None:
        """Raise the failure of a start that has failed."""
        if self._error is not None:
            raise self._error

    def leave(self, event: Event) -> None:
        """Wait for it no longer. The last one who leaves has it end, unless it was taken."""
        with self._guard:
            self._waiting.discard(event)
            if self._waiting or self._kept:
                return
            if self._process is None or self._process.end_before_it_listens():
                self._given_up = True
            self._changed.set()

    @property
    def came_up(self) -> bool:
        """Whether Spark has started."""
        return self.ended.is_set() and self._error is None

    @property
    def _is_over(self) -> bool:
        return self._kept or not self._thread.is_alive()

    def _leave(self) -> None:
        """End a Spark that nothing uses before the interpreter ends, and its thread with it.

        A thread that still runs then is frozen where it is, and extensions report leaks.
        """
        with self._guard:
            if self._kept:
                return
            self._given_up = self._is_at_exit = True
            self._changed.set()
        with ignoring_interrupts(), without_words_of_py4j():
            if self._process is not None:
                self._process.end()
            if self._thread.ident is not None:
                cut_wait(self._thread.ident)
            self._thread.join(EXIT_S)

    def _run(self) -> None:
        atexit.register(self._leave)
        with making:
            before = set(sys.path)
            context: SparkContext | None = None
            try:
                context = self._make()
            except BaseException as error:  # noqa: BLE001 - raised where Spark is asked for
                self._fail(error, before)
            self._end()
        if context is not None and self._is_unused():
            with making:
                self._stop(context, before)
        atexit.unregister(self._leave)
        if self._given_up:
            logger.info("spark.unused: it ends with the stream")

    def _make(self) -> SparkContext:
        """Start Spark, or take the one that other code has started meanwhile."""
        with SparkContext._lock:  # held by Spark's own `getOrCreate`, which has to wait
            active = active_context()
            if active is not None:
                self._kept = True  # it is not ours to end
                return active
            if self._given_up:
                raise SparkStartError("nothing waits for Spark any more")
            context = make_context(self._settings, self._note)
        if self._workers and self._waiting:
            context.parallelize([0], 1).map(int).collect()
        return context

    def _note(self, process: JvmProcess) -> None:
        with self._guard:
            self._process = process
            if self._given_up:
                process.end()

    def _end(self) -> None:
        """Tell all who wait."""
        with self._guard:
            self.ended.set()
            for event in self._waiting:
                event.set()

    def _fail(self, error: BaseException, path: set[str]) -> None:
        self._error = error
        if self._process is not None:
            self._end_process(self._process)
        _forget_folders(path)

    def _end_process(self, process: JvmProcess) -> None:
        """End the process, and leave nothing that would make Spark use it again."""
        process.end()
        if not self._is_at_exit:
            process.wait()
            forget_spark()

    def _is_unused(self) -> bool:
        """Wait until it is decided whether anyone uses Spark; nobody can join it afterwards."""
        while True:
            with self._guard:
                if self._kept:
                    return False
                if not self._waiting:
                    self._given_up = True
                    return True
                self._changed.clear()
            self._changed.wait()

    def _stop(self, context: SparkContext, path: set[str]) -> None:
        """Stop what nothing has used, unless other code has made a session of it meanwhile."""
        with SparkSession.Builder._lock:
            used = SparkSession._instantiatedSession is not None
            if used or SparkContext._active_spark_context is not context:
                return
            with suppress(Exception):  # the process is ended in any case
                context.stop()
            if self._process is not None:
                self._end_process(self._process)
            _forget_folders(path)


def active_context() -> SparkContext | None:
    """Return the context of this process, if it can be used; forget one that has ended.

    One that other code is still making is not there yet, and one that it is stopping is gone:
    Spark lets go of `_jsc` first, and forgets the context last.
    """
    context: Any = SparkContext._active_spark_context
    if context is None or not hasattr(context, "profiler_collector"):  # what is set last
        return None
    process = getattr(context._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        logger.warning("spark.gone: its Java process has ended, and another one is started")
        forget_spark()
        return None
    java_context = context._jsc
    if java_context is None or java_context.sc().isStopped():
        _forget_context()
        return None
    return cast("SparkContext", context)


def forget_spark() -> None:
    """Leave nothing in Python of a Spark whose process has gone, so that the next one can start."""
    gateway = SparkContext._gateway
    _forget_context()
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        with without_words_of_py4j():
            gateway.shutdown()


def _forget_context() -> None:
    context: Any = SparkContext._active_spark_context
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
    if context is not None:
        context._jsc = None  # there is nothing to be told to stop
        context.stop()


def make_context(
    settings: Mapping[str, str], on_process: Callable[[JvmProcess], None]
) -> SparkContext:
    """Start Spark on this machine; `on_process` is told of the Java process once it runs."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return context_in(None, settings)
    archive = Archive.find()
    command = None if archive is None else archive.command(settings)
    if archive is not None and command is not None:
        process = JvmProcess(settings, command)
        on_process(process)
        try:
            return context_in(process, settings)
        except SparkStartError as error:
            if process.was_ended:
                raise
            logger.warning("spark.archive is not usable and removed: %s", error)
            archive.forget()
    find_java()
    process = JvmProcess(settings)
    on_process(process)
    return context_in(process, settings)


def context_in(process: JvmProcess | None, settings: Mapping[str, str]) -> SparkContext:
    """Make a context in a Java process; None for the one that Spark is connected to already."""
    gateway = None if process is None else process.connect()
    return SparkContext(conf=SparkConf().setAll(list(settings.items())), gateway=gateway)


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Let Ctrl-C do nothing: the program is ending, which takes a moment. Called at its exit."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def without_words_of_py4j() -> Iterator[None]:
    """Keep away what py4j writes, as an error of the root logger, about a JVM that was ended."""

    def is_other(record: logging.LogRecord) -> bool:
        return f"{os.sep}py4j{os.sep}" not in record.pathname

    root = logging.getLogger()
    loggers = [root, logging.getLogger("py4j.java_gateway"), logging.getLogger("py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(is_other)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_other)


def _forget_folders(before: set[str]) -> None:
    """Take folders of a Spark that is gone from the path of modules, where it has put them."""
    for folder in [path for path in sys.path if path not in before and "userFiles-" in path]:
        sys.path.remove(folder)
