# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that a test steers by its DevTools protocol over two pipes."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def is_installed():
    return shutil.which("chromium") is not None


class Page:
    """One tab. Sizes are CSS pixels. It collects what the browser complains about in `complaints`."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.complaints = []
        for domain in ["Page", "Runtime", "Log"]:
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        return self._browser.call(method, parameters, self._session)

    def show(self, width, height, dark):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, address):
        self.call("Page.navigate", url=address)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression, seconds=30):
        """Returns once the expression is true. Elements count as true; their values would not get here."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = self.evaluate(f"(() => {{ try {{ return !!({expression}); }} catch {{ return false; }} }})()")
            except RuntimeError:
                value = None  # the page was just left
            if value:
                return
            if time.monotonic() > deadline:
                text = self.evaluate("document.body.innerText.slice(0, 2000)")
                raise TimeoutError(f"{expression} did not become true; the page says: {text}")
            time.sleep(0.05)

    def press(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path):
        answer = self.call("Page.captureScreenshot", format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))

    def take(self, event):
        parameters = event["params"]
        if event["method"] == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        if event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])


class Browser:
    """Ends with the `with` statement."""

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="takt-browser-", ignore_cleanup_errors=True)
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        command = ["bash", "-c", f'exec "$@" 3<&{their_in} 4>&{their_out}', "bash", "chromium", "--headless", "--no-sandbox",
                   "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
                   "--disable-background-networking", f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(command, pass_fds=(their_in, their_out), stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        os.close(their_in)
        os.close(their_out)
        self._ids = itertools.count(1)
        self._buffer = b""
        self._pages = {}
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, session)
        self._pages[session] = page
        return page

    def call(self, method, parameters, session=None, seconds=60):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self._read(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer and answer.get("sessionId") in self._pages:
                self._pages[answer["sessionId"]].take(answer)

    def _read(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)
