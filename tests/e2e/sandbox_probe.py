"""Run in the service's sandbox: what workers need to talk to each other, and what is barred.

Prints a JSON object: for each thing ``works``, or the signal or error that it ended with. Each is
tried in a process of its own, as a barred system call ends the process.
"""

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from multiprocessing import shared_memory


def descriptors() -> None:
    """NCCL hands GPU memory to another worker as a descriptor over a Unix socket."""
    here, there = socket.socketpair(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        _, (got,), *_ = socket.recv_fds(there, 8, 1)
        os._exit(0 if os.fstat(got).st_size else 1)
    with open(sys.argv[0]) as file:
        socket.send_fds(here, [b"fd"], [file.fileno()])
        assert os.waitpid(child, 0)[1] == 0


def queues() -> None:
    """vLLM's engine and workers share memory."""
    made = shared_memory.SharedMemory(create=True, size=4096)
    other = shared_memory.SharedMemory(made.name)
    made.buf[0] = 7
    assert other.buf[0] == 7
    other.close()
    made.close()
    made.unlink()


def abstract() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind("\0glm5-probe")


def interfaces() -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
    assert socket.if_nameindex()


def compiled() -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def binding() -> None:
    os.sched_setaffinity(0, os.sched_getaffinity(0))


def _call(number: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def ptrace() -> None:
    _call(101, 0, 0, 0, 0)


def pidfd_getfd() -> None:
    _call(438, os.pidfd_open(os.getpid()), 0, 0)


def mounting() -> None:
    _call(165, 0, 0, 0, 0, 0)


def packets() -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)


def namespaces() -> None:
    _call(272, 0x10000000)


def writing() -> None:
    with open("/etc/glm5-probe", "w") as file:
        file.write("x")


NEEDED = (descriptors, queues, abstract, interfaces, compiled, binding)
BARRED = (ptrace, pidfd_getfd, mounting, packets, namespaces, writing)


def tried(name: str) -> str:
    done = subprocess.run([sys.executable, sys.argv[0], name], capture_output=True, text=True)
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return "works" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


if __name__ == "__main__":
    if sys.argv[1:]:
        globals()[sys.argv[1]]()
    else:
        print(json.dumps({each.__name__: tried(each.__name__) for each in (*NEEDED, *BARRED)}))
