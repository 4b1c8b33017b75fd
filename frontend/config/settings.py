"""Every setting of the configuration: its flags, its place in Config, its line in the help.

The command line's options, the environment variables and the keys of a configuration file all come from this table.
"""

from .lora_settings import LORA_SETTINGS
from .server_settings import CONVERSATION_SETTINGS, SERVER_SETTINGS, STORED_RESPONSES_SETTINGS, WEB_SETTINGS
from .setting import Setting, in_group
from .speculation_settings import SPECULATION_SETTINGS

_MODEL = in_group(
    "Model",
    Setting("model.model", "The same as the argument MODEL.", "MODEL"),
    Setting("model.revision", "Branch, tag or commit of a model on the hub.", "REVISION"),
    Setting(
        "model.served_model_names",
        "Name of the model in requests; repeatable.",
        "NAME",
        flags=("--served-model-name",),
    ),
    Setting(
        "model.tokenizer",
        "Folder of a tokenizer to use instead of the model's; its eos_token ends outputs, too.",
        "FOLDER",
    ),
    Setting("model.dtype", "Precision; auto: the checkpoint's."),
    Setting("model.device", "Where the model runs; auto: CUDA if available."),
    Setting("model.platform", "Plugin that runs the model, instead of CPU or CUDA.", "NAME"),
    Setting("model.plugins", "Plugin of an installed package to load; repeatable.", "NAME", flags=("--plugin",)),
    Setting(
        "model.quantization",
        "int8, int4 and (on CUDA devices) fp8 quantize a float checkpoint on load; the names of other formats require "
        "a checkpoint in that format; auto: the checkpoint's own.",
        flags=("--quantization", "-q"),
    ),
    Setting("model.quantization_group_size", "Number of inputs that share a scale in int4."),
    Setting(
        "model.quantize_lm_head",
        "Quantize the output head too, to int8, or with fp8 to fp8; default: on with --quantization int8 and int4.",
    ),
    Setting(
        "model.max_model_len",
        "Most tokens of a prompt and its output together; default: the model's limit.",
        "TOKENS",
    ),
    Setting(
        "model.generation_config",
        "Take the defaults of requests from the model's generation_config.json (auto), or ignore it (none or vllm).",
    ),
    Setting(
        "model.override_generation_config",
        'JSON object of defaults of requests, in place of the file\'s: {"temperature": 0.6}.',
        "JSON",
    ),
    Setting(
        "model.model_impl",
        "Which code runs the model: ours (native) or the transformers library's; auto: ours if it supports the model.",
    ),
    Setting("model.trust_remote_code", "Let the transformers library run Python code that comes with a model."),
    Setting(
        "model.pooling",
        "Tokens that make an embedding: the last, the mean of all, or the first (cls); auto: as the model says.",
    ),
    Setting("model.seed", "Seed from which requests without one derive theirs.", "N"),
)
_MEMORY = in_group(
    "Memory",
    Setting(
        "cache.kv_cache_dtype",
        "int8 (CPU kernels) and fp8 (CUDA devices) halve the KV cache of 16-bit models; auto: the model's dtype.",
    ),
    Setting(
        "cache.block_size",
        "Tokens per block of the KV cache; a model with recurrent layers may take a multiple of this.",
    ),
    Setting(
        "cache.gpu_memory_utilization",
        "Share of a CUDA device's memory for weights, activations and KV cache.",
        "SHARE",
    ),
    Setting(
        "cache.kv_cache_memory_bytes",
        "Size of each rank's KV cache, like 4G or 512M; default: a share of the free memory.",
        "BYTES",
    ),
    Setting(
        "cache.num_blocks",
        "Number of KV cache blocks; default: as many as fit.",
        "N",
        flags=("--num-blocks", "--num-gpu-blocks-override"),
    ),
    Setting("cache.enable_prefix_caching", "Reuse the KV cache of shared prefixes."),
    Setting(
        "cache.share_prefixes",
        "Share prefixes between API keys, too: faster, but response times reveal to one key what another has asked.",
    ),
)
_KV_EVENTS = in_group(
    "KV events",
    Setting(
        "kv_events.endpoint",
        "Address to publish changes of the prefix cache at, for routers: tcp://ADDRESS:PORT or ipc://PATH.",
        "ADDRESS",
        flags=("--kv-events-endpoint",),
    ),
    Setting(
        "kv_events.replay_endpoint",
        "Address that answers requests for lost events or for a snapshot.",
        "ADDRESS",
        flags=("--kv-events-replay-endpoint",),
    ),
    Setting(
        "kv_events.topic",
        "Topic of the events: the first frame of each message.",
        "TEXT",
        flags=("--kv-events-topic",),
    ),
    Setting(
        "kv_events.buffer_batches",
        "Number of batches of events kept for replays.",
        "N",
        flags=("--kv-events-buffer",),
    ),
)
_KV_TIERS = in_group(
    "KV tiers",
    Setting(
        "kv_tier.dir",
        "Folder that keeps blocks of the prefix cache across restarts.",
        "FOLDER",
        flags=("--kv-tier-dir",),
    ),
    Setting(
        "kv_tier.host_bytes",
        "Size of each rank's tier in the host's memory, which lasts until the server stops, like 2G; 0: none.",
        "BYTES",
        flags=("--kv-tier-host-bytes",),
    ),
    Setting("kv_tier.max_bytes", "Size of each rank's tier on disk.", "BYTES", flags=("--kv-tier-bytes",)),
)
_SCHEDULING = in_group(
    "Scheduling",
    Setting("scheduler.max_num_seqs", "Most sequences that run at once.", "N"),
    Setting("scheduler.max_num_batched_tokens", "Most tokens in one step.", "N"),
    Setting(
        "scheduler.policy",
        "Order of waiting requests: by arrival (fcfs) or by priority.",
        flags=("--scheduling-policy",),
    ),
    Setting("scheduler.pipeline_depth", "Most steps in flight.", "N"),
    Setting(
        "scheduler.max_num_queued_requests",
        "Most waiting requests; further ones are refused with 429 and Retry-After.",
        "N",
    ),
    Setting(
        "scheduler.max_num_queued_tokens",
        "Most prompt tokens of waiting requests; further requests are refused with 429 and Retry-After.",
        "N",
    ),
    Setting(
        "scheduler.max_unacknowledged_bytes",
        "Most output that waits for acknowledgement; beyond it, the clients that hold the most are paused.",
        "BYTES",
    ),
)
_DEVICES = in_group(
    "Devices",
    Setting(
        "parallel.tensor_parallel_size",
        "Number of ranks that the model is divided among, one process each.",
        "N",
        flags=("--tensor-parallel-size", "--tp", "-tp"),
    ),
    Setting(
        "parallel.threads_per_rank",
        "CPU threads per rank; default: its share of the cores, or 1 for a small model.",
        "N",
        flags=("--threads",),
    ),
    Setting("parallel.pin_threads", "Whether threads are bound to cores; auto: if they use all cores."),
    Setting(
        "model.cpu_isa",
        "Instruction set of the CPU kernels; auto: the best that the machine supports; torch: no kernels.",
    ),
    Setting(
        "model.summation",
        "Order of 16-bit sums on the CPU: AMX's (tile) or AVX-512's (dot); machines agree if their order does.",
    ),
    Setting(
        "model.cache_dir",
        "Folder for compiled CUDA kernels, in paged-serve/cubins; default: ~/.cache.",
        "FOLDER",
        extra_environment="XDG_CACHE_HOME",
    ),
    Setting(
        "model.packed_weights_dir",
        "Folder for weights packed for the CPU kernels, so that later starts load faster.",
        "FOLDER",
    ),
    Setting(
        "parallel.step_timeout_s",
        "Time after which a step counts as hung.",
        "SECONDS",
        flags=("--step-timeout",),
    ),
    Setting(
        "parallel.load_timeout_s",
        "Time without progress (a tensor, a kernel) after which a process that loads counts as hung.",
        "SECONDS",
        flags=("--load-timeout",),
    ),
    Setting(
        "parallel.standby_workers",
        "Keep a started worker without a model for each rank, to replace one that dies.",
    ),
)
SETTINGS = (
    *_MODEL,
    *CONVERSATION_SETTINGS,
    *_MEMORY,
    *_KV_EVENTS,
    *_KV_TIERS,
    *_SCHEDULING,
    *SPECULATION_SETTINGS,
    *_DEVICES,
    *LORA_SETTINGS,
    *SERVER_SETTINGS,
    *STORED_RESPONSES_SETTINGS,
    *WEB_SETTINGS,
)
BY_NAME = {flag.lstrip("-"): setting for setting in SETTINGS for flag in setting.flags}
BY_KEY = {setting.key: setting for setting in SETTINGS}
