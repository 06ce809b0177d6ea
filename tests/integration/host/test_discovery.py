"""What a look at a host finds: vLLM in its forms, containers by cgroup and network. Real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddscope.diagnose import Diagnosis
from ddscope.model import Record
from ddscope.remote import Host, HostError
from ddscope.remote.agent import look
from ddscope.remote.doctor.locate import locate
from ddscope.remote.there import containers, procs
from tests.integration.host.sshd import descendants, free_port
from tests.integration.host.test_attached import Watching
from tests.unit.emit_support import wait_for

SITE = Path(__file__).parent / "site"
CONFIG = '{"method": "eagle3", "num_speculative_tokens": 3}'
ID = "0123456789ab" + "c" * 52


@contextmanager
def started(words: list[str], log: Path, before: list[str] | None = None) -> Iterator[int]:
    """A stand-in vLLM server that says that it is up; its pid. before: what runs it."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*(before or []), sys.executable, *words],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(os.environ, PYTHONPATH=str(SITE)),
        )  # fmt: skip
    try:
        wait_for(lambda: b"Starting vLLM API server" in log.read_bytes(), f"the server: {log.read_bytes()!r}")
        yield process.pid
    finally:
        for pid in (*descendants(process.pid), process.pid):
            process.kill() if pid == process.pid else os.kill(pid, 9)
        process.wait()


def of_pid(pid: int, **options: Any) -> dict[str, Any]:
    found = [server for server in look(Host("localhost"), **options)["servers"] if server["pid"] == pid]
    assert len(found) == 1
    return dict(found[0])


# vLLM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        [str(SITE / "bin/vllm"), "serve", "Qwen/Qwen3-8B", "--port", "{port}", "-tp", "2"],
        ["-m", "vllm.entrypoints.openai.api_server", "--model=Qwen/Qwen3-8B", "--port={port}"],
    ],
    ids=["vllm serve", "api_server"],
)
def test_vllm_is_found_in_both_forms_with_its_engine_core(form: list[str], tmp_path: Path) -> None:
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in [*form, "--speculative_config", CONFIG]]
    with started(words, tmp_path / "log") as pid:
        server = of_pid(pid)
        assert (server["kind"], server["port"], server["algorithm"]) == ("vllm", port, "eagle3")
        assert [one["name"] for one in server["processes"]][1:] == ["VLLM::EngineCore"]
        watching = Watching(None, pid=pid, log_files=[str(tmp_path / "log")])
        try:
            for rung in ("process", "port", "health", "generate"):
                watching.kept.await_rung(rung, True)
            assert "4 tokens" in (watching.kept.await_rung("generate", True).detail or "")
            watching.attached.ask_stacks()
            names = {stack.process for stack in watching.kept.await_stacks(2)}
            assert "VLLM::EngineCore" in names
            wait_for(lambda: any("Starting vLLM" in text for text in watching.kept.messages()), "the log")
        finally:
            watching.stop()
        diagnosis = Diagnosis()
        for record in watching.kept.records:
            if isinstance(record, Record):
                diagnosis.observe(record)
        assert [finding.id for finding in diagnosis.findings()] == [], "a sound server"


