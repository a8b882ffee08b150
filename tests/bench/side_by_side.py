# SPDX-License-Identifier: Apache-2.0
"""Runs programs side by side, bounded in time, and leaves none of their processes behind."""
import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time


class Failed(Exception):
    """One of the programs failed or took too long. The text is one line."""


def run(commands, seconds=None, environment=None, quiet=False):
    """Returns the last line that the first command printed, as JSON, once all commands ended well. As soon as one fails, or after `seconds`,
    it raises Failed. `quiet`: what they write to stderr is kept back, and the last line of the one that failed is told."""
    processes, errors = [], {}
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile("w+"))
        for command in commands:
            error = stack.enter_context(tempfile.TemporaryFile("w+")) if quiet else None
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL if processes else output, stderr=error,
                                       env={**os.environ, **(environment or {})}, start_new_session=True, preexec_fn=die_with_parent)
            stack.callback(kill, process)
            processes.append(process)
            errors[process] = error
        culprit, why = failure(processes, seconds)
        if why:
            raise Failed(f"{why}{last_words(errors.get(culprit))}")
        output.seek(0)
        lines = output.read().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        raise Failed(f"{pathlib.Path(commands[0][0]).name} printed no JSON") from None


def die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def failure(processes, seconds):
    """Waits until all have ended, or one has failed. Returns the one that failed, if it was one, and what went wrong, or None. It reaps none,
    so that none of their ids has another owner."""
    deadline = None if seconds is None else time.monotonic() + seconds
    running = {os.pidfd_open(process.pid): process for process in processes}
    try:
        while running:
            ended, _, _ = select.select(list(running), [], [], None if deadline is None else max(0, deadline - time.monotonic()))
            if not ended:
                return None, f"it did not end within {seconds:g} s"
            for descriptor in ended:
                process = running.pop(descriptor)
                os.close(descriptor)
                end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
                if end.si_code != os.CLD_EXITED or end.si_status != 0:
                    how = "exit status" if end.si_code == os.CLD_EXITED else "signal"
                    return process, f"{pathlib.Path(process.args[0]).name} ended with {how} {end.si_status}"
        return None, None
    finally:
        for descriptor in running:
            os.close(descriptor)


def kill(process):
    """Ends the process, if it still runs, and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_words(error):
    if error is None:
        return ""
    error.seek(0)
    lines = [line.strip() for line in error.read().splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def exit_on_termination():
    """Lets SIGTERM end this program as an error does, so that it ends what it started."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
