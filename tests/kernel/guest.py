"""A guest: QEMU with the project's initramfs. It outlives the process that boots it, so that many tests can use it."""

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from image import MissingPart, find_kernel, find_program
from machine import Machine, TestFailure

BOOT_LIMIT_S = 180
LIFE_LIMIT_S = 3600  # a guest that everybody has forgotten ends by itself
MEMORY_MIB = 1024
CPUS = 2
NAMES = ["alpha", "beta"]
# The emulated cycle counter is steady, but the kernel cannot know, and takes one that costs a trip to QEMU. Defences
# against attacks through the processor's caches slow emulation down and protect nothing here.
KERNEL_OPTIONS = "console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off"


def _address(index):
    return f"192.168.77.{index + 1}"


class Guest(Machine):
    """Guest number `index` of those whose files lie in `folder`."""

    device = "rxe0"
    thinning = 100
    # An emulated host may need longer for a message than the default waits for its acknowledgement, and rdma_rxe does
    # not always survive that a message of many packets is repeated. 4.096 us * 2^18 = 1.1 s.
    environment = {"VERBENA_ACK_TIMEOUT": "18"}

    def __init__(self, folder, index):
        self.name = NAMES[index]
        self.address = _address(index)
        self._folder = folder
        self._index = index
        self._socket = None
        self._commands = {}
        self._lock = threading.Lock()

    # --- its life ---

    @property
    def console(self):
        return self._folder / f"{self.name}.console"

    def _path(self, kind):
        return self._folder / f"{self.name}.{kind}"

    def _pid(self):
        """QEMU's process, or None; an old file may name a process that is somebody else's by now."""
        try:
            pid = int(self._path("pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self._path("commands")).encode() in command else None

    def runs(self):
        return self._pid() is not None

    def boot(self):
        """Starts the guest, if it does not run yet; await_boot() waits for it."""
        if self._pid():
            return
        kernel, _ = find_kernel()
        qemu = find_program("qemu-system-x86_64")
        for kind in ("commands", "console", "pid"):
            self._path(kind).unlink(missing_ok=True)
        # A Unix stream: nothing is lost between the guests, and nothing waits for more to send. The first guest
        # listens, also again after the other one has gone; who restarts the first one must restart both.
        network = ["stream", "id=net", f"server={'on' if self._index == 0 else 'off'}", "addr.type=unix",
                   f"addr.path={self._folder / 'network'}"]
        if self._index == 0:
            (self._folder / "network").unlink(missing_ok=True)
        arguments = [
            qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(CPUS), "-m", str(MEMORY_MIB),
            "-kernel", kernel, "-initrd", self._folder / "initramfs",
            "-append", f"{KERNEL_OPTIONS} rdinit=/init verbena.address={self.address} "
                       f"verbena.name={self.name}",
            "-serial", f"file:{self.console}",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=commands,path={self._path('commands')},server=on,wait=off",
            "-device", "virtserialport,chardev=commands,name=commands",
            "-netdev", ",".join(network),
            "-device", f"virtio-net-pci,netdev=net,host_mtu=9000,mac=52:54:00:77:00:{self._index + 1:02x},romfile=",
        ]
        with open(self._path("log"), "wb") as log:
            process = subprocess.Popen(["timeout", "--signal=KILL", str(LIFE_LIMIT_S), "nice", "-n", "10"] +
                                       [str(argument) for argument in arguments],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self._path("pid").write_text(str(process.pid))
        while self._index == 0 and process.poll() is None and not (self._folder / "network").exists():
            time.sleep(0.05)  # the other one would find nobody

    def await_boot(self):
        start = time.monotonic()
        while not self.console.exists() or "ready\n" not in self.console.read_text(errors="replace").replace("\r", ""):
            # A process that was started just now does not show its command line yet.
            ended = time.monotonic() - start > 2 and not self._pid()
            if time.monotonic() - start > BOOT_LIMIT_S or ended:
                log = self._path("log").read_text(errors="replace")
                console = self.console.read_text(errors="replace") if self.console.exists() else ""
                raise TestFailure(f"guest {self.name} did not boot within {BOOT_LIMIT_S} s:\n{log}\n{console}")
            time.sleep(0.2)
        print(f"guest {self.name} is ready after {time.monotonic() - start:.0f} s", flush=True)

    def crash(self):
        """Power is cut: no good-bye on any connection."""
        pid = self._pid()
        if pid:
            os.killpg(pid, signal.SIGKILL)
            while self._pid():
                time.sleep(0.05)
        with self._lock:
            for command in self._commands.values():
                command.deliver_end(None)
            self._commands.clear()

    def revive(self):
        """Boots again after a crash."""
        self.close()
        self.boot()
        self.await_boot()
        self.connect()

    # --- its commands ---

    def connect(self):
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(self._path("commands")))
        except OSError as error:
            raise MissingPart(f"guest {self.name} does not run ({error}): boot it first") from None
        threading.Thread(target=self._pump, args=(self._socket.makefile("r", errors="replace", newline="\n"),),
                         daemon=True).start()

    def _pump(self, stream):
        # What belongs to no command of ours is the rest of an earlier test's.
        for line in stream:
            words = line.rstrip("\r\n").split(" ", 2)
            with self._lock:
                command = self._commands.get(words[0])
            if command is None or len(words) < 2:
                continue
            rest = words[2] if len(words) > 2 else ""
            if words[1] == ">":
                command.deliver(rest)
            elif words[1] == "=":
                command.deliver_end(int(rest))

    def _identify(self, command):
        return f"{os.getpid()}-{id(command)}"

    def _send(self, line):
        self._socket.sendall(line.encode() + b"\n")

    def launch(self, command):
        if "\n" in command.text:
            raise ValueError("the guest takes one line")
        with self._lock:
            self._commands[self._identify(command)] = command
        self._send(f"run {self._identify(command)} {command.text}")

    def kill(self, command):
        self._send(f"kill {self._identify(command)}")

    def close(self):
        if self._socket and self._pid():
            with self._lock:
                running = [command for command in self._commands.values() if command.code is None]
            for command in running:
                self.kill(command)
        if self._socket:
            self._socket.close()
