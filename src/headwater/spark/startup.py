"""The Spark of one run, which starts in the background while the driver reads by itself.

Spark takes seconds to start, and the first blocks of a backfill need it no more than those at the
head. So a run asks whether executors are ready before it leaves a span to them, and reads near the
cursor itself until they are. A session that the user gave, or that is active, is ready at once. A
Spark that was started here and never used ends with the run, whether it had come up or not.

Runs on the driver: `SparkOfRun` in the run's thread, the start in a thread of its own.
"""

from __future__ import annotations

import atexit
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread, get_ident
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headwater.portal import PortalBudget
from headwater.spark.archive import make_later
from headwater.spark.entrance import driver_address
from headwater.spark.jvm import JvmProcess
from headwater.spark.permits import PORT as PERMITS_PORT
from headwater.spark.permits import Office, PermitOffice
from headwater.spark.session import (
    NARROW,
    active_session,
    local_session,
    make_context,
    making,
)
from headwater.spark.versions import check_session

logger = logging.getLogger("headwater.spark")

APP = "headwater"
EXIT_S = 2.0  # what the end of the program waits for a Spark that it has not used


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Let Ctrl-C do nothing: the program is ending, which takes a moment. Called at its exit."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class SparkOfRun:
    """Where a run gets its session and its context from. `given` is the user's session.

    `narrow` says that no row of the run is expected to enter the JVM. `on_wait` is told when the
    run begins to wait for Spark, and when it goes on.
    """

    def __init__(
        self,
        given: SparkSession | None,
        *,
        narrow: bool = False,
        on_wait: Callable[[bool], None] = lambda waits: None,
    ) -> None:
        if given is not None:
            check_session(given)
        self._given = given
        self._narrow = narrow
        self._on_wait = on_wait
        self._start: _Start | None = None
        self._budget: PortalBudget | None = None
        self._office: PermitOffice | None = None
        self._tag = f"headwater-{uuid4().hex}"
        self._tagged: set[int] = set()  # threads whose jobs carry the tag

    def limit(self, budget: PortalBudget) -> None:
        """Have executors keep within a budget. Called once, before the first span."""
        self._budget = budget

    @property
    def office(self) -> Office | None:
        """Where tasks ask how much they may request; it is opened when it is first asked for."""
        if self._budget is None:
            return None
        if self._office is None:
            conf = dict(self.context.getConf().getAll())
            port = int(conf.get(PERMITS_PORT) or 0)
            self._office = PermitOffice(self._budget, *driver_address(conf), port)
            self._office.__enter__()
        return self._office.office

    def is_ready(self) -> bool:
        """Tell whether executors could begin now; if there is no Spark, have one start.

        Raises:
            HeadwaterError: Spark does not start.
        """
        if self._given is not None:
            return True
        if self._start is not None:
            if self._start.ended.is_set():
                self._start.check()
            return self._start.ended.is_set()
        if not making.acquire(blocking=False):
            return False  # another thread makes one, which will be active
        try:
            if SparkContext._active_spark_context is not None:
                return True
            self._start = _Start(NARROW if self._narrow else {})
        finally:
            making.release()
        return False

    @property
    def context(self) -> SparkContext:
        """The context, waited for if it starts; this does not make a session of it.

        Raises:
            HeadwaterError: Spark does not start.
        """
        if self._given is not None:
            return self._marked(self._given.sparkContext)
        with self._waiting():
            self._wait()
            active = SparkContext._active_spark_context
            return self._marked(local_session(APP).sparkContext if active is None else active)

    @property
    def session(self) -> SparkSession:
        """The session, made when it is first asked for.

        Raises:
            HeadwaterError: Spark does not start.
        """
        if self._given is not None:
            self._marked(self._given.sparkContext)
            return self._given
        with self._waiting():
            self._wait()
            session = active_session() or local_session(APP)
            self._marked(session.sparkContext)
            return session

    def cancel(self) -> bool:
        """End the jobs of this run that are under way; tell whether there are any.

        What waits for them fails. Called from another thread.
        """
        context = SparkContext._active_spark_context
        if not self._tagged or context is None:
            return False
        tracker = context._jsc.sc().statusTracker()  # Python's own does not know tags
        if set(tracker.getActiveJobIds()).isdisjoint(tracker.getJobIdsForTag(self._tag)):
            return False
        context.cancelJobsWithTag(self._tag)
        return True

    def close(self) -> None:
        """End a Spark that was started here and never used. Does not wait for it.

        Where it was slow to start, an archive of its classes is made for the next time.
        """
        context = SparkContext._active_spark_context
        if get_ident() in self._tagged and context is not None:
            with suppress(Exception):  # Spark may be gone, and its tags with it
                context.removeJobTag(self._tag)
        if self._office is not None:
            self._office.__exit__()
            self._office = None
        if self._start is not None:
            self._start.give_up()
            if self._start.came_up:
                make_later()
            self._start = None

    def _marked(self, context: SparkContext) -> SparkContext:
        """Tag the jobs of this thread from now on, so that `cancel` finds them."""
        if get_ident() not in self._tagged:
            context.addJobTag(self._tag)
            self._tagged.add(get_ident())
        return context

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Tell that the run waits, if Spark is not there yet."""
        if self._tagged:
            yield
            return
        self._on_wait(True)
        try:
            yield
        finally:
            self._on_wait(False)

    def _wait(self) -> None:
        """Wait for the start that was begun here, or by another run of this process."""
        if self._start is not None:
            self._start.take()
        elif _Start.newest is not None:
            _Start.newest.share()


class _Start:
    """One start of a local Spark, in a thread of its own, and its end if no run has used it."""

    newest: _Start | None = None

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = dict(conf)
        self.ended = Event()
        self._lock = Lock()
        self._decided = Event()
        self._wanted = True
        self._process: JvmProcess | None = None
        self._error: BaseException | None = None
        _Start.newest = self
        self._thread = Thread(target=self._run, name="headwater-spark", daemon=True)
        self._thread.start()
        atexit.register(self._leave)

    def take(self) -> None:
        """Wait until Spark is there, to use it; raise what went wrong."""
        self.share()
        self.check()

    def check(self) -> None:
        """Raise what went wrong, if Spark could not start."""
        if self._error is not None:
            raise self._error

    def share(self) -> None:
        """Wait until Spark is there, to use it; or until it is gone, if its run has given it up."""
        with self._lock:
            self._decided.set()
        self.ended.wait()
        if not self._wanted:
            self._thread.join()

    @property
    def came_up(self) -> bool:
        """Whether Spark has started."""
        return self.ended.is_set() and self._error is None

    def give_up(self) -> None:
        """Have Spark end, unless it was used. Called when the run that began it ends."""
        with self._lock:
            if self._decided.is_set():
                return
            self._wanted = False
            self._decided.set()
        if self._process is not None and not self.ended.is_set():
            self._process.end()

    def _leave(self) -> None:
        """End a Spark that nothing uses before the interpreter ends, and its thread with it.

        A thread that still runs then is frozen where it is, and extensions report leaks.
        """
        self.give_up()
        if not self._wanted:
            with ignoring_interrupts():
                self._thread.join(EXIT_S)

    def _run(self) -> None:
        with making:
            try:
                context = make_context(APP, self._conf, self._note)
                context.parallelize([0], 1).map(int).collect()  # Python workers are there too
            except BaseException as error:  # noqa: BLE001 - raised where Spark is asked for
                self._error = error
                self._forget()
        self.ended.set()
        self._decided.wait()
        if not self._wanted and self._error is None:
            with making:
                self._stop(context)
        atexit.unregister(self._leave)
        if not self._wanted:
            logger.info("spark.unused: it ends with the stream")

    def _note(self, process: JvmProcess) -> None:
        self._process = process
        if not self._wanted:
            process.end()

    def _stop(self, context: SparkContext) -> None:
        """Stop what no run has used, unless other code has made a session of it meanwhile."""
        used = SparkSession._instantiatedSession is not None
        if used or SparkContext._active_spark_context is not context:
            return
        with suppress(Exception):  # the process is ended in any case
            context.stop()
        self._forget()

    def _forget(self) -> None:
        """End the process, and leave nothing that would make Spark use it again."""
        if self._process is None or SparkContext._active_spark_context is not None:
            return
        self._process.end()
        self._process.wait()
        SparkContext._gateway = None
        SparkContext._jvm = None
