"""Headless Chromium over the DevTools protocol, on a pair of pipes: one browser, and a new page for each test."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root, and the pages are trusted
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
TIMEOUT_S = 100.0
KEYS = {"Enter": 13, "Escape": 27, "End": 35}
SHIFT = 8


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    def __init__(self, path: str):
        self._folder = tempfile.TemporaryDirectory(prefix="ps-chromium-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser's pipes must be 3 and 4; moving them up first keeps either from being overwritten.
        high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (to_read, to_write)]
        null = os.open(os.devnull, os.O_RDWR)
        ends = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
        ends += [(os.POSIX_SPAWN_DUP2, null, stream) for stream in (0, 1, 2)]
        command = [path, *OPTIONS, f"--user-data-dir={self._folder.name}", "about:blank"]
        environment = os.environ | {"HOME": self._folder.name}
        self._pid = os.posix_spawn(path, command, environment, file_actions=ends, setsid=True)
        for each in (to_read, to_write, null, *high):
            os.close(each)
        self._held, self._last_id = b"", 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of the command. Raises AssertionError for an error or a timeout."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + TIMEOUT_S
        while (answer := self._next(deadline, method)).get("id") != self._last_id:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _next(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{method}: no answer from Chromium in {TIMEOUT_S:g} s"
            data = os.read(self._read, 1 << 20)
            assert data, f"{method}: Chromium has ended"
            self._held += data
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def page(self, **size: Any) -> "Page":
        return Page(self, **size)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._folder.cleanup()


class Page:
    """A page with separate cookies and storage."""

    def __init__(self, browser: Chromium, width: int = 1200, height: int = 800, mobile: bool = False):
        self._browser = browser
        self._context = browser.send("Target.createBrowserContext")["browserContextId"]
        target = browser.send("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        attached = browser.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height, mobile)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **parameters)

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def evaluate(self, expression: str) -> Any:
        """The value of the expression, or of its promise, as JSON."""
        sent = {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        answer = self.send("Runtime.evaluate", **sent)
        if failed := answer.get("exceptionDetails"):
            raise AssertionError(f"{expression}: {failed.get('exception', failed).get('description', failed)}")
        return answer["result"].get("value")

    def until(self, condition: str, within_s: float = 60.0) -> None:
        """Wait until an expression is true in the page, which may be replaced by another page meanwhile."""
        deadline = time.monotonic() + within_s
        look = f"new Promise(done => {{ const until = performance.now() + 250; const look = () => ({condition}) ? \
done(true) : performance.now() > until ? done(false) : setTimeout(look, 5); look(); }})"
        while True:
            try:
                if self.evaluate(look):
                    return
            except AssertionError as error:
                if "context" not in str(error).lower() and "navigated" not in str(error):
                    raise
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {condition}\n{self.text()[-1500:]}"

    def text(self) -> str:
        return self.evaluate("document.body.innerText")

    def click(self, text: str, within: str = "body") -> None:
        """Click the last visible button with this text."""
        buttons = f"[...document.querySelectorAll({json.dumps(within + ' button')})]"
        found = f"{buttons}.filter(b => b.textContent === {json.dumps(text)} && b.checkVisibility()).at(-1)"
        self.until(f"Boolean({found})")
        self.evaluate(f"{found}.click()")

    def fill(self, selector: str, text: str) -> None:
        self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select?.(); }})()"
        )
        self.send("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def errors(self) -> list[str]:
        """The errors that the page threw, and the browser's refusals (such as of the content policy)."""
        self.evaluate("1")  # earlier events have arrived by then
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            entry = event["params"].get("entry", {})
            if event["method"] == "Log.entryAdded" and entry["level"] == "error" and entry["source"] != "network":
                found.append(entry["text"])
        return found

    def screenshot(self, path: str | Path) -> None:
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._browser.send("Target.disposeBrowserContext", browserContextId=self._context)
