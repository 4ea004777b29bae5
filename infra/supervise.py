"""Supervisor: it starts the services, restarts those that crash, and ends them with everything they started."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
import xmlrpc.client
from pathlib import Path
from typing import Any

import psutil

from infra.home import Ports, write_private
from infra.service import Service
from infra.services import environment
from runtime.errors import TransientError
from runtime.settings import Settings

START_SECONDS = 20
STOP_SECONDS = 60


def config_path(settings: Settings) -> Path:
    return settings.home / "config" / "supervisord.conf"


def log_path(settings: Settings, name: str) -> Path:
    """Where a service's output goes."""
    return settings.home / "logs" / f"{name}.log"


def proxy(settings: Settings) -> Any:
    """Supervisor's XML-RPC interface, on loopback and with this home's password."""
    password = settings.supervisor_password.get_secret_value()
    port = Ports(settings.port_base).supervisor
    return xmlrpc.client.ServerProxy(f"http://anabranch:{password}@127.0.0.1:{port}/RPC2").supervisor


def is_running(settings: Settings) -> bool:
    """Whether this home's supervisor answers."""
    try:
        return bool(proxy(settings).getState()["statename"] == "RUNNING")
    except (OSError, xmlrpc.client.Error):
        return False


def write_config(settings: Settings, services: list[Service]) -> None:
    """Write Supervisor's configuration. It holds secrets in the services' environment, so it is private."""
    ports = Ports(settings.port_base)
    run, logs = settings.home / "run", settings.home / "logs"
    run.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    lines = [
        "[supervisord]",
        f"logfile={logs}/supervisord.log",
        f"pidfile={run}/supervisord.pid",
        f"directory={settings.home}",
        "logfile_maxbytes=5MB",
        "nodaemon=false",
        *(["user=root"] if os.geteuid() == 0 else []),
        "[inet_http_server]",
        f"port=127.0.0.1:{ports.supervisor}",
        "username=anabranch",
        f"password={settings.supervisor_password.get_secret_value()}",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for service in services:
        variables = ",".join(f"{key}={_quoted(value)}" for key, value in environment(settings, service).items())
        lines += [
            f"[program:{service.name}]",
            "command=" + shlex.join(service.command),
            "environment=" + variables,
            "autostart=false",
            "autorestart=unexpected",
            "exitcodes=0" + ("" if service.restarts_on_78 else ",78"),
            "startsecs=1",
            "startretries=1000000",
            f"stopsignal={service.stop_signal}",
            f"stopwaitsecs={service.stop_seconds}",
            "stopasgroup=false",
            "killasgroup=true",
            "stdout_logfile=" + str(log_path(settings, service.name)).replace("%", "%%"),  # expanded twice
            "redirect_stderr=true",
            "stdout_logfile_maxbytes=10MB",
            "stdout_logfile_backups=2",
        ]
    write_private(config_path(settings), "\n".join(lines).replace("%", "%%") + "\n")


def _quoted(value: str) -> str:
    """Supervisor knows both quotes and no escapes."""
    quote = "'" if '"' in value else '"'
    return f"{quote}{value}{quote}"


def start(settings: Settings) -> None:
    """Start this home's supervisor and wait until it answers."""
    subprocess.run(
        [sys.executable, "-m", "supervisor.supervisord", "-c", str(config_path(settings))],
        check=True,
        env={**os.environ, "ANABRANCH_HOME": str(settings.home), "ANABRANCH_SERVICE": "supervisord"},
        stdin=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + START_SECONDS
    while not is_running(settings):
        if time.monotonic() > deadline:
            raise TransientError(f"supervisor does not answer; see {log_path(settings, 'supervisord')}")
        time.sleep(0.05)
    write_private(session_path(settings), str(os.getsid(proxy(settings).getPID())))


def session_path(settings: Settings) -> Path:
    """Holds the id of the session in which this home's supervisor was started; all its services are in it."""
    return settings.home / "run" / "session"


def reread(settings: Settings, services: list[Service]) -> None:
    """Let a running supervisor take up another set of services and changed commands.

    New services are known afterwards and not started, those no longer wanted are ended with all they had started, and
    changed ones that do not run are defined anew.
    """
    write_config(settings, services)
    server = proxy(settings)
    added, changed, removed = server.reloadConfig()[0]
    stop_services(settings, removed)
    for name in removed:
        end_leftovers(settings, name)
        server.removeProcessGroup(name)
    for name in added:
        server.addProcessGroup(name)
    for name in changed:
        if states(settings)[name]["statename"] in ("STOPPED", "EXITED", "FATAL"):
            server.removeProcessGroup(name)
            server.addProcessGroup(name)


def states(settings: Settings) -> dict[str, dict[str, Any]]:
    """What Supervisor says of each service; empty if it does not run."""
    try:
        return {info["name"]: info for info in proxy(settings).getAllProcessInfo()}
    except (OSError, xmlrpc.client.Error):
        return {}


def start_service(settings: Settings, name: str) -> None:
    """Start one service if it does not run. Does not wait until it is ready."""
    info = states(settings).get(name, {})
    if info.get("statename") not in ("STARTING", "RUNNING", "BACKOFF"):
        proxy(settings).startProcess(name, False)


def stop_services(settings: Settings, names: list[str]) -> None:
    """Stop services together, and wait until they have ended. One that does not run or is not known is left out."""
    server = proxy(settings)
    for name in names:
        if states(settings).get(name, {}).get("statename") in ("STARTING", "RUNNING", "BACKOFF"):
            server.stopProcess(name, False)
    while any(states(settings).get(name, {}).get("statename") == "STOPPING" for name in names):
        time.sleep(0.1)  # ends: after its stopwaitsecs Supervisor kills


def stop(settings: Settings, groups: list[list[str]]) -> None:
    """Stop one group of services after another, those of a group together, then Supervisor itself."""
    server = proxy(settings)
    for names in groups:
        stop_services(settings, names)
    pid = server.getPID()
    server.shutdown()
    try:
        psutil.Process(pid).wait(STOP_SECONDS)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired as error:
        raise TransientError(f"supervisor (pid {pid}) does not end; run anabranch down again") from error


def leftovers(settings: Settings, service: str | None = None) -> list[psutil.Process]:
    """Processes of this home's services (or of one) that live on without a supervisor, known by their environment.

    One that has forbidden its environment to be read (Airflow's tasks do) is known by its session, of all services.
    """
    path = session_path(settings)
    session = int(path.read_text()) if path.exists() else None
    found = []
    for process in psutil.process_iter():
        try:
            mine = _is_mine(settings, process.environ(), service)
        except psutil.AccessDenied:
            mine = service is None and session is not None and _in_session(process, session)
        except psutil.Error:
            continue
        if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def _is_mine(settings: Settings, variables: dict[str, str], service: str | None) -> bool:
    name = variables.get("ANABRANCH_SERVICE")
    return variables.get("ANABRANCH_HOME") == str(settings.home) and bool(name) and service in (None, name)


def _in_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.uids().real == os.geteuid()
    except (OSError, psutil.Error):
        return False


def end_leftovers(settings: Settings, service: str | None = None, patience_seconds: float = 20) -> int:
    """End what :func:`leftovers` finds: asked first, then killed. Returns how many there were."""
    processes = leftovers(settings, service)
    for process in processes:
        _signal(process, kill=False)
    _, alive = psutil.wait_procs(processes, timeout=patience_seconds)
    for process in alive:
        _signal(process, kill=True)
    psutil.wait_procs(alive, timeout=10)
    return len(processes)


def _signal(process: psutil.Process, kill: bool) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill() if kill else process.terminate()


def restart(settings: Settings, name: str) -> None:
    """Stop a service if it runs, and start it."""
    server = proxy(settings)
    if states(settings).get(name, {}).get("statename") in ("STARTING", "RUNNING", "BACKOFF"):
        server.stopProcess(name, True)
    server.startProcess(name, False)
