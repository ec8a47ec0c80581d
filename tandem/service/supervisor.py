"""Runs an engine as a child process: watches it, restarts it, ends it, and keeps its log."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from engine.config import CLOSING_S
from engine.process.standstill import standstill
from engine.process.state_dir import ServiceRecord, read_record
from engine.protocol import Status, decode_health
from tandem.client.unrecorded import answers_unrecorded
from tandem.client.wire import Address, NoAnswer, get
from tandem.exits import Exit
from tandem.service import watchdog
from tandem.service.rotation import RotatingLog, pump
from tandem.service.supervisor_report import Report, State, write_report
from tandem.service.watchdog import Decision, Done, GiveUp, Nothing, Policy, ProbeResult, Restart

LAST_WORDS_S = 5.0
"""How long a hung engine may take to write its threads' stacks before it is killed."""

STARTING_PROBE_S = 0.25
"""Between two probes of an engine that was not ready yet, so that a waiting `tandem start` returns soon."""


@dataclass(frozen=True, slots=True)
class Signalled:
    number: int


@dataclass(frozen=True, slots=True)
class Probed:
    pid: int
    result: ProbeResult
    detail: str


@dataclass(frozen=True, slots=True)
class Exited:
    pid: int
    code: int


Event = Signalled | Probed | Exited
Probe = Callable[[Path, int, float], tuple[ProbeResult, str]]
"""Asks the engine of a state directory and process id for its state, within a number of seconds."""


class HealthProbe:
    """Probes an engine through its `/health`, by the owner's socket, which clients cannot fill, and at the address that
    its record said first: a state directory that was removed beneath an engine is no reason to end it."""

    def __init__(self, unrecorded: Address | None = None) -> None:
        """`unrecorded` is where an engine answers that could not write its record."""
        self._known: ServiceRecord | None = None
        self._unrecorded = unrecorded

    def __call__(self, state_dir: Path, pid: int, within_s: float) -> tuple[ProbeResult, str]:
        if self._known is None or self._known.pid != pid:
            self._known = read_record(state_dir)
        if self._known is None or self._known.pid != pid:
            if self._unrecorded is None or not answers_unrecorded(self._unrecorded, state_dir, within_s):
                return ProbeResult.SILENT, "it has not opened its port"
            return ask_health(self._unrecorded, within_s)
        return ask_health(Address.of_engine(self._known), within_s)


def ask_health(address: Address, within_s: float) -> tuple[ProbeResult, str]:
    """The result of a probe of the engine at an address."""
    try:
        code, body = get(address, "/health", timeout_s=within_s)
        found = decode_health(body) if body else None
    except NoAnswer as why:
        return ProbeResult.SILENT, f"no answer from {address.url} ({why.__cause__ or why.message})"
    except msgspec.MsgspecError as why:
        return ProbeResult.SILENT, f"what answers on its port is not it: {why}"
    if found is None:
        # Over the network the body needs a token. The status alone shows that the engine answers.
        return (ProbeResult.OK if code == 200 else ProbeResult.LOADING), ""
    if found.status is Status.LOADING:
        return ProbeResult.LOADING, ""
    if found.status is Status.DRAINING:
        return ProbeResult.DRAINING, ""
    stuck = standstill(found)
    return (ProbeResult.OK, "") if stuck is None else (ProbeResult.STUCK, stuck)