def test_an_engine_core_that_outlives_its_server_is_found() -> None:
    orphan = 'exec -a VLLM::EngineCore "$0" -c "import time; time.sleep(600)" </dev/null >/dev/null 2>&1 & echo $!'
    done = subprocess.run(["bash", "-c", orphan, sys.executable], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    try:
        wait_for(lambda: b"VLLM::" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the engine core")
        server = of_pid(pid)
        assert server["kind"] == "vllm" and server["listening"] == []
    finally:
        os.kill(pid, 9)


# containers -----------------------------------------------------------------------------------------------------


def hierarchy() -> Path | None:
    """Where a cgroup can be made that systemd's names would be in."""
    for path in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")):
        if (path / "cgroup.procs").exists() and os.access(path, os.W_OK) and os.geteuid() == 0:
            return path
    return None


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup of that name; skipped where none can be made."""
    base = hierarchy()
    if base is None:
        pytest.skip("cgroups can only be made by root, where they are writable")
    path = base / request.param
    try:
        path.mkdir(parents=True)
    except OSError as problem:
        pytest.skip(f"no cgroup can be made: {problem}")
    yield path
    # Processes that were killed leave in their own time.
    wait_for(lambda: not (path / "cgroup.procs").read_text().strip(), "an empty cgroup")
    while path != base:
        path.rmdir()
        path = path.parent


@pytest.mark.parametrize(
    ("scope", "container", "command"),
    [
        (f"docker-{ID}.scope", "docker 0123456789ab", "docker logs -f 0123456789ab"),
        (f"libpod-{ID}.scope/container", "podman 0123456789ab", "podman logs -f 0123456789ab"),
        (f"kubepods/besteffort/pod1/{ID}", "crictl 0123456789ab", "crictl logs -f 0123456789ab"),
    ],
    indirect=["scope"],
)
def test_a_server_in_a_container_is_found_from_its_host(
    scope: Path, container: str, command: str, tmp_path: Path
) -> None:
    port = free_port()
    with started([str(SITE / "bin/vllm"), "serve", "m", "--port", str(port)], tmp_path / "log") as pid:
        for one in (pid, *descendants(pid)):
            try:
                (scope / "cgroup.procs").write_text(str(one))
            except OSError as problem:
                pytest.skip(f"no process can be put into a cgroup: {problem}")
        server = of_pid(pid)
        assert (server["container"], server["log_command"]) == (container, command)
        assert "unit" not in server and server["port"] == port
        with pytest.raises(HostError) as caught:
            locate(Host("localhost"), pid=pid)
        assert f"`{command.split()[0]} exec -it 0123456789ab ddscope doctor --host localhost`" in str(caught.value)


@pytest.mark.parametrize(
    ("cgroup", "told"),
    [
        (f"0::/system.slice/docker-{ID}.scope", "docker"),
        (f"0::/docker/{ID}", "docker"),
        (f"0::/machine.slice/libpod-{ID}.scope/container", "podman"),
        (f"0::/system.slice/vllm.service/libpod-payload-{ID}", "podman"),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container", "podman"),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", "crictl"),
        (f"0::/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope", "crictl"),
        (f"11:memory:/kubepods/burstable/pod1/{ID}\n1:name=systemd:/kubepods/burstable/pod1/{ID}", "crictl"),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", ""),
        ("0::/system.slice/docker.service", ""),
        ("0::/user.slice/user-0.slice/session-3.scope", ""),
    ],
)
def test_cgroups_name_the_program_that_knows_the_container(
    cgroup: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procs, "read", lambda path, limit=0: cgroup.encode() if path == "/proc/7/cgroup" else b"")
    assert containers.of(7) == ((told, "0123456789ab") if told else ("", ""))


@contextmanager
def network() -> Iterator[tuple[list[str], str]]:
    """A network of its own behind a pair of interfaces: (what runs a command in it, its address)."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network of its own needs root and iproute2")
    name = f"dds{os.getpid() % 100_000}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network of its own can be made: {made.stderr.strip()}")
    inside = ["ip", "netns", "exec", name]
    host, guest = f"10.{os.getpid() % 200 + 20}.77.1", f"10.{os.getpid() % 200 + 20}.77.2"
    try:
        for words in (
            ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name],
            ["ip", "addr", "add", f"{host}/24", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*inside, "ip", "addr", "add", f"{guest}/24", "dev", "eth0"],
            [*inside, "ip", "link", "set", "eth0", "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
        ):
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{' '.join(words)}: {done.stderr.strip()}")
        yield inside, guest
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def test_a_server_in_a_network_of_its_own_is_asked_where_it_can_be_reached(tmp_path: Path) -> None:
    words = [str(SITE / "bin/vllm"), "serve", "m", "--port", "8000", "--host", "0.0.0.0"]
    with network() as (inside, guest), started(words, tmp_path / "log", inside) as pid:
        server = of_pid(pid)
        assert (server["address"], server["port"]) == (guest, 8000), "not the host's own 127.0.0.1:8000"
        watching = Watching(None, pid=pid)
        try:
            watching.kept.await_rung("generate", True)
        finally:
            watching.stop()
        port = free_port()
        proxy = [
            "docker-proxy", "-c", "import time; time.sleep(600)", "-proto", "tcp", "-host-ip", "0.0.0.0",
            "-host-port", str(port), "-container-ip", guest, "-container-port", "8000",
        ]  # fmt: skip
        published = subprocess.Popen(proxy, executable=sys.executable, stdin=subprocess.DEVNULL)
        try:
            server = of_pid(pid, port=port)
            assert (server["address"], server["port"]) == ("127.0.0.1", port)
        finally:
            published.kill()
            published.wait()


def test_published_ports_as_docker_and_podman_print_them() -> None:
    text = "8000/tcp -> 0.0.0.0:9000\n8000/tcp -> [::]:9000\n5000/udp -> 0.0.0.0:5000\n22/tcp -> 10.0.0.3:2222\n"
    assert containers.parse_ports(text) == {8000: ("127.0.0.1", 9000), 22: ("10.0.0.3", 2222)}


def test_the_client_that_started_a_container_ends_in_the_same_words() -> None:
    def process(pid: int, *argv: str) -> procs.Process:
        return procs.Process(pid, 1, "x", "S", 0, list(argv))

    image = ["vllm/vllm-openai:v0.11.0", "--model", "Qwen/Qwen3-8B", "--port", "8000"]
    server = process(3, "/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", *image[1:])
    known = {
        1: process(1, "/usr/bin/docker", "run", "--rm", "--gpus", "all", *image),
        2: process(2, "/usr/bin/docker", "run", "other", "--port", "8000"),
        3: server,
    }
    assert containers.client(server, known) == 1
    assert containers.client(server, {2: process(2, "docker", "logs", *image), 3: server}) == 0
