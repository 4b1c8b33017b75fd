"""The frontend's process: serves first, then loads the model's text side and finds the engine."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from paged_serve.protocol.messages import control
from paged_serve.protocol.messages.stats import SchedulerStats
from paged_serve.protocol.process.file_stamps import unchanged
from paged_serve.protocol.process.lifecycle import ChildProcess
from paged_serve.protocol.process.lifeline import is_stopped
from paged_serve.protocol.process.supervisor_watch import SupervisorWatch
from paged_serve.protocol.transport.authentication import read_secret
from paged_serve.protocol.transport.run_dir import FRONTEND_SOCKET, POISON_TEXTS

from ...admission import Admission, shutting_down
from ...buffer_budget import BufferBudget
from ...client.async_client import AsyncClient
from ...listen import open_unix
from ...open_files import max_connections_for, raise_open_files_limit
from ..connections.connection_buffers import ConnectionBuffers
from ..connections.connection_limit import ConnectionLimit
from ..exchange.access_log import configure_access_log
from ..exchange.auth import tenants_of
from ..idempotency.other_frontends import REPLACED_WITHIN_S, OtherFrontends, PassedOn
from .admin_server import AdminServer
from .app import Application
from .early_health import EarlyHealth
from .stat_loggers import StatLoggers
from .throughput_log import ThroughputLog
from .uvicorn_server import UvicornServer, uvicorn_config

if TYPE_CHECKING:
    from ...text.poison_texts import PoisonTexts
    from ..routes.router import Router
    from ..service import Service, TextSide

log = logging.getLogger(__name__)

SILENT_AFTER_S = 1.2  # the engine sends something every 250 ms
BEAT_S = 0.25
YOUNG_COLLECTIONS_PER_FULL = 1000  # a full one takes 0.15 s with 10,000 connections, and frees next to nothing
ANSWERED_WITHIN_S = 0.3  # from a stop until requests are broken off; the supervisor stops the engine after 0.5 s
CONNECT_WITHIN_S = 1e9  # the supervisor decides when a start has failed


class _Server(UvicornServer):
    """Takes over from EarlyHealth."""

    def __init__(self, config: uvicorn.Config, early_health: EarlyHealth):
        super().__init__(config)
        self._early_health = early_health

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for link in self._early_health.leave():
            await asyncio.get_running_loop().connect_accepted_socket(self.new_connection, link)


class FrontendProcess:
    def __init__(self, child: ChildProcess, early_health: EarlyHealth):
        assert child.http_fd is not None, "a frontend is started with --http-fd"
        self._child = child
        self._client: AsyncClient | None = None
        scheduler = child.config.scheduler
        self._admission = Admission(scheduler.max_num_seqs + scheduler.max_num_queued_requests, self._engine_stats)
        server = child.config.server
        self._buffers = BufferBudget(server.max_buffered_bytes, len(server.api_keys) > 1)
        router_wait_s = REPLACED_WITHIN_S if child.epoch else 0.0  # hide the restart from requests
        self._app = Application(
            server,
            self._admission,
            self._engine_ready,
            self._progress_is_made,
            router_wait_s,
            read_secret(child.run_dir),
            self._buffers,
        )
        self._socket = socket.socket(fileno=child.http_fd)
        self._socket.setblocking(False)
        max_connections = server.max_connections or max_connections_for(raise_open_files_limit(), server.num_frontends)
        self._connection_limit, self._sibling_limit = ConnectionLimit(max_connections), ConnectionLimit(max_connections)
        buffers = ConnectionBuffers(self._buffers)
        page_headers = self._app.page_headers
        self._server = _Server(uvicorn_config(self._app, self._connection_limit, buffers, page_headers), early_health)
        self._sibling_server = UvicornServer(
            uvicorn_config(PassedOn(self._app), self._sibling_limit, buffers, page_headers)
        )
        if server.num_frontends > 1:
            check_draining = self._admission.check_draining
            self._app.other_frontends = OtherFrontends(child.run_dir, child.index, server.num_frontends, check_draining)
        self._admin = AdminServer(server, child.run_dir, child.index, is_replacement=child.epoch > 0)
        self._supervisor_watch = SupervisorWatch(os.getppid(), server.wake_supervisor)
        self._throughput_log = ThroughputLog() if child.index == 0 else None
        model = child.config.model
        names = model.served_model_names or (Path(model.model).name,)
        self._stat_loggers = StatLoggers(model.plugins if child.index == 0 else (), names[0])
        configure_access_log(server.access_log)
        self._poison_texts: PoisonTexts | None = None  # once the tokenizer is loaded
        self._reported_drained = False
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Run until the supervisor sends Stop. Raises when this process has become useless."""
        loop = asyncio.get_running_loop()
        signal_fd = self._child.control.socket.fileno()
        loop.add_reader(signal_fd, self._read_control)
        tasks = {
            loop.create_task(self._serve()),
            loop.create_task(self._admin.serve()),
            loop.create_task(self._serve_other_frontends()),
            loop.create_task(self._load()),
            loop.create_task(self._beat()),
        }
        try:
            while not self._child.stop_requested:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for server in (self._server, self._sibling_server, self._admin.server):
                server.should_exit = server.force_exit = True
            if self._stopped.is_set():
                for acceptor in self._server.servers:
                    acceptor.refuse()
                await self._end_requests()
            if self._child.stop_requested:
                self._break_connections()
            loop.remove_reader(signal_fd)
            if self._client is not None:
                await self._client.close()

    def _engine_ready(self) -> bool:
        client = self._client
        return client is not None and client.ready and client.silence_s < SILENT_AFTER_S

    def _engine_stats(self) -> SchedulerStats | None:
        return self._client.stats if self._client is not None and self._engine_ready() else None

    def _progress_is_made(self) -> bool:
        """Whether there are workers, and a supervisor to replace them."""
        return self._client is not None and self._client.computes and not is_stopped(os.getppid())

    async def _serve(self) -> None:
        await self._server.serve(sockets=[self._socket])
        if not self._child.stop_requested:
            raise RuntimeError("the HTTP server has stopped by itself")

    async def _serve_other_frontends(self) -> None:
        """Serve requests passed on by other frontends; returns only at the end, even without other frontends."""
        if self._app.other_frontends is None:
            await self._stopped.wait()
            return
        listener = open_unix(f"{self._child.run_dir}/{FRONTEND_SOCKET.format(self._child.index)}")
        listener.setblocking(False)
        await self._sibling_server.serve(sockets=[listener])

    async def _load(self) -> None:
        child, loop = self._child, asyncio.get_running_loop()
        connecting = loop.create_task(
            AsyncClient.connect(
                child.run_dir,
                role="frontend",
                index=child.index,
                timeout_s=CONNECT_WITHIN_S,
                context=child.context,
            )
        )
        text, service, make_routers = await loop.run_in_executor(None, _load_text, child)
        self._poison_texts = text.tokenizer.poison_texts
        self._client = self._buffers.outputs = await connecting
        self._client.on_outputs = self._buffers.outputs_arrived
        router, self._admin.router = make_routers(
            service.of(
                text,
                self._client,
                self._admission,
                child.index,
                child.run_dir,
                self._buffers,
                is_replacement=child.epoch > 0,
            )
        )
        self._app.router = router
        gc.freeze()  # objects alive now stay alive, and collecting them would hold up all requests
        gc.set_threshold(*gc.get_threshold()[:2], YOUNG_COLLECTIONS_PER_FULL)
        tasks = {"tasks": ", ".join(self._client.limits.tasks)}
        child.control.send(control.Ready(text.facts() | tasks | self._admin.facts()))
        log.info("ready max_model_len=%d", self._client.limits.max_model_len)
        tenants = tenants_of(child.config.server, read_secret(child.run_dir))
        has_deadly = await router.resume_responses(tenants, predecessor_failed=child.predecessor_failed)
        if has_deadly or (self._poison_texts is not None and self._poison_texts.has_found):
            child.control.send(control.PoisonEnded())

    async def _beat(self) -> None:
        """Send heartbeats, and read control messages in case the socket's signal was missed."""
        step = 0
        while not self._child.stop_requested:
            step += 1
            now = time.monotonic()
            if self._poison_texts is not None:  # while files are loaded, silence shows that they do not arrive
                self._child.heartbeat(now, step)
                self._poison_texts.check()
            self._supervisor_watch.check(now)
            if self._throughput_log is not None:
                self._throughput_log.check(now, self._engine_stats())
            self._stat_loggers.check(self._engine_stats())
            self._read_control()
            if self._client is not None and self._client.failure is not None:
                raise self._client.failure
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._stopped.wait()

    def _read_control(self) -> None:
        while (message := self._child.control.receive(0.0)) is not None:
            match message:
                case control.Drain():
                    self._admission.draining = True
                case control.Stop():
                    self._child.request_stop()
                    self._stopped.set()
                case _:
                    log.warning("unexpected message from the supervisor: %s", type(message).__name__)
        if self._admission.drained and not self._reported_drained and not self._server.has_unsent_bytes:
            self._reported_drained = self._child.control.send(control.Drained())

    async def _end_requests(self) -> None:
        """End the requests that the service can no longer finish with an error, which tells when to retry."""
        if self._client is not None:
            await self._client.close(shutting_down())
        tasks = self._server.server_state.tasks | self._sibling_server.server_state.tasks
        if tasks:  # a request whose body has yet to arrive, or a slow reader, is not waited for
            await asyncio.wait(tasks, timeout=ANSWERED_WITHIN_S)

    def _break_connections(self) -> None:
        """Break connections when only this process ends: clients retry after a break, but maybe not after an error.

        Of a service that ends, those that are left.
        """
        for server, limit in ((self._server, self._connection_limit), (self._sibling_server, self._sibling_limit)):
            for listener in server.servers if server.started else ():
                listener.close()  # new connections wait for the successor
            limit.is_closed = True
            connections: Any = server.server_state.connections
            for connection in list(connections):
                connection.transport.abort()


def _load_text(
    child: ChildProcess,
) -> "tuple[TextSide, type[Service], Callable[[Service], tuple[Router, Router]]]":
    from ...text.poison_texts import PoisonTexts
    from ..routes.router import make_routers  # imported late, in a thread: /live answers meanwhile
    from ..service import Service, TextSide

    with unchanged(child.files):
        text = TextSide.load(child.config, child.run_dir)
        record, num_frontends = Path(child.run_dir) / POISON_TEXTS, child.config.server.num_frontends
        text.tokenizer.poison_texts = PoisonTexts(
            record, child.index, num_frontends, predecessor_failed=child.predecessor_failed
        )
        if text.template is not None:
            text.template.start()
    return text, Service, make_routers


def serve(early_health: EarlyHealth, child: ChildProcess) -> None:
    """The process's body, for run_child. `early_health` answers until the server does."""
    process = FrontendProcess(child, early_health)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(process.run())
