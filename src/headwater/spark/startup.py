"""The Spark of one run, which starts in the background while the driver reads by itself.

Spark takes seconds to start, and the first blocks of a backfill need it no more than those at the
head. So a run asks whether executors are ready before it leaves a span to them, and reads near the
cursor itself until they are. A session that the user gave, or that is active, is ready at once. A
Spark that was started here and never used ends with the run, whether it had come up or not.

Runs on the driver: `SparkOfRun` in the run's thread, the start in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, get_ident
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headwater.errors import ConnectSessionError, StoppedSparkError
from headwater.portal import PortalBudget
from headwater.spark.entrance import driver_address
from headwater.spark.jvm import cut_wait, make_later
from headwater.spark.local_start import LocalStart, active_context, without_words_of_py4j
from headwater.spark.relay import PERMITS_PORT, Office, PermitOffice
from headwater.spark.session import NARROW, active_session, settings_of
from headwater.spark.versions import check_session, is_connect, parallelism

APP = "headwater"


class SparkOfRun:
    """Where a run gets its session and its context from. `given` is the user's session.

    `is_remote`: it is one of Spark Connect. Its driver is another process, so there is no context,
    executors cannot reach this process, and jobs are tagged and ended by the session.

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
        self.is_remote = given is not None and is_connect(given)
        self._narrow = narrow
        self._on_wait = on_wait
        self._start: LocalStart | None = None
        self._start_ended = Event()  # or nothing is to wait for it any more
        self._waits = self._cancelled = False
        self._budget: PortalBudget | None = None
        self._office: PermitOffice | None = None
        self._tag = f"headwater-{uuid4().hex}"
        self._tagged: set[int] = set()  # threads whose jobs carry the tag
        self._quiet = ExitStack()
        self._tasks = 0

    def limit(self, budget: PortalBudget) -> None:
        """Have executors keep within a budget. Called once, before the first span.

        Raises:
            ConnectSessionError: it has limits, and executors could not ask for a share of them.
        """
        if self.is_remote and budget.is_to_be_asked:
            raise ConnectSessionError(
                "limits= counts what executors request, and those of Spark Connect cannot ask"
            )
        self._budget = budget

    @property
    def office(self) -> Office | None:
        """Where tasks ask how much they may request; None while they need not ask.

        It is opened when it is first asked for, and stays open.
        """
        if self._budget is None or self.is_remote or not self._budget.is_to_be_asked:
            return None
        if self._office is None:
            conf = dict(self.context.getConf().getAll())
            port = int(conf.get(PERMITS_PORT) or 0)
            self._office = PermitOffice(self._budget, *driver_address(conf), port)
            self._office.__enter__()
        return self._office.office

    def refused(self) -> None:
        """Have tasks ask from now on: the portal has told one that it is asked too much."""
        if self._budget is not None:
            self._budget.note_refusal()

    def is_ready(self) -> bool:
        """Tell whether executors could begin now; if there is no Spark, have one start.

        Raises:
            HeadwaterError: Spark does not start.
        """
        if self._given is not None:
            return True
        if not self._join():
            return True
        assert self._start is not None, "it was joined"
        if self._start.ended.is_set():
            self._start.check()
            return True
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
            return self._marked(self._wait())

    @property
    def session(self) -> SparkSession:
        """The session, made when it is first asked for.

        Raises:
            HeadwaterError: Spark does not start.
        """
        if self._given is not None:
            self._marked(self._given if self.is_remote else self._given.sparkContext)
            return self._given
        with self._waiting():
            self._marked(self._wait())
            return active_session() or self.session  # other code may stop it this moment

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""
        if not self.is_remote:
            return int(self.context.defaultParallelism)
        self._tasks = self._tasks or parallelism(self.session)
        return self._tasks

    def cancel(self) -> bool:
        """End what this run waits for of Spark; tell whether it waited.

        That is the start of Spark, a job, or an answer of the driver's JVM, which plans for long
        while it is cold. What waits fails, and so does what asks for Spark later. Called from
        another thread, again and again until the run has ended: a job may be on its way to Spark.
        """
        if not self._cancelled:
            self._quiet.enter_context(without_words_of_py4j())
        waited, self._cancelled = self._waits, True
        self._start_ended.set()
        cancelled = self._cancel_jobs()
        if not cancelled:  # the end of a job is an answer, too, and says more
            cancelled = sum(map(cut_wait, tuple(self._tagged))) > 0
        return cancelled or waited

    def _cancel_jobs(self) -> bool:
        if self.is_remote and self._given is not None:
            return bool(self._tagged and self._given.interruptTag(self._tag))
        context: Any = SparkContext._active_spark_context
        if not self._tagged or context is None:
            return False
        try:
            tracker = context._jsc.sc().statusTracker()  # Python's own does not know tags
            if set(tracker.getActiveJobIds()).isdisjoint(tracker.getJobIdsForTag(self._tag)):
                return False
            context.cancelJobsWithTag(self._tag)
        except (Py4JError, OSError, AttributeError):  # Spark has ended, and its jobs with it
            return False
        return True

    def close(self) -> None:
        """End a Spark that was started here and never used. Does not wait for it.

        Where it was slow to start, an archive of its classes is made for the next time.
        """
        context: Any = self._given if self.is_remote else SparkContext._active_spark_context
        if get_ident() in self._tagged and context is not None:
            with suppress(Exception):  # Spark may be gone, and its tags with it
                if self.is_remote:
                    context.removeTag(self._tag)
                else:
                    context.removeJobTag(self._tag)
        if self._office is not None:
            self._office.__exit__()
            self._office = None
        start, self._start = self._start or LocalStart.newest, None
        if start is not None:
            start.leave(self._start_ended)
            if start.came_up:
                make_later()
        self._quiet.close()

    def _marked(self, context: Any) -> SparkContext:
        """Tag the jobs of this thread from now on, so that `cancel` finds them."""
        if self._cancelled:
            raise StoppedSparkError("the run was stopped before it used Spark")
        if get_ident() not in self._tagged:
            if self.is_remote:
                context.addTag(self._tag)
            else:
                context.addJobTag(self._tag)
            self._tagged.add(get_ident())
        marked: SparkContext = context
        return marked

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Tell that the run waits, if Spark is not there yet."""
        if self._tagged:
            yield
            return
        self._on_wait(True)
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
            self._on_wait(False)

    def _join(self) -> bool:
        """Join the start of a local Spark, which may begin here; False if a Spark is there."""
        if self._start is None:
            settings = settings_of(APP, NARROW if self._narrow else {})
            self._start = LocalStart.join(self._start_ended, settings)
        return self._start is not None

    def _wait(self) -> SparkContext:
        """Wait until there is a Spark to stay."""
        while True:
            joined = self._join()
            if joined and not self._cancelled:
                self._start_ended.wait()
            if self._cancelled:
                raise StoppedSparkError("the run was stopped while it waited for Spark")
            if joined and self._start is not None:
                self._start.take()
            active = active_context()
            if active is not None:
                return active
            self._start = None  # other code has stopped it since
