"""A small real HTTP server that publishes scripted `/health` bodies: the console's counterpart in tests and by hand.

By hand: `python -m tests.support.fake_health --port 8123 --scene busy`.
"""

from __future__ import annotations

import argparse
import math
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from msgspec.structs import replace

from engine.protocol import (
    CacheLevel,
    Health,
    KvPool,
    Lane,
    LaneRequest,
    LaneState,
    Loading,
    Memory,
    MemorySplit,
    Model,
    Parallel,
    Queued,
    Role,
    RoleState,
    SideDisk,
    Speculation,
    Status,
    Totals,
    WaitState,
    WeightForm,
    Weights,
    encode,
)

MIB = 1 << 20
GIB = 1 << 30
PAGE = 65536
ROW_BYTES = 23040
WINDOW = 8192

Scene = Callable[[float], Health]


def writing(slot: int, t: float, *, rate: float, client: str, start: float = 0.0, limit: int = 256) -> Lane:
    """A lane that writes at about `rate` tokens a second, its prompt two thirds cached."""
    age = max(0.0, t - start)
    done = min(limit - 1, int(age * rate) % limit)
    now = rate * (1 + 0.12 * math.sin(t * 0.9 + slot))
    rows = 301 + 90 * slot + done
    return lane(
        slot,
        LaneState.DECODING,
        f"Writing, {now:.1f} tok/s",
        rows=rows,
        request=LaneRequest(
            id=f"req-{0x7F3A + 37 * slot:04x}",
            client=client,
            prompt_tokens=301 + 90 * slot,
            cached_tokens=256 if slot != 1 else 0,
            completion_tokens=done,
            max_tokens=limit,
            ttft_s=0.21 + 0.1 * slot,
            tok_s=round(now, 1),
            prefill_done=301 + 90 * slot,
            prefill_total=301 + 90 * slot,
            accepted_per_round=1.0,
            age_s=age,
        ),
    )


def reading(
    slot: int, t: float, *, total: int, rate: float, client: str, state: LaneState = LaneState.PREFILLING
) -> Lane:
    """A lane that reads a long prompt in chunks; a yielded one stands still and says why."""
    moving = state is LaneState.PREFILLING
    done = min(total, int(t * rate)) if moving else total // 3
    return lane(
        slot,
        state,
        f"Reading {done:,} of {total:,}, {rate:.0f} tok/s" if moving else f"Gave way at {done:,} of {total:,}",
        rows=done,
        reason=None if moving else "gives way to the shorter prompt in slot 3 (212 tokens to read)",
        request=LaneRequest(
            id=f"req-{0x81BC + slot:04x}",
            client=client,
            prompt_tokens=total,
            cached_tokens=512,
            completion_tokens=0,
            max_tokens=1024,
            ttft_s=None,
            tok_s=None,
            prefill_done=done,
            prefill_total=total,
            accepted_per_round=None,
            age_s=t,
        ),
    )


