"""A machine that tests start programs on: a guest (guest.py), or the one that the tests themselves run on."""

import os
import queue
import shlex
import signal
import subprocess
import threading
import time


class TestFailure(Exception):
    """What a case expected and did not see."""


class Command:
    """A running program. Its output, both streams, is printed as it comes, unless quiet, and kept in `lines`."""

    def __init__(self, machine, text, quiet=False):
        self.machine = machine
        self.text = text
        self.quiet = quiet
        self.lines = []
        self.code = None  # once it has ended; None also for one whose machine went away
        self._events = queue.Queue()

    def deliver(self, line):
        """Called by the machine, from any thread."""
        self._events.put(("line", line))

    def deliver_end(self, code):
        self._events.put(("end", code))

    def _next(self, deadline, what):
        try:
            kind, value = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TestFailure(f"[{self.machine.name}] {self.text}: no {what} in time") from None
        if kind == "line":
            self.lines.append(value)
            self.report(value)
            return True
        self.code = value
        self.report(f"exit code {value}: {self.text}")
        self._events.put((kind, value))  # whoever asks again gets the same answer
        return False

    def report(self, line):
        if not self.quiet:
            print(f"[{self.machine.name}] {line}", flush=True)

    @property
    def output(self):
        return "\n".join(self.lines)

    def wait_for(self, text, timeout_s=60):
        """Until a line holds `text`."""
        deadline = time.monotonic() + timeout_s
        while not any(text in line for line in self.lines):
            if not self._next(deadline, f"'{text}'"):
                raise TestFailure(f"[{self.machine.name}] {self.text}: ended without '{text}'")

    def wait(self, timeout_s=60):
        """Its exit code. One that takes longer is killed, and the case fails."""
        deadline = time.monotonic() + timeout_s
        try:
            while self._next(deadline, f"end within {timeout_s} s"):
                pass
        except TestFailure:
            self.kill()
            raise
        return self.code

    def expect(self, code=0, *, holds=(), lacks=(), timeout_s=60):
        """Waits, and fails unless it ended with `code`, printed all of `holds` and nothing of `lacks`."""
        found = self.wait(timeout_s)
        if found != code:
            raise TestFailure(f"[{self.machine.name}] {self.text}: exit code {found}, expected {code}")
        for text in holds:
            if text not in self.output:
                raise TestFailure(f"[{self.machine.name}] {self.text}: did not say '{text}'")
        for text in lacks:
            if text in self.output:
                raise TestFailure(f"[{self.machine.name}] {self.text}: said '{text}'")
        return self

    def kill(self):
        self.machine.kill(self)


class Machine:
    """What cases may do with a machine."""

    name = "?"
    address = "?"  # where the other machine reaches it
    device = "?"
    environment = {}  # of every program
    thinning = 1  # tests exchange one in so many of their messages

    def start(self, *words, environment=None, quiet=False):
        """Starts a program; words are quoted. Returns its Command."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in (self.environment | (environment or {})).items()]
        text = " ".join(variables + [shlex.quote(str(word)) for word in words])
        command = Command(self, text, quiet)
        command.report(f"$ {text}")
        self.launch(command)
        return command

    def run(self, *words, environment=None, quiet=False, **expected):
        """start() and expect()."""
        return self.start(*words, environment=environment, quiet=quiet).expect(**expected)

    def scratch(self, name):
        """A path on the machine for a file of this case."""
        return f"/tmp/verbena-test-{os.getpid()}-{self.name}-{name}"

    def read(self, path):
        """A file's content; not printed."""
        return self.run("cat", path, quiet=True).output

    def shell(self, script, **expected):
        return self.run("sh", "-c", script, **expected)

    def launch(self, command):
        raise NotImplementedError

    def kill(self, command):
        raise NotImplementedError

    def crash(self):
        """The machine stops at once and says nothing to anybody."""
        raise NotImplementedError

    def revive(self):
        """Starts again after a crash."""
        raise NotImplementedError

    def close(self):
        """Ends what still runs."""


class LocalMachine(Machine):
    """This machine; two of them are one machine twice."""

    def __init__(self, name, device):
        self.name = name
        self.device = device
        self.address = "127.0.0.1"
        self._processes = {}

    def launch(self, command):
        process = subprocess.Popen(["sh", "-c", command.text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        self._processes[command] = process

        def pump():
            for line in process.stdout:
                command.deliver(line.rstrip("\n"))
            command.deliver_end(process.wait() % 256)

        threading.Thread(target=pump, daemon=True).start()

    def kill(self, command):
        try:
            os.killpg(self._processes[command].pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self):
        for command in self._processes:
            self.kill(command)
