"""Hosts on this machine: each has a network namespace with an address, a host name, a hosts file and a disk at `/mnt`.

The hosts of one switch reach each other directly, and the hosts of the other switch through a `Cable`. Everything ends
with the namespaces that `tests.cluster.run` starts pytest in.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.cable import Cable, Route

SUBNET = "10.77.0"
OWN_ADDRESS = f"{SUBNET}.1"
"""Of this process, at the switch of the brokers."""
SEED = 77
EMPTY: Mapping[str, str] = {}
_SET_UP = """
hostname "$1" && ip link set lo up && mount --bind "$2" /mnt && mount --bind "$3" /etc/hosts &&
echo up && exec sleep infinity
"""


class Host:
    """Attributes:
    disk: the folder that is `/mnt` on this host.
    """

    def __init__(self, name: str, address: str, folder: Path, names: Mapping[str, str]) -> None:
        """`names` has the address of each host name that this host knows."""
        self.name, self.address, self.disk = name, address, folder / name
        self.disk.mkdir()
        self._names = names
        self._hosts_file = folder / f"{name}.hosts"
        self.know_all()
        set_up = ["sh", "-c", _SET_UP, "sh", name, str(self.disk), str(self._hosts_file)]
        namespaces = ["unshare", "--net", "--mount", "--uts"]
        holder = subprocess.Popen([*namespaces, *set_up], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None and holder.stdout.readline() == "up\n", f"{name} has not started"
        self._pid = holder.pid

    def plug_in(self, switch: str) -> None:
        cable = ["ip", "link", "add", f"to-{self.name}", "master", switch, "up", "type", "veth", "peer", "name", "eth0"]
        _run(*cable, "netns", str(self._pid))
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] = EMPTY, pipes: bool = False
    ) -> subprocess.Popen[str]:
        """Start a command in `/mnt`, with output to `log`. Temporary files go to `/mnt` too.

        Args:
            pipes: whether standard input and output are pipes.
        """
        with log.open("ab") as output:
            return subprocess.Popen(
                self._entered(command),
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                text=True,
                env=_environment(environment),
            )

    def run(
        self, *command: str, timeout_s: float = 60, environment: Mapping[str, str] = EMPTY
    ) -> subprocess.CompletedProcess[str]:
        """The result of a command in `/mnt`, which may have failed."""
        return subprocess.run(
            self._entered(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=_environment(environment),
        )

    def kill(self, part: str) -> list[int]:
        """Send SIGKILL to the processes of this host with `part` in their command lines, and return their pids."""
        found = list(self._pids(part))
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return found

    def connections(self, other: Host) -> set[str]:
        """The own ends of established TCP connections to another host."""
        found = self.run("ss", "--no-header", "--tcp", "--numeric", "state", "established", "dst", other.address)
        return {line.split()[2] for line in found.stdout.splitlines()}

    def know_all(self) -> None:
        write_hosts_file(self._hosts_file, self._names)

    def forget(self, name: str) -> None:
        """This host cannot resolve the name, until `know_all`."""
        known = {other: address for other, address in self._names.items() if other != name}
        write_hosts_file(self._hosts_file, known)

    def _entered(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self._pid}", "--net", "--mount", "--uts", "--wdns=/mnt", "--", *command]

    def _pids(self, part: str) -> Iterator[int]:
        network = _network(self._pid)
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            try:
                if _network(pid) == network and part in (folder / "cmdline").read_text().replace("\0", " "):
                    yield pid
            except OSError:  # it has ended
                continue


class Network:
    """Hosts at two switches, and the cable between the switches.

    Attributes:
        hosts: by name.
    """

    def __init__(self, folder: Path, names: Mapping[str, Sequence[str]]) -> None:
        """Changes names and interfaces of this process's namespaces.

        Args:
            names: of the hosts at each of the two switches. This process is at the last.
        """
        everyone = [name for switch in names for name in names[switch]]
        addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate(everyone, 2)}
        write_hosts_file(folder / "hosts", addresses)
        (folder / "resolv.conf").touch()  # no name server
        for file in ("hosts", "resolv.conf"):
            _run("mount", "--bind", str(folder / file), f"/etc/{file}")
        _run("ip", "link", "set", "lo", "up")
        for switch in names:
            _run("ip", "link", "add", switch, "up", "type", "bridge")
        one, other = names
        _run("ip", "address", "add", f"{OWN_ADDRESS}/24", "dev", other)
        self.cable = Cable((one, other), SEED)
        self.hosts = {name: Host(name, address, folder, addresses) for name, address in addresses.items()}
        for switch in names:
            for name in names[switch]:
                self.hosts[name].plug_in(switch)

    @contextmanager
    def partition(self, *routes: tuple[str, str]) -> Iterator[None]:
        """No packet passes from the first host of a route to the second inside `with`, without any notice of it."""
        self.cable.cut = frozenset(
            Route(self.hosts[source].address, self.hosts[target].address) for source, target in routes
        )
        try:
            yield
        finally:
            self.cable.cut = frozenset()

    @contextmanager
    def bad_line(self, delay_s: float, loss: float) -> Iterator[None]:
        """Frames between the switches are late or, a share of them, lost inside `with`."""
        self.cable.delay_s, self.cable.loss = delay_s, loss
        try:
            yield
        finally:
            self.cable.delay_s, self.cable.loss = 0.0, 0.0


def write_hosts_file(path: Path, names: Mapping[str, str]) -> None:
    """In place, because a mounted file stays the same file. `names` has the address of each name."""
    lines = [f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **names}.items()]
    path.write_text("".join(lines))


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Without what would lead to the Python packages of this process."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    return {**own, "TMPDIR": "/mnt", **extra}


def _network(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)
