# SPDX-License-Identifier: Apache-2.0
"""Disks that can be filled. They are in memory, in a mount namespace of this process and its children."""
import contextlib
import ctypes
import os

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)
_has_own_mounts = False


def _call(function, *arguments):
    if function(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter_own_mounts():
    """Enters a mount namespace for the rest of the process' life. A process that is not root becomes root in a user namespace."""
    global _has_own_mounts
    if _has_own_mounts:
        return
    uid, gid = os.getuid(), os.getgid()
    try:
        _call(_libc.unshare, CLONE_NEWNS)
    except PermissionError:
        _call(_libc.unshare, CLONE_NEWUSER | CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _call(_libc.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
    _has_own_mounts = True


@contextlib.contextmanager
def mounted(directory, size):
    """directory: it exists. size: as of a tmpfs, "2m". OSError means that this machine does not permit it."""
    _enter_own_mounts()
    _call(_libc.mount, b"tmpfs", os.fsencode(directory), b"tmpfs", 0, f"size={size}".encode())
    try:
        yield
    finally:
        _call(_libc.umount2, os.fsencode(directory), 2)  # MNT_DETACH


def fill(file):
    """Makes a file that fills the disk, or lets it grow until the disk is full again."""
    with contextlib.suppress(OSError), open(file, "ab", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
