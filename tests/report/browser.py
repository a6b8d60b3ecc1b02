"""A headless Chromium for tests, driven over the pipe of its DevTools protocol: no port, no further package."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]
_READ_END, _WRITE_END = 3, 4  # where Chromium looks for the pipe
LIMIT_S = 600


def find_chromium():
    """The browser's path, or None. VERBENA_CHROMIUM names another one."""
    names = [os.environ.get("VERBENA_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next((found for found in map(shutil.which, filter(None, names)) if found), None)


class Browser:
    """with Browser() as browser: page = browser.open(url, 390, 844)"""

    def __enter__(self):
        program = find_chromium()
        if not program:
            raise RuntimeError("no Chromium: install the package chromium, or name one in VERBENA_CHROMIUM")
        self._profile = tempfile.TemporaryDirectory(prefix="verbena-chromium-", ignore_cleanup_errors=True)
        self._log = open(os.path.join(self._profile.name, "stderr"), "w+", encoding="utf-8", errors="replace")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Free 3 and 4 of our own ends first, so that the shell below can put the browser's ends there.
        to_browser, from_browser = (self._moved_up(end) for end in (to_browser, from_browser))
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec {_READ_END}<&{to_browser} {_WRITE_END}>&{from_browser}; exec "$@"', "browser"]
            + [program, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._received = b""
        self._next_id = 0
        self.events = []
        return self

    @staticmethod
    def _moved_up(end):
        if end > 9:
            return end
        import fcntl

        moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(end)
        return moved

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self._process.wait(timeout=120)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._log.close()
        self._profile.cleanup()

    def call(self, method, session=None, **parameters):
        """Sends one command and returns its result; events that arrive meanwhile collect in `events`."""
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        wanted = self._next_id
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._message(deadline, method)
            if answer.get("id") == wanted:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, event, session=None, **parameters):
        """The parameters of the first such event, which may have come already."""
        deadline = time.monotonic() + LIMIT_S
        seen = 0
        while True:
            for one in self.events[seen:]:
                given = one.get("params", {})
                if one.get("method") == event and one.get("sessionId") == session and parameters.items() <= given.items():
                    return given
            seen = len(self.events)
            self.events.append(self._message(deadline, event))

    def open(self, url, width, height, *, dark=False, touch=False, scale=1):
        return Page(self, url, width, height, dark, touch, scale)

    def _message(self, deadline, what):
        while b"\0" not in self._received:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._read], [], [], left_s)[0]:
                raise RuntimeError(f"Chromium did not answer {what} within {LIMIT_S} s: {self._tail()}")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError(f"Chromium ended during {what}: {self._tail()}")
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _tail(self):
        self._log.seek(0)
        return self._log.read()[-2000:]


class Page:
    """One tab of its own; records what the console, the page's scripts and the network did."""

    def __init__(self, browser, url, width, height, dark, touch, scale):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.resize(width, height, touch=touch, scale=scale)
        if touch:
            self._call("Emulation.setTouchEmulationEnabled", enabled=True)
        self.set_dark(dark)
        browser.events.clear()
        self._call("Page.navigate", url=url)
        browser.wait_for("Page.loadEventFired", self._session)

    def _call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width, height, *, touch=False, scale=1):
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=touch
        )

    def set_dark(self, dark):
        value = "dark" if dark else "light"
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def evaluate(self, expression):
        """The value of a JavaScript expression; waits for a promise."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self):
        """Until layout, resize observers and drawing of the last change are done."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        )

    def mouse(self, x, y):
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def download(self, expression, folder):
        """The file that evaluating `expression` downloads into `folder`, once it is complete."""
        self._browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder), eventsEnabled=True)
        self.evaluate(expression)
        begun = self._browser.wait_for("Browser.downloadWillBegin")
        self._browser.wait_for("Browser.downloadProgress", state="completed")
        return os.path.join(folder, begun["suggestedFilename"])

    def screenshot(self, path, *, whole=True):
        import base64

        options = {"format": "png"}
        if whole:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            options |= {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._call("Page.captureScreenshot", **options)["data"]))

    def complaints(self):
        """Errors and warnings of the console, uncaught exceptions, and violations of the page's own policy."""
        self.evaluate("1")
        found = []
        for event in self._events():
            method, parameters = event["method"], event["params"]
            if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(one.get("value", one.get("description"))) for one in parameters["args"]))
            elif method == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"]))
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found

    def requested_urls(self):
        """What the page asked for, beyond itself and what lies inside it."""
        urls = [
            event["params"]["request"]["url"]
            for event in self._events()
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls[1:] if not url.startswith(("data:", "blob:"))]

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)

    def _events(self):
        return [
            event for event in self._browser.events if event.get("sessionId") == self._session and "method" in event
        ]
