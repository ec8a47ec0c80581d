"""A small real HTTP server that publishes scripted `/health` bodies and answers `/admin/*`: the console's counterpart.

By hand: `python -m tests.support.fake_health --port 8123 --scene busy`.
"""

from __future__ import annotations

import argparse
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engine.protocol import Health, Status, encode
from tests.support.fake_admin import FakeAdmin
from tests.support.fake_lanes import PAGE, ROW_BYTES, WINDOW, lane, reading, writing
from tests.support.fake_scenes import (
    GIB,
    MIB,
    Scene,
    busy,
    crowd,
    draining,
    health,
    idle,
    loading,
    long_read,
    pressure,
    refused,
    waiting,
    yielded,
)
from tests.support.fake_scenes import SCENES as PLAIN_SCENES
from tests.support.fake_stories import STORIES

__all__ = [
    "GIB",
    "MIB",
    "PAGE",
    "ROW_BYTES",
    "SCENES",
    "WINDOW",
    "FakeHealth",
    "Scene",
    "busy",
    "crowd",
    "draining",
    "health",
    "idle",
    "lane",
    "loading",
    "long_read",
    "pressure",
    "reading",
    "refused",
    "waiting",
    "writing",
    "yielded",
]


SCENES: dict[str, Scene] = {**PLAIN_SCENES, **STORIES}


class FakeHealth:
    """Serves one scene at `url` from a thread. `stop` closes the port, which is the scene called lost; `admin` answers
    what is asked under `/admin/`."""

    def __init__(self, scene: Scene, port: int = 0) -> None:
        self.scene = scene
        self.stopped = False
        self.admin = FakeAdmin()
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
                if self.path.startswith("/admin/"):
                    self.answer(*outer.admin.get(self.path))
                    return
                shown = outer.now()
                self.answer(200 if shown.status is Status.OK else 503, encode(shown))

            def do_POST(self) -> None:
                if outer.stopped:
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                self.answer(*outer.admin.post(self.path, self.headers["Authorization"], outer.now()))

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
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

    def now(self) -> Health:
        """What the scene shows now."""
        return self.scene(time.monotonic() - self._started)

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