def lane(
    slot: int,
    state: LaneState = LaneState.IDLE,
    text: str = "Idle",
    *,
    rows: int = 0,
    resident: int | None = None,
    reason: str | None = None,
    request: LaneRequest | None = None,
) -> Lane:
    """One slot; committed rows follow the rows held, in whole pages of 256-row margin."""
    held = max(rows, resident or 0)
    committed = min(WINDOW, (held // 256 + 2) * 256) if request else -(-held // 64) * 64
    return Lane(
        slot=slot,
        kind="main" if slot == 0 else "side",
        window=WINDOW,
        state=state,
        reason=reason,
        phase_text=text,
        rows=held,
        committed_rows=committed,
        resident_rows=held if resident is None else resident,
        committed_bytes=-(-committed * ROW_BYTES // PAGE) * PAGE,
        request=request,
    )


RoleRow = tuple[str, RoleState, int, int | None, str]
"""Name, state, claim and measured size in MiB, reason."""

PLANNED: tuple[RoleRow, ...] = (
    ("decider", RoleState.PLANNED, 3072, None, "roles do not run yet; the plan would load it"),
    ("narrator", RoleState.PLANNED, 4608, None, "roles do not run yet; the plan would load it"),
    (
        "shadow-reader",
        RoleState.PLANNED,
        6656,
        None,
        "roles do not run yet; the plan would refuse it: would leave 4.46 GiB, above the 2.4 GiB floor but under "
        "6.4 GiB, the floor plus the 4 GiB margin",
    ),
)
LOADED: tuple[RoleRow, ...] = (
    ("decider", RoleState.LOADED, 420, 388, "answers yes-or-no questions beside the engine"),
    ("narrator", RoleState.PLANNED, 300, None, "the plan would load it"),
    (
        "shadow-reader",
        RoleState.UNLOADED_FOR_MEMORY,
        6656,
        None,
        "not loaded, kept free for requests: would leave 1.22 GiB, under the 2.40 GiB floor",
    ),
)


def health(
    t: float,
    lanes: list[Lane],
    queue: list[Queued] | None = None,
    *,
    status: Status = Status.OK,
    roles: tuple[RoleRow, ...] = PLANNED,
) -> Health:
    """A body whose books add up, for the lanes given."""
    queue = queue or []
    by_slot = [entry.committed_bytes for entry in lanes]
    committed = sum(by_slot)
    split = MemorySplit(
        weights=96_468_992,
        kv_committed=committed,
        caches=0,
        state=0,
        graphs=0,
        workspace=20 * MIB,
        allocator_free=0,
        roles=sum((measured or 0) * MIB for _, _, _, measured, _ in roles),
        outside=4_212_675_008,
    )
    total = 24 * GIB
    used = split.weights + committed + split.caches + split.workspace + split.roles + split.outside
    running = sum(entry.request is not None for entry in lanes)
    decoding = sum(entry.state is LaneState.DECODING for entry in lanes)
    return Health(
        status=status,
        version="0.1.0",
        snapshot_age_s=0.01,
        uptime_s=81.2 + t,
        last_progress_age_s=0.02 if running else None,
        loading=None,
        model=Model(
            name="smollm2-135m",
            arch="llama",
            max_len=WINDOW,
            device="cpu",
            weights=Weights(bytes=98_362_432, forms=[WeightForm(file="q4_1", runs_as="int4 group 32", tensors=210)]),
        ),
        parallel=Parallel(
            requested=4,
            slots=len(lanes),
            max_running=len(lanes),
            max_running_reason=None,
            running=running,
            decoding=decoding,
            waiting=len(queue),
            peak_running=4,
            peak_decoding=3,
            rounds={"1": 411 + int(t), "2": 96, "3": 45 + int(3 * t), "4": 12},
            rounds_timed_out=0,
            spill_waits=0,
            slot0_gave_up=0,
            side_disk=SideDisk(),
            totals=Totals(served=41, abandoned=1),
        ),
        lanes=lanes,
        queue=queue,
        kv_pool=KvPool(
            enabled=True,
            backend="host-mmap",
            page_bytes=PAGE,
            reserved_bytes=len(lanes) * WINDOW * ROW_BYTES,
            committed_bytes=committed,
            committed_pages=committed // PAGE,
            peak_committed_bytes=max(committed, 96 * MIB),
            by_slot=by_slot,
            by_kind={"engine": committed, "drafter": 0},
            commits=12 + int(t),
            releases=3,
            refused=0,
        ),
        memory=Memory(
            source="host",
            total=total,
            available=total - used,
            floor=2_576_980_377,
            hard_floor=1_717_986_918,
            ceiling=None,
            peak=None,
            fixed=0,
            split=split,
            devices=[],
        ),
        cache={"resident": CacheLevel(entries=1, hits=4, restored_tokens=1024)},
        roles=[
            Role(
                name=name,
                kind=name.split("-", maxsplit=1)[0],
                state=state,
                claim_bytes=claim * MIB,
                measured_bytes=None if measured is None else measured * MIB,
                reason=reason,
                since_s=70.0 + t,
                reloads=0,
            )
            for name, state, claim, measured, reason in roles
        ],
        speculation=Speculation(drafters=[], rounds=0, drafted=0, accepted=0),
    )


def idle(t: float) -> Health:
    """Nothing runs; two slots keep a conversation."""
    return health(t, [lane(0, resident=384), lane(1, resident=2210), lane(2), lane(3)])


def busy(t: float) -> Health:
    """Three lanes write, the fourth is idle."""
    return health(
        t,
        [
            writing(0, t, rate=31.2, client="opencode"),
            writing(1, t, rate=30.4, client="open-webui", start=1.2),
            writing(2, t, rate=29.8, client="curl", start=2.5, limit=1024),
            lane(3, resident=2210),
        ],
    )


def waiting(t: float) -> Health:
    """Every slot is taken, one request waits for a slot and one for memory."""
    lanes = [*busy(t).lanes[:3], reading(3, t, total=6144, rate=410.0, client="aider")]
    body = health(
        t,
        lanes,
        [
            Queued(
                id="req-91aa",
                state=WaitState.SLOT,
                reason="all 4 slots are busy",
                since_s=1.4 + t % 60,
                prompt_tokens=900,
                max_tokens=256,
                home=None,
                client="open-webui",
            ),
            Queued(
                id="req-91ab",
                state=WaitState.MEMORY,
                reason="memory is almost full, this request may take 188 MiB and 84 MiB is free for it: 2.63 GiB "
                "available, 152 MiB promised to 4 running requests, 2.4 GiB kept as the floor",
                since_s=0.6 + t % 60,
                prompt_tokens=7410,
                max_tokens=640,
                home=None,
                client="日本語クライアント",
            ),
        ],
    )
    memory = body.memory
    taken = memory.available - 2694 * MIB
    full = replace(
        memory, available=memory.available - taken, split=replace(memory.split, outside=memory.split.outside + taken)
    )
    return replace(body, memory=full)


def long_read(t: float) -> Health:
    """One long prompt is being read while two lanes write."""
    lanes = busy(t).lanes
    return health(t, [lanes[0], lanes[1], reading(2, t, total=7680, rate=230.0, client="aider"), lanes[3]])


def yielded(t: float) -> Health:
    """The long read gives way to writing lanes."""
    lanes = busy(t).lanes
    still = reading(2, t, total=7680, rate=0.0, client="aider", state=LaneState.YIELDED)
    return health(t, [lanes[0], lanes[1], still, lanes[3]], roles=LOADED)


def loading(t: float) -> Health:
    """Weights are being read; there are no lanes yet."""
    total = 98_362_432
    done = min(total, int((0.42 + t / 60) * total))
    body = health(t, [], status=Status.LOADING)
    return replace(
        body,
        uptime_s=1.2 + t,
        model=None,
        roles=[],
        loading=Loading(stage="reading weights", done_bytes=done, total_bytes=total, eta_s=(total - done) / total * 3),
    )


def draining(t: float) -> Health:
    """Told to stop: what runs may finish."""
    return replace(busy(t), status=Status.DRAINING)


SCENES: dict[str, Scene] = {
    "idle": idle,
    "busy": busy,
    "waiting": waiting,
    "long_read": long_read,
    "yielded": yielded,
    "loading": loading,
    "draining": draining,
}


class FakeHealth:
    """Serves one scene at `url` from a thread. `stop` closes the port, which is the scene called lost."""

    def __init__(self, scene: Scene, port: int = 0) -> None:
        self.scene = scene
        self.stopped = False
        self.asked_with: list[str | None] = []
        self._started = time.monotonic()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if outer.stopped:
                    # A kept-alive connection outlives the listening port; a real engine's would not.
                    self.close_connection = True
                    return
                outer.asked_with.append(self.headers["Authorization"])
                body_of = outer.scene(time.monotonic() - outer._started)
                body = encode(body_of)
                self.send_response(200 if body_of.status is Status.OK else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: the terminal belongs to the test."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> FakeHealth:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.stopped = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> FakeHealth:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


def main() -> None:
    """Serve a scene until interrupted; `tour` shows each for ten seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--scene", choices=[*SCENES, "tour"], default="busy")
    options = parser.parse_args()
    names = list(SCENES)

    def tour(t: float) -> Health:
        return SCENES[names[int(t / 10) % len(names)]](t % 10)

    with FakeHealth(tour if options.scene == "tour" else SCENES[options.scene], options.port) as server:
        print(f"serving {options.scene} at {server.url}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