class Supervisor:
    """Runs one engine and its restarts. Call `run` on the main thread: it handles the signals."""

    def __init__(
        self,
        command: list[str],
        state_dir: Path,
        log: RotatingLog,
        *,
        policy: Policy,
        drain_s: float,
        pid: int,
        as_json: bool = True,
        probe: Probe | None = None,
    ) -> None:
        self._command = command
        self._state_dir = state_dir
        self._log = log
        self._policy = policy
        self._end_s = drain_s + CLOSING_S
        self._as_json = as_json
        self._probe = probe or HealthProbe()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._stopping = False
        self._killed = False
        self._report = Report(pid=pid, engine_pid=None, state=State.STARTING, started=time.time(), since=time.time())

    def run(self) -> int:
        """Keep an engine running until a signal, its own good end, or it is given up. Returns the exit code: 0 where it
        ended as told, else the engine's."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._events.put(Signalled(number)))
        watch: watchdog.WatchState | None = None
        while True:
            watch = watchdog.started(watch, time.monotonic())
            life = self._start()
            decision, watch = self._watch(life, watch)
            code = life.end(lambda text: self.say("warning", text))
            if isinstance(decision, Restart):
                self.say("warning", f"the engine is restarted in {decision.pause_s:g} s: {decision.cause}")
                self._restarting(decision.cause)
                if self._pause(decision.pause_s):
                    continue
                decision, code = Done(), 0
            if isinstance(decision, GiveUp):
                self.say("error", f"given up: {decision.reason}")
                self._report_state(State.GAVE_UP, reason=decision.reason)
                return code if code > 0 else Exit.FAILURE
            self._report_state(State.ENDED, reason="it had to be killed" if self._killed else None)
            return max(code, 0)

    def _start(self) -> _Life:
        life = _Life(
            self._command,
            log=self._log,
            events=self._events,
            state_dir=self._state_dir,
            policy=self._policy,
            probe=self._probe,
        )
        self._report_state(State.STARTING, engine_pid=life.pid)
        return life

    def _watch(self, life: _Life, watch: watchdog.WatchState) -> tuple[Decision, watchdog.WatchState]:
        """Until the engine has ended or must be ended."""
        kill_at: float | None = None
        while True:
            event = self._next(kill_at)
            if event is None:
                self.say("warning", f"process {life.pid} did not end within {self._end_s:g} s; killing it")
                self._killed, kill_at = True, None
                life.signal(signal.SIGKILL)
                continue
            decision: Decision = Nothing()
            match event:
                case Signalled():
                    life.signal(signal.SIGTERM)
                    if not self._stopping:
                        self._stopping = True
                        kill_at = time.monotonic() + self._end_s
                        self._report_state(State.ENDING, engine_pid=life.pid)
                case Exited(pid=life.pid, code=code):
                    words = describe_end(code, self._log.last_line)
                    watch, decision = watchdog.exited(self._policy, watch, code, words)
                    if self._stopping:
                        decision = Done()
                case Probed(pid=life.pid, result=result, detail=detail) if not self._stopping:
                    watch, decision = watchdog.probed(self._policy, watch, time.monotonic(), result, detail)
                    if result is ProbeResult.OK and self._report.state is State.STARTING:
                        self._report_state(State.WATCHING, engine_pid=life.pid)
                case _:
                    pass
            if not isinstance(decision, Nothing):
                return decision, watch

    def _next(self, until: float | None) -> Event | None:
        """The next event; None where `until` comes first."""
        try:
            return self._events.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except Empty:
            return None

    def _pause(self, seconds: float) -> bool:
        """Wait; False where a signal came."""
        until = time.monotonic() + seconds
        while (event := self._next(until)) is not None:
            if isinstance(event, Signalled):
                return False
        return True

    def _restarting(self, cause: str) -> None:
        self._report = msgspec.structs.replace(
            self._report, restarts=self._report.restarts + 1, last_restart=time.time(), last_cause=cause
        )
        self._report_state(State.PAUSING)

    def _report_state(self, state: State, *, engine_pid: int | None = None, reason: str | None = None) -> None:
        """Report a new state."""
        self._report = msgspec.structs.replace(
            self._report, state=state, since=time.time(), engine_pid=engine_pid, reason=reason
        )
        write_report(self._state_dir, self._report)

    def say(self, level: str, text: str) -> None:
        """Write a line of the supervisor into the log, in the engine's format."""
        now = datetime.now(UTC)
        if self._as_json:
            line = {"event": text, "level": level, "logger": "tandem.supervisor", "timestamp": now.isoformat()}
            self._log.write(msgspec.json.encode(line) + b"\n")
        else:
            self._log.write(f"{now.astimezone():%H:%M:%S} [{level}] {text} [tandem.supervisor]\n".encode())


class _Life:
    """One process of the engine with the threads that wait for it, ask it and read its log."""

    def __init__(
        self,
        command: list[str],
        *,
        log: RotatingLog,
        events: SimpleQueue[Event],
        state_dir: Path,
        policy: Policy,
        probe: Probe,
    ) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        )
        self.pid = self._process.pid
        self._over = threading.Event()
        assert self._process.stdout is not None
        self._pump = threading.Thread(target=pump, args=(self._process.stdout, log), daemon=True)
        self._pump.start()

        def wait() -> None:
            code = self._process.wait()
            # The last log line belongs to the reason that is reported for the end.
            self._pump.join(1.0)
            events.put(Exited(self.pid, code))

        def ask() -> None:
            pause_s = min(policy.probe_s, STARTING_PROBE_S)
            while not self._over.wait(pause_s):
                result, detail = probe(state_dir, self.pid, policy.answer_s)
                events.put(Probed(self.pid, result, detail))
                if result is ProbeResult.OK:
                    # Once the engine was ready, failures are counted at the usual pace.
                    pause_s = policy.probe_s

        threading.Thread(target=wait, daemon=True).start()
        threading.Thread(target=ask, daemon=True).start()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self, say: Callable[[str], None]) -> int:
        """End a process that does not answer any more. Returns its exit code."""
        self._over.set()
        if self._process.poll() is None:
            say(f"process {self.pid} is asked where its threads stand, then killed")
            self.signal(signal.SIGABRT)
            try:
                self._process.wait(LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self._process.wait()
        self._pump.join(1.0)
        return self._process.returncode


def describe_end(code: int, last_line: str) -> str:
    """The end of a process in words, with the last line of its log where it ended by itself."""
    if code >= 0:
        words = _event_of(last_line)
        return f"the engine ended with exit code {code}" + (f" ({words})" if words else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    by_kernel = "; the kernel does that when memory runs out" if -code == signal.SIGKILL else ""
    return f"the engine was ended by {name}{by_kernel}"


def _event_of(line: str) -> str:
    """The event of a log line, without its time, level and logger."""
    try:
        event = msgspec.json.decode(line.encode(), type=dict[str, object]).get("event", line)
    except msgspec.MsgspecError:
        event = line
    text = " ".join(str(event).split())
    return text if len(text) <= 200 else text[:199] + "…"
