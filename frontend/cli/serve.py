"""`paged-serve serve`: resolve the configuration, listen, start, show the banner, supervise until the end."""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import click
import msgspec

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config

from ..config.options import config_options, resolve
from ..config.vllm.flags import WITHOUT_EFFECT, ServeCommand
from ..end_message import print_end
from ..open_files import raise_open_files_limit

log = logging.getLogger(__name__)


@click.command("serve", cls=ServeCommand)
@config_options
def command(**flags: Any) -> None:
    """Serve MODEL over HTTP: a folder, a GGUF file, a name on the Hugging Face hub, or nothing for the demo model.

    A flag takes precedence over the environment (PAGED_SERVE_MAX_NUM_SEQS for --max-num-seqs), that over --config FILE,
    and that over the default in [brackets]. Numbers may end in K, M, G or T for powers of 1024, or in k, m, g or t for
    powers of 1000: 4G, 16k.
    """
    resolved = resolve(flags)
    of_flags = click.get_current_context().meta.get(WITHOUT_EFFECT, [])
    sys.exit(serve(resolved.config, [*of_flags, *resolved.without_effect]))


def serve(config: Config, without_effect: Sequence[str] = ()) -> int:
    """Run a server in the foreground until a signal ends it. Returns the exit code. Raises ConfigError if refused.

    `without_effect`: options to mention in the log, because they have no effect here.
    """
    from paged_serve.protocol.process.log import configure_logging
    from paged_serve.protocol.process.log_format import in_colour, in_json

    from ..listen import close_http_socket, http_url, open_http_socket
    from ..progress_bar import LoadingBar
    from ..supervision.supervisor import Supervisor
    from .banner import banner, banner_rows

    lines = configure_logging("supervisor", config.server.log_level)
    if without_effect:
        log.warning("these options have no effect here: %s", ", ".join(without_effect))
    http_socket = open_http_socket(config.server)
    with ExitStack() as on_refusal:
        on_refusal.callback(close_http_socket, http_socket, config.server)
        config, is_demo = with_local_model(config)
        on_refusal.pop_all()
    raise_open_files_limit()
    supervisor = Supervisor(config, http_socket)
    bar = LoadingBar(write=partial(lines.write, end=""))

    def show_banner(facts: dict[str, str]) -> None:
        bar.clear()
        shown = config, facts, http_url(config.server, http_socket), supervisor.run_dir
        if in_json():
            rows = dict(banner_rows(*shown, is_demo=is_demo))
            log.info("paged-serve is ready", extra={"fields": {"facts": rows}})
        else:
            lines.write(banner(*shown, is_demo=is_demo, colour=in_colour(sys.stderr)))

    with supervisor.signals():
        supervisor.start()
        exit_code = supervisor.run(bar, show_banner)
    bar.clear()
    if exit_code:
        print_end(supervisor.reason)
    return exit_code


def with_local_model(config: Config) -> tuple[Config, bool]:
    """`config` with folders in place of names, and whether the model is the built-in one. Raises ConfigError."""
    from ..adapters.folders import with_adapters
    from ..config.draft_folder import with_draft_model
    from ..config.model_folder import DEMO_MODEL_NAME, demo_model_folder, find_model_folder, with_home_folders

    template = config.server.chat_template
    if template and not os.path.isfile(template):
        raise ConfigError(f"chat_template={template}: there is no such file (looked at {os.path.abspath(template)})")
    asked = config.model
    folder = find_model_folder(asked.model, asked.revision, has_tokenizer=not asked.tokenizer)
    model = msgspec.structs.replace(
        asked,
        model=folder,
        tokenizer=find_tokenizer_folder(asked.tokenizer) if asked.tokenizer else folder,
        served_model_names=asked.served_model_names or (asked.model or DEMO_MODEL_NAME,),
    )
    config = with_draft_model(with_adapters(with_home_folders(msgspec.structs.replace(config, model=model))))
    return config, folder == str(demo_model_folder().resolve())


def find_tokenizer_folder(folder: str) -> str:
    """The absolute folder. Raises ConfigError when it holds no tokenizer."""
    path = os.path.realpath(os.path.expanduser(folder))
    if not os.path.isfile(os.path.join(path, "tokenizer.json")):
        raise ConfigError(f"tokenizer folder {folder} has no tokenizer.json")
    return path
