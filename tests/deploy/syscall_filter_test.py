# SPDX-License-Identifier: Apache-2.0
"""The coordinator and its planning child make no system call that deploy/systemd/takt-coordinator.service refuses.
  python3 -B -m unittest syscall_filter_test      BIN: the programs' directory. Skips, aloud, without systemd-analyze
                                                  or a C compiler.

The coordinator runs under the filter that systemd makes of the unit: SystemCallFilter=, and what RestrictNamespaces=,
RestrictSUIDSGID= and MemoryDenyWriteExecute= do to clone, clone3, openat2, mmap and mprotect. As under systemd, a call
outside the filter kills the process, and a child inherits the filter."""
import collections
import ctypes
import errno
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BIN", ROOT / "build" / "release" / "bin"))
UNIT = ROOT / "deploy" / "systemd" / "takt-coordinator.service"
NOBODY = 65534

JOB = """\
name: planned
model: {family: emulated, layers: 8, forward_ms: 1, input_grad_ms: 1, weight_grad_ms: 1, activation_bytes: 1024}
batch: {global: 8, microbatch: 1}
steps: 1
parallelism: {pipeline: 4, data: 1}
"""

# linux/seccomp.h, linux/filter.h, linux/audit.h
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
WRITE_AND_EXECUTE, EXECUTE = 6, 4  # PROT_WRITE | PROT_EXEC, PROT_EXEC
NAMESPACES = 0x7E020000  # CLONE_NEW*


def settings():
    """The values of each setting of the unit, by its name."""
    values = collections.defaultdict(list)
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        values[name].append(value)
    return values


def calls_of(name):
    """The system calls of a group of systemd, such as @process, or the one of that name."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True)
    members = re.findall(r"^ +([@\w-]+)$", listed.stdout, re.MULTILINE)
    return set().union(*(calls_of(member) for member in members))


def allowed_calls(unit):
    calls = calls_of("@default")
    for value in unit["SystemCallFilter"]:
        for name in value.lstrip("~").split():
            calls = calls - calls_of(name) if value.startswith("~") else calls | calls_of(name)
    return calls


def numbers():
    """The number of each system call of this machine."""
    macros = subprocess.run(["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"],
                            check=True, capture_output=True, text=True).stdout
    defined = dict(re.findall(r"^#define __NR(?:3264)?_(\w+) (\w+)$", macros, re.MULTILINE))
    return {name: int(value) for name, value in defined.items() if value.isdigit()}


def instruction(code, value, then=0, otherwise=0):
    return struct.pack("HBBI", code, then, otherwise, value)


def argument(index):
    return instruction(LOAD, 16 + 8 * index)


def returns(what):
    return instruction(RETURN, what)


def for_call(number, rule):
    """`rule` if the number that is loaded is this one. The rule returns."""
    return instruction(EQUAL, number, 0, len(rule) // 8) + rule


def filter_of(unit):
    number = numbers()
    refuse = returns(REFUSE | errno.EPERM)
    program = instruction(LOAD, 4) + instruction(EQUAL, ARCHITECTURE[platform.machine()], 1, 0) + returns(KILL)
    program += instruction(LOAD, 0)
    unknown = []
    if unit["RestrictNamespaces"] == ["yes"]:
        unknown.append("clone3")  # its flags cannot be seen
        program += for_call(number["clone"],
                            argument(0) + instruction(ANY_BIT, NAMESPACES, 0, 1) + refuse + returns(ALLOW))
    if unit["RestrictSUIDSGID"] == ["yes"]:
        unknown.append("openat2")  # its mode cannot be seen
    for name in unknown:
        program += for_call(number[name], returns(REFUSE | errno.ENOSYS))
    if unit["MemoryDenyWriteExecute"] == ["yes"]:
        for name, bits in {"mmap": WRITE_AND_EXECUTE, "mprotect": EXECUTE}.items():
            program += for_call(number[name], argument(2) + instruction(AND, bits) + instruction(EQUAL, bits, 0, 1) +
                                refuse + returns(ALLOW))
    for name in sorted(allowed_calls(unit) & number.keys()):
        program += for_call(number[name], returns(ALLOW))
    return program + returns(KILL)


def apply(program):
    """Puts the calling process under the filter."""
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    of_libc = Program(len(program) // 8, program)
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, mode_filter, ctypes.byref(of_libc)):
        raise OSError(ctypes.get_errno(), "cannot set the filter")


@unittest.skipUnless(shutil.which("systemd-analyze") and shutil.which("cc"), "SKIPPED: needs systemd-analyze and cc")
class FilterOfTheUnit(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.filter = filter_of(settings())

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        if self.user:
            os.chown(self.folder, NOBODY, NOBODY)
        (self.folder / "job.yaml").write_text(JOB)

    def start(self, command, **options):
        """A process under the filter; not root, for root's privileges make SQLite call what the service never does."""
        process = subprocess.Popen(command, preexec_fn=lambda: apply(self.filter), **self.user, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def submit(self, *flags):
        """What a coordinator under the filter answers to a job whose plan it makes, which changes nothing."""
        ready = self.enterContext(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        ready.bind(str(self.folder / "ready"))
        (self.folder / "ready").chmod(0o666)
        ready.settimeout(60)
        coordinator = self.start([BIN / "takt-coordinator", "--state", self.folder / "state", *flags],
                                 env=os.environ | {"NOTIFY_SOCKET": str(self.folder / "ready")})
        self.assertIn(b"READY=1", ready.recv(4096))
        address = f"unix:{self.folder}/state/coordinator.sock"
        answer = subprocess.run([BIN / "takt", "--coordinator", address, "submit", "--validate-only",
                                 self.folder / "job.yaml"], capture_output=True, text=True)
        coordinator.send_signal(signal.SIGTERM)
        self.assertEqual(coordinator.wait(60), 0)
        return answer

    def test_a_refused_call_kills(self):
        chown = self.start(["chown", "0", "/dev/null"])  # of @privileged
        self.assertEqual(chown.wait(60), -signal.SIGSYS)

    def test_the_child_plans(self):
        answer = self.submit("--planner", "child")
        self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_the_child_lowers_its_priority(self):
        child = self.start([BIN / "takt-coordinator", "planning-child", "0", str(os.getpid()), "yields"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.assertEqual(child.wait(60), 0)  # it answers that this is no request

    def test_the_childs_memory_is_limited(self):
        answer = self.submit("--planner", "child", "--planner-memory", "1MB")
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("the planner ran out of memory", answer.stderr)


if __name__ == "__main__":
    unittest.main()
