"""Open a form whose answer follows each change.

The server takes connections of this machine alone, and only with the token in the address that it prints.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from simulator.basics.errors import ScenarioError, SimulatorError
from simulator.cli.options import NoPlugins
from simulator.findings.answer import answer
from simulator.planner.what_if import WhatIf, choices, compared, panel, refusal, what_if
from simulator.report.views.view import compressed
from simulator.results.page.page import report_page
from simulator.sweeps.artifacts import view_of_run

_ENDED = "The server has ended. Start simulator app again, and open the address that it prints."


def command(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free port.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Whether to open the page.")] = True,
    no_plugins: NoPlugins = False,
) -> None:
    pn = panel("app")
    token = secrets.token_urlsafe(16)
    pn.extension(inline=True, notifications=True, disconnect_notification=_ENDED)
    port = port or _free_port()
    # The server's own lines would repeat addresses, with the token.
    logging.getLogger("tornado.access").disabled = True
    try:
        server = pn.serve(
            {"/": lambda: _page(token)}, port=port, address="127.0.0.1", title="simulator", show=False, start=False,
            # Other pages of the browser, whose origin is another, open no connection.
            websocket_origin=f"127.0.0.1:{port}", extra_patterns=[("/page", _whole_page(token))], verbose=False,
        )  # fmt: skip
    except OSError as error:
        raise ScenarioError(f"--port: got {port}: {error.strerror or error}; another port, or 0 for any") from None
    address = f"http://127.0.0.1:{port}/?token={token}"
    server.start()
    typer.echo(f"{address}\n(ends with Ctrl+C)")
    with door(address) as file:
        if browser:
            server.io_loop.add_callback(typer.launch, str(file))
        try:
            server.io_loop.start()
        except KeyboardInterrupt:
            typer.echo("ended")


@contextmanager
def door(address: str) -> Iterator[Path]:
    """Yield the path of a file of this user alone that sends a browser to an address.

    A command that names the address itself would show its token to everybody who lists processes.
    """
    with TemporaryDirectory(prefix="simulator-") as folder:
        file = Path(folder) / "app.html"
        file.touch(mode=0o600)
        file.write_text(f'<meta http-equiv="refresh" content="0; url={address}">', encoding="utf-8")
        yield file


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _page(token: str) -> Any:
    """Return the form for a request with the token, and a refusal for any other."""
    pn = panel("app")
    if not _allowed(token, pn.state.session_args.get("token", [b""])[0].decode(errors="replace")):
        return pn.pane.HTML("<p>The address has no valid token; open the one that simulator app printed.</p>")
    return what_if(page=lambda setting: f"page?{urlencode({'token': token} | asdict(setting))}")


def _allowed(token: str, offered: str) -> bool:
    return secrets.compare_digest(token.encode(), offered.encode())


def _whole_page(token: str) -> Any:
    """Return the handler of the page of a whole run, whose settings stand in the address."""
    from tornado.web import HTTPError, RequestHandler

    class Page(RequestHandler):
        """Answers with the page that `simulator run` writes."""

        def get(self) -> None:
            """Simulate the step in the address; 403 without the token, 400 for what cannot be."""
            if not _allowed(token, self.get_argument("token", "")):
                raise HTTPError(403)
            given = {
                field.name: self.get_argument(field.name) for field in fields(WhatIf) if self.get_arguments(field.name)
            }
            try:
                setting = WhatIf(**{name: _read(name, text) for name, text in given.items()})
                run = setting.run()
                point = compared(run)
                self.write(report_page(point, answer(point), {0: compressed(view_of_run(run))}))
            except (SimulatorError, ValueError) as error:
                self.set_status(400)
                self.set_header("Content-Type", "text/plain; charset=utf-8")
                self.write(refusal(error) if isinstance(error, SimulatorError) else str(error))

    return Page


def _read(name: str, text: str) -> Any:
    """Return a field's value from its text in an address."""
    allowed = choices()[name]
    return int(text) if not allowed or isinstance(allowed[0], int) else text
