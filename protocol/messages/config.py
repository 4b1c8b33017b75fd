"""The whole configuration: frozen, bounded, resolved once in the supervisor and sent to each process in its Welcome."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .loading.adapters import MAX_LORA_RANK, MAX_LORAS
from .message import MAX_ROWS, Weight

CacheBytes = Annotated[int, Meta(ge=1 << 16, le=1 << 62)]
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Text = Annotated[str, Meta(max_length=4096)]  # a name or a path
ApiKey = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[!-~]*\Z")]  # fits an HTTP header
Texts = Annotated[tuple[Text, ...], Meta(max_length=256)]
_ADDRESS_6 = r"[0-9A-Fa-f]*(:[0-9A-Fa-f.]*)+"
_HOST = rf"(\*|(\*\.)?[A-Za-z0-9._-]+|{_ADDRESS_6}|\[{_ADDRESS_6}\])"
_PATH = r"((?!/v1(/|\Z))(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+)?"
HttpToken = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")]  # RFC 9110, 5.6.2
Origin = Annotated[str, Meta(max_length=512, pattern=r"^(\*|null|[A-Za-z][A-Za-z0-9+.-]*://[^/?#@\s,]+)\Z")]
HostPattern = Annotated[str, Meta(max_length=256, pattern=rf"^{_HOST}\Z")]
RootPath = Annotated[str, Meta(max_length=4096, pattern=rf"^{_PATH}\Z")]


class _Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the configuration's sections: unknown keys are refused by name."""


class ModelConfig(_Layer, frozen=True):
    """Which model, and in which precision."""

    model: Text = ""  # local folder, resolved; "" means the built-in demo model
    revision: Text = ""  # branch, tag or commit of a model on the hub; "" means its main branch
    # the implementation; auto: native if it supports the architecture, else that of the transformers library
    model_impl: Literal["auto", "native", "transformers"] = "auto"
    trust_remote_code: bool = False  # run the Python files of a model folder, for transformers
    served_model_names: Texts = ()  # names that requests may use; the first is reported
    tokenizer: Text = ""  # local folder; "" means `model`
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"  # auto: the checkpoint's
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # CPU kernels; auto: the fastest that the machine runs; torch: none, products in plain torch
    cpu_isa: Literal["auto", "amx", "avx512", "avx512fma", "avx2", "neon_dotprod", "neon", "portable", "torch"] = "auto"
    # the order in which CPU kernels add 16-bit products; auto: the machine's fastest, tile with AMX and dot without
    summation: Literal["auto", "dot", "tile"] = "auto"
    # auto: the checkpoint's format; int8, int4, fp8 quantize a float checkpoint on load; others require that format
    quantization: Literal[
        "auto", "int8", "int4", "fp8", "compressed-tensors", "gptq", "awq", "bitsandbytes", "bitnet", "modelopt"
    ] = "auto"
    quantization_group_size: Literal[32, 64, 128] = 32  # inputs that share a scale in int4
    quantize_lm_head: bool | None = None  # the output head as int8, or fp8; None: with int8 and int4
    max_model_len: PositiveInt | None = None  # tokens, prompt and output; None: the model's own limit
    # auto: generation_config.json sets the defaults of requests; none, or its alias vllm: it is not read
    generation_config: Literal["auto", "none", "vllm"] = "auto"
    override_generation_config: Text = ""  # JSON object of values in place of the file's
    # the hidden states that an embedding is made of; auto: from the files of sentence-transformers, or the model's kind
    pooling: Literal["auto", "last", "mean", "cls"] = "auto"
    cache_dir: Text = ""  # holds compiled CUDA kernels, in paged-serve/cubins; "" means ~/.cache
    plugins: Texts = ()  # entry points of other packages that may be loaded, of any kind
    platform: Text = ""  # of a plugin; replaces `device`
    packed_weights_dir: Text = ""  # holds weights packed for the CPU kernels; "": not kept
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0  # base seed of requests that set none


class CacheConfig(_Layer, frozen=True):
    """The paged KV cache."""

    block_size: Literal[16, 32, 64] = 16  # tokens per block
    kv_cache_memory_bytes: CacheBytes | None = None  # per rank; None: measured share of free memory
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.9  # of a CUDA device's memory, weights included
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = "auto"  # auto: the model's; int8: CPU only; fp8: CUDA only
    num_blocks: PositiveInt | None = None  # per rank; overrides the measured number; for tests
    enable_prefix_caching: bool = True
    share_prefixes: bool = False  # also between API keys


