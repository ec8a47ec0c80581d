"""The Textual driver of a console process whose screen is a browser tab."""

from __future__ import annotations

from textual import messages
from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """Ends the app when its input ends, which happens when the server is gone."""

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._app.post_message(messages.ExitApp())
