"""Hosts which are network namespaces of this machine, for processes that are to be far apart."""
import contextlib
import os
import subprocess

import pytest

from cluster import wait_for


def ip(*arguments):
    return subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True)


class Hosts:
    """Namespaces on one bridge, which this process reaches, too."""

    def __init__(self, count):
        self.count = count
        # Short: names of interfaces have at most 15 letters.
        self.tag = f"lx{os.getpid() % 100000}"
        self.net = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"

    def start(self):
        def must(*arguments):
            done = ip(*arguments)
            if done.returncode != 0:
                raise OSError(f"ip {' '.join(map(str, arguments))}: {done.stderr.strip()}")

        must("link", "add", self.tag, "type", "bridge")
        must("addr", "add", f"{self.net}.1/24", "dev", self.tag)
        must("link", "set", self.tag, "up")
        for host in range(self.count):
            name = self.name(host)
            must("netns", "add", name)
            must("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            must("link", "set", name, "master", self.tag, "up")
            must("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            must("-n", name, "link", "set", "eth0", "up")
            must("-n", name, "link", "set", "lo", "up")

        def reached():
            return all(subprocess.run(["ip", "netns", "exec", self.name(a), "bash", "-c",
                                       f"exec 3<>/dev/udp/{self.address(b)}/9 && echo >&3"]).returncode == 0
                       for a in range(self.count) for b in range(self.count) if a != b)

        wait_for(reached, 10, "network of namespaces")  # What UCX finds down when it begins it never uses.

    def stop(self):
        for host in range(self.count):
            ip("netns", "del", self.name(host))
            ip("link", "del", self.name(host))
        ip("link", "del", self.tag)

    def name(self, host):
        return f"{self.tag}-{host}"

    def address(self, host):
        return f"{self.net}.{host + 2}"

    def cut(self, host):
        assert ip("link", "set", self.name(host), "down").returncode == 0

    def mend(self, host):
        assert ip("link", "set", self.name(host), "up").returncode == 0

    def within(self, host):
        """The command that becomes a program on that host."""
        return ("ip", "netns", "exec", self.name(host))

    def run(self, host, *command):
        done = subprocess.run([*self.within(host), *command], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")

    def lose(self, host, percent):
        """Of the packets that come to the host, until keep()."""
        self.run(host, "nft", "add table inet loss; add chain inet loss arrival { type filter hook input priority 0; };"
                       f" add rule inet loss arrival numgen random mod 100 < {percent} drop")

    def keep(self, host):
        self.run(host, "nft", "delete table inet loss")

    def delay(self, host, milliseconds):
        """Whatever the host sends, until hurry(); for kernels that have netem."""
        self.run(host, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", f"{milliseconds}ms")

    def hurry(self, host):
        self.run(host, "tc", "qdisc", "del", "dev", "eth0", "root")


@contextlib.contextmanager
def made(hosts):
    """Of the namespaces; skips the test where they cannot be made."""
    try:
        try:
            hosts.start()
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield hosts
    finally:
        hosts.stop()