class KVEventsConfig(_Layer, frozen=True):
    """Events of the prefix cache, published for routers and other followers."""

    endpoint: Text = ""  # tcp://ADDRESS:PORT or ipc://PATH that the engine core binds; "": no events
    replay_endpoint: Text = ""  # likewise, for requests for lost batches and snapshots; "": none
    topic: Text = ""  # first frame of each message
    buffer_batches: PositiveInt = 10_000  # batches kept for replays


class SchedulerConfig(_Layer, frozen=True):
    """How requests share a step."""

    max_num_seqs: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 128  # rows that run concurrently
    max_num_batched_tokens: PositiveInt = 2048  # tokens per step
    policy: Literal["fcfs", "priority"] = "fcfs"  # priority: lower value first, ties by arrival
    pipeline_depth: Annotated[int, Meta(ge=1, le=8)] = 2  # steps in flight
    max_num_queued_requests: PositiveInt = 1024
    max_num_queued_tokens: PositiveInt = 1 << 22
    # unacknowledged outputs; beyond it the clients with the most are not scheduled until they acknowledge
    max_unacknowledged_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 62)] = 1 << 28


class SpeculationConfig(_Layer, frozen=True):
    """Several tokens of a row in one step, by verified drafts. Outputs are the same bytes with any settings."""

    # where drafts come from; ngram: the text of the row itself, after an earlier occurrence of its last tokens; suffix:
    # also earlier answers; auto: suffix on the CPU, off on other devices; draft: a smaller model; eagle3: a head that
    # reads the model's hidden states; mtp: the head for multi-token prediction in the model's own checkpoint
    method: Literal["off", "ngram", "suffix", "draft", "eagle3", "mtp", "auto"] = "auto"
    num_drafts: Annotated[int, Meta(ge=1, le=64)] = 8  # the most drafts of a row in one step
    adaptive: bool = True  # fewer, or none, where more would cost time; False: as many as allowed, whatever they cost
    history_tokens: Annotated[int, Meta(ge=0, le=1 << 24)] = 1 << 18  # of earlier answers, kept for suffix; 0: none
    draft_model: Text = ""  # the folder of the smaller model or head, which has the same vocabulary

    @property
    def needs_draft_model(self) -> bool:
        return self.method in ("draft", "eagle3")

    @property
    def computes_drafts(self) -> bool:
        """Whether a model or a head makes drafts."""
        return self.needs_draft_model or self.method == "mtp"

    def is_on(self, device: str) -> bool:
        """Whether rows speculate on `device`, as WorkerReady names it."""
        return device == "cpu" if self.method == "auto" else self.method != "off"


class KVTierConfig(_Layer, frozen=True):
    """Blocks of the KV cache kept in the host's memory, for new workers, and on disk, for later runs of the server."""

    dir: Text = ""  # folder; servers may share it; "": no tier
    max_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 62)] = 16 << 30  # per rank; the least recently used go first
    host_bytes: Annotated[int, Meta(ge=0, le=1 << 62)] = 0  # of /dev/shm, per rank; 0: no tier in memory

    @property
    def is_on(self) -> bool:
        return bool(self.dir or self.host_bytes)


class LoraConfig(_Layer, frozen=True):
    """LoRA adapters, served together with the base model."""

    max_loras: Annotated[int, Meta(ge=0, le=MAX_LORAS)] = 0  # in memory at once; 0: requests cannot use adapters
    max_lora_rank: Annotated[int, Meta(ge=1, le=MAX_LORA_RANK)] = 64
    adapters: Texts = ()  # NAME=PATH, known from the start; more can be loaded while the server runs
    enabled: bool = False  # the usual number of places if max_loras is 0
    allow_loading: bool = False  # clients may load and unload adapters: /v1/load_lora_adapter


class ParallelConfig(_Layer, frozen=True):
    """Ranks and threads."""

    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = 1
    threads_per_rank: PositiveInt | None = None  # CPU; None: cores / ranks
    pin_threads: Literal["auto", "always", "never"] = "auto"  # one core per thread; auto: if the ranks use all cores
    step_timeout_s: Annotated[float, Meta(gt=0, le=1e9)] = 300.0
    load_timeout_s: Annotated[float, Meta(gt=0, le=1e9)] = 1800.0  # without any progress, such as a loaded tensor
    standby_workers: bool = True  # one per rank, with imports done, ready to replace a lost worker


