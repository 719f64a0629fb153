"""A browser session without a browser: it speaks Streamlit's protocol over a websocket.

It does what the frontend does with what it is told: opens a page by its address, runs fragments
again at the intervals that the server asks for, and presses buttons. It draws nothing, so what is
timed is the server. An exception that a page shows is raised here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from urllib.parse import urlencode

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

_OVER = (ForwardMsg.FINISHED_SUCCESSFULLY, ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY)


@dataclass
class Visitor:
    """One session on the server at `port` of this machine."""

    port: int
    patience: float = 60.0  # seconds that one answer may take
    buttons: dict[str, str] = field(default_factory=dict)  # the ids of enabled ones, by label
    bytes_received: int = 0
    _socket: ClientConnection | None = None
    _whole: bool = True  # whether the page runs as a whole, or a fragment of it
    _page: str = ""
    _page_hash: str = ""
    _query: str = ""
    _due: dict[str, tuple[float, float]] = field(default_factory=dict)  # by fragment: when, every

    def open(self, page: str = "", **query: str) -> float:
        """Go to a page by its address; the seconds until all of it was sent."""
        if self._socket is None:
            origin = f"http://127.0.0.1:{self.port}"
            self._socket = connect(
                f"ws://127.0.0.1:{self.port}/_stcore/stream",
                subprotocols=["streamlit"],  # type: ignore[list-item]
                origin=origin,  # type: ignore[arg-type]
                max_size=None,
                proxy=None,
            )
        self._page, self._page_hash, self._query = page, "", urlencode(query)
        return self._run(self._message())

    def press(self, label: str) -> float:
        """Press a button of the page; the seconds until the page was drawn anew."""
        message = self._message()
        state = message.rerun_script.widget_states.widgets.add()
        state.id, state.trigger_value = self.buttons[label], True
        return self._run(message)

    def polls(self, until: float) -> list[float]:
        """Do what fragments ask for up to a time; each answer's seconds from when it was due.

        One is asked at a time. An answer that comes late makes the next one late, which counts.
        """
        seconds = []
        while self._due:
            fragment = min(self._due, key=lambda name: self._due[name][0])
            due, every = self._due[fragment]
            if due >= until:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            message = self._message()
            message.rerun_script.fragment_id = fragment
            message.rerun_script.is_auto_rerun = True
            self._run(message)
            seconds.append(time.monotonic() - due)
            if fragment in self._due and self._due[fragment] == (due, every):
                self._due[fragment] = (max(due + every, time.monotonic()), every)
        time.sleep(max(0.0, until - time.monotonic()))
        return seconds

    def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _message(self) -> BackMsg:
        message = BackMsg()
        message.rerun_script.query_string = self._query
        message.rerun_script.page_name = self._page
        message.rerun_script.page_script_hash = self._page_hash
        return message

    def _run(self, message: BackMsg) -> float:
        assert self._socket is not None
        self._whole = not message.rerun_script.fragment_id
        began = time.monotonic()
        self._socket.send(message.SerializeToString())
        while True:
            data = self._socket.recv(timeout=self.patience)
            assert isinstance(data, bytes)
            self.bytes_received += len(data)
            told = ForwardMsg()
            told.ParseFromString(data)
            kind = told.WhichOneof("type")
            if kind == "script_finished" and told.script_finished in _OVER:
                return time.monotonic() - began
            if kind == "script_finished":
                self._whole = True  # it begins once more
            self._note(told, kind)

    def _note(self, told: ForwardMsg, kind: str | None) -> None:
        if kind == "new_session":
            if self._whole:
                self.buttons.clear()
                self._due.clear()
            self._page_hash = told.new_session.page_script_hash
        elif kind == "auto_rerun":
            every = told.auto_rerun.interval
            self._due[told.auto_rerun.fragment_id] = (time.monotonic() + every, every)
        elif kind == "stop_auto_rerun":
            for fragment in told.stop_auto_rerun.fragment_ids:
                self._due.pop(fragment, None)
        elif kind == "page_not_found":
            raise AssertionError(f"there is no page {self._page}")
        elif kind == "delta" and told.delta.WhichOneof("type") == "new_element":
            element = told.delta.new_element
            shown = element.WhichOneof("type")
            if shown == "exception":
                raise AssertionError(f"{self._page}: {element.exception.message}")
            if shown == "button":
                self.buttons.pop(element.button.label, None)
                if not element.button.disabled:
                    self.buttons[element.button.label] = element.button.id
