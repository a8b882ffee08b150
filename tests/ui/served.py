# SPDX-License-Identifier: Apache-2.0
"""What the tests of the page start: the coordinator that is made up, and `takt ui`. Each is a context."""

import json
import os
import pathlib
import socket
import subprocess
import urllib.parse


class Stage:
    """The coordinator of ui_stage.cc. Its address is `coordinator`."""

    def __init__(self, build):
        self._process = subprocess.Popen([pathlib.Path(build) / "tests" / "ui_stage"], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        self.coordinator = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class Ui:
    """`takt ui`. Without a coordinator it asks that of the environment."""

    def __init__(self, build, coordinator=None, environment=None):
        options = ["--coordinator", coordinator] if coordinator else []
        self._process = subprocess.Popen([pathlib.Path(build) / "bin" / "takt", *options, "-o", "json", "ui"],
                                         stdout=subprocess.PIPE, text=True, env=environment)

    def __enter__(self):
        answer = json.loads(self._process.stdout.readline())
        self.address, self.port = answer["url"], answer["port"]
        return self

    def __exit__(self, *_):
        self._process.terminate()
        status = self._process.wait(30)
        self._process.stdout.close()
        assert status == 0, f"takt ui ended with {status}"

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stream_request(self, *views):
        """The request of a page that shows these views."""
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(self.address).query)["token"][0]
        query = "&".join(f"view={view}" for view in views)
        return (f"GET /api/stream?{query} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                f"Cookie: takt_ui_{self.port}={token}\r\n\r\n").encode()

    def connect(self, request):
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(request)
        return connection