class ServerConfig(_Layer, frozen=True):
    """HTTP, limits, logs and restarts."""

    host: Text = "127.0.0.1"
    port: Port = 8000
    uds: Text = ""  # unix socket path instead of host:port
    api_keys: Annotated[tuple[ApiKey, ...], Meta(max_length=256)] = ()
    api_key_weights: Annotated[tuple[Weight, ...], Meta(max_length=256)] = ()  # in the order of the keys; absent: 1
    num_frontends: Annotated[int, Meta(ge=1, le=64)] = 1
    client_address: Text = ""  # tcp://ADDRESS:PORT for client libraries on other hosts; "": none
    client_server_key: Text = ""  # the server's *.key_secret file
    client_keys: Text = ""  # folder with the *.key files of the clients that may connect there
    max_connections: PositiveInt | None = None  # per frontend; None: as many as the limit on open files allows
    # per frontend, for incoming bodies, requests, stored answers, and outputs that slow readers have not read
    max_buffered_bytes: Annotated[int, Meta(ge=16 << 20, le=1 << 50)] = 256 << 20
    allowed_origins: Annotated[tuple[Origin, ...], Meta(max_length=256)] = ()  # of web pages; "*": any
    allowed_methods: Annotated[tuple[HttpToken, ...], Meta(max_length=256)] = ("*",)  # for requests from those origins
    allowed_headers: Annotated[tuple[HttpToken, ...], Meta(max_length=256)] = ("*",)
    allow_credentials: bool = False
    # besides localhost; empty: any host with an API key, a unix socket or an address other than loopback, else none
    allowed_hosts: Annotated[tuple[HostPattern, ...], Meta(max_length=256)] = ()
    root_path: RootPath = ""  # prefix that a proxy adds to every path, and may have removed again
    chat_template: Text = ""  # file; "" means the model's
    default_chat_template_kwargs: Text = ""  # JSON object; a request's chat_template_kwargs replace its values
    tool_call_parser: Text = "auto"  # format of tool calls in outputs; auto: from the chat template; or none
    reasoning_parser: Text = "auto"  # the same for reasoning
    allow_special_tokens: bool | None = None  # written as text in requests; None: in prompts, not in conversations
    max_logprobs: Annotated[int, Meta(ge=0, le=1024)] = 20
    sse_keep_alive_interval_s: Annotated[float, Meta(ge=0, le=1e9)] = 15.0  # comments on idle streams; 0: none
    resume_grace_s: Annotated[float, Meta(ge=0, le=1e9)] = 30.0  # for which an unread answer with a key is kept
    resume_bytes_per_answer: PositiveInt = 4 << 20  # events kept per answer with a key
    resume_bytes: PositiveInt = 64 << 20  # events kept per frontend
    store_responses: Text = ""  # folder for stored responses; "": none are stored
    stored_responses_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 50)] = 1 << 30
    stored_responses_days: Annotated[int, Meta(ge=1, le=36500)] = 30
    admin_port: Annotated[int, Meta(ge=0, le=65535)] | None = None  # on 127.0.0.1; None: the unix socket only
    public_metrics: bool = False  # /metrics on the public port too
    metrics_compat: Literal["", "vllm"] = ""
    drain_timeout_s: Annotated[float, Meta(ge=0, le=1e9)] = 30.0
    max_restarts: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 5  # within restart_window_s; one more ends the server
    restart_window_s: Annotated[float, Meta(gt=0, le=1e9)] = 60.0
    dump_dir: Text = ""  # for reports, in paged-serve/dumps; "": $XDG_STATE_HOME or ~/.local/state; "none": no reports
    lenient: bool = False  # unknown request fields become warnings instead of errors
    wake_supervisor: bool = True  # frontends and core continue a supervisor that SIGSTOP has halted
    access_log: bool = True  # one line per request
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Config(_Layer, frozen=True):
    """All settings; they are fixed before the first process starts."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    server: ServerConfig = ServerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    kv_events: KVEventsConfig = KVEventsConfig()
    lora: LoraConfig = LoraConfig()
    kv_tier: KVTierConfig = KVTierConfig()

    def for_print(self) -> str:
        """One JSON line for the log, API keys masked."""
        masked = msgspec.structs.replace(self.server, api_keys=("***",) * len(self.server.api_keys))
        return msgspec.json.encode(msgspec.structs.replace(self, server=masked)).decode()
