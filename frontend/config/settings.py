"""Every setting of the configuration: its flags, its place in Config, its line in the help.

The command line's options, the environment variables and the keys of a configuration file all come from this table.
"""

from .lora_settings import LORA_SETTINGS
from .server_settings import CONVERSATION_SETTINGS, SERVER_SETTINGS, WEB_SETTINGS
from .setting import Setting
from .speculation_settings import SPECULATION_SETTINGS

SETTINGS = (
    Setting("Model", "model.model", ("--model",), "The same as the argument MODEL.", "MODEL"),
    Setting("Model", "model.revision", ("--revision",), "Branch, tag or commit of a model on the hub.", "REVISION"),
    Setting(
        "Model",
        "model.served_model_names",
        ("--served-model-name",),
        "Name of the model in requests; repeatable.",
        "NAME",
    ),
    Setting(
        "Model",
        "model.tokenizer",
        ("--tokenizer",),
        "Folder of a tokenizer to use instead of the model's; its eos_token ends outputs, too.",
        "FOLDER",
    ),
    Setting("Model", "model.dtype", ("--dtype",), "Precision; auto: the checkpoint's."),
    Setting("Model", "model.device", ("--device",), "Where the model runs; auto: CUDA if available."),
    Setting("Model", "model.platform", ("--platform",), "Plugin that runs the model, instead of CPU or CUDA.", "NAME"),
    Setting("Model", "model.plugins", ("--plugin",), "Plugin of an installed package to load; repeatable.", "NAME"),
    Setting(
        "Model",
        "model.quantization",
        ("--quantization", "-q"),
        "int8, int4 and (on CUDA devices) fp8 quantize a float checkpoint on load; the names of other formats require "
        "a checkpoint in that format; auto: the checkpoint's own.",
    ),
    Setting(
        "Model",
        "model.quantization_group_size",
        ("--quantization-group-size",),
        "Number of inputs that share a scale in int4.",
    ),
    Setting(
        "Model",
        "model.quantize_lm_head",
        ("--quantize-lm-head",),
        "Quantize the output head too, to int8, or with fp8 to fp8; default: on with --quantization int8 and int4.",
    ),
    Setting(
        "Model",
        "model.max_model_len",
        ("--max-model-len",),
        "Most tokens of a prompt and its output together; default: the model's limit.",
        "TOKENS",
    ),
    Setting(
        "Model",
        "model.generation_config",
        ("--generation-config",),
        "Take the defaults of requests from the model's generation_config.json (auto), or ignore it (none or vllm).",
    ),
    Setting(
        "Model",
        "model.override_generation_config",
        ("--override-generation-config",),
        'JSON object of defaults of requests, in place of the file\'s: {"temperature": 0.6}.',
        "JSON",
    ),
    Setting(
        "Model",
        "model.model_impl",
        ("--model-impl",),
        "Which code runs the model: ours (native) or the transformers library's; auto: ours if it supports the model.",
    ),
    Setting(
        "Model",
        "model.trust_remote_code",
        ("--trust-remote-code",),
        "Let the transformers library run Python code that comes with a model.",
    ),
    Setting(
        "Model",
        "model.pooling",
        ("--pooling",),
        "Tokens that make an embedding: the last, the mean of all, or the first (cls); auto: as the model says.",
    ),
    Setting("Model", "model.seed", ("--seed",), "Seed from which requests without one derive theirs.", "N"),
    *CONVERSATION_SETTINGS,
    Setting(
        "Memory",
        "cache.kv_cache_dtype",
        ("--kv-cache-dtype",),
        "int8 (CPU kernels) and fp8 (CUDA devices) halve the KV cache of 16-bit models; auto: the model's dtype.",
    ),
    Setting(
        "Memory",
        "cache.block_size",
        ("--block-size",),
        "Tokens per block of the KV cache; a model with recurrent layers may take a multiple of this.",
    ),
    Setting(
        "Memory",
        "cache.gpu_memory_utilization",
        ("--gpu-memory-utilization",),
        "Share of a CUDA device's memory for weights, activations and KV cache.",
        "SHARE",
    ),
    Setting(
        "Memory",
        "cache.kv_cache_memory_bytes",
        ("--kv-cache-memory-bytes",),
        "Size of each rank's KV cache, like 4G or 512M; default: a share of the free memory.",
        "BYTES",
    ),
    Setting(
        "Memory",
        "cache.num_blocks",
        ("--num-blocks", "--num-gpu-blocks-override"),
        "Number of KV cache blocks; default: as many as fit.",
        "N",
    ),
    Setting(
        "Memory", "cache.enable_prefix_caching", ("--enable-prefix-caching",), "Reuse the KV cache of shared prefixes."
    ),
    Setting(
        "Memory",
        "cache.share_prefixes",
        ("--share-prefixes",),
        "Share prefixes between API keys, too: faster, but response times reveal to one key what another has asked.",
    ),
    Setting(
        "KV events",
        "kv_events.endpoint",
        ("--kv-events-endpoint",),
        "Address to publish changes of the prefix cache at, for routers: tcp://ADDRESS:PORT or ipc://PATH.",
        "ADDRESS",
    ),
    Setting(
        "KV events",
        "kv_events.replay_endpoint",
        ("--kv-events-replay-endpoint",),
        "Address that answers requests for lost events or for a snapshot.",
        "ADDRESS",
    ),
    Setting(
        "KV events",
        "kv_events.topic",
        ("--kv-events-topic",),
        "Topic of the events: the first frame of each message.",
        "TEXT",
    ),
    Setting(
        "KV events",
        "kv_events.buffer_batches",
        ("--kv-events-buffer",),
        "Number of batches of events kept for replays.",
        "N",
    ),
    Setting(
        "KV tiers",
        "kv_tier.dir",
        ("--kv-tier-dir",),
        "Folder that keeps blocks of the prefix cache across restarts.",
        "FOLDER",
    ),
    Setting(
        "KV tiers",
        "kv_tier.host_bytes",
        ("--kv-tier-host-bytes",),
        "Size of each rank's tier in the host's memory, which lasts until the server stops, like 2G; 0: none.",
        "BYTES",
    ),
    Setting("KV tiers", "kv_tier.max_bytes", ("--kv-tier-bytes",), "Size of each rank's tier on disk.", "BYTES"),
    Setting("Scheduling", "scheduler.max_num_seqs", ("--max-num-seqs",), "Most sequences that run at once.", "N"),
    Setting(
        "Scheduling", "scheduler.max_num_batched_tokens", ("--max-num-batched-tokens",), "Most tokens in one step.", "N"
    ),
    Setting(
        "Scheduling",
        "scheduler.policy",
        ("--scheduling-policy",),
        "Order of waiting requests: by arrival (fcfs) or by priority.",
    ),
    Setting("Scheduling", "scheduler.pipeline_depth", ("--pipeline-depth",), "Most steps in flight.", "N"),
    Setting(
        "Scheduling",
        "scheduler.max_num_queued_requests",
        ("--max-num-queued-requests",),
        "Most waiting requests; further ones are refused with 429 and Retry-After.",
        "N",
    ),
    Setting(
        "Scheduling",
        "scheduler.max_num_queued_tokens",
        ("--max-num-queued-tokens",),
        "Most prompt tokens of waiting requests; further requests are refused with 429 and Retry-After.",
        "N",
    ),
    Setting(
        "Scheduling",
        "scheduler.max_unacknowledged_bytes",
        ("--max-unacknowledged-bytes",),
        "Most output that waits for acknowledgement; beyond it, the clients that hold the most are paused.",
        "BYTES",
    ),
    *SPECULATION_SETTINGS,
    Setting(
        "Devices",
        "parallel.tensor_parallel_size",
        ("--tensor-parallel-size", "--tp", "-tp"),
        "Number of ranks that the model is divided among, one process each.",
        "N",
    ),
    Setting(
        "Devices",
        "parallel.threads_per_rank",
        ("--threads",),
        "CPU threads per rank; default: its share of the cores, or 1 for a small model.",
        "N",
    ),
    Setting(
        "Devices",
        "parallel.pin_threads",
        ("--pin-threads",),
        "Whether threads are bound to cores; auto: if they use all cores.",
    ),
    Setting(
        "Devices",
        "model.cpu_isa",
        ("--cpu-isa",),
        "Instruction set of the CPU kernels; auto: the best that the machine supports; torch: no kernels.",
    ),
    Setting(
        "Devices",
        "model.summation",
        ("--summation",),
        "Order of 16-bit sums on the CPU: AMX's (tile) or AVX-512's (dot); machines agree if their order does.",
    ),
    Setting(
        "Devices",
        "model.cache_dir",
        ("--cache-dir",),
        "Folder for compiled CUDA kernels, in paged-serve/cubins; default: ~/.cache.",
        "FOLDER",
        "XDG_CACHE_HOME",
    ),
    Setting(
        "Devices",
        "model.packed_weights_dir",
        ("--packed-weights-dir",),
        "Folder for weights packed for the CPU kernels, so that later starts load faster.",
        "FOLDER",
    ),
    Setting(
        "Devices", "parallel.step_timeout_s", ("--step-timeout",), "Time after which a step counts as hung.", "SECONDS"
    ),
    Setting(
        "Devices",
        "parallel.load_timeout_s",
        ("--load-timeout",),
        "Time without progress (a tensor, a kernel) after which a process that loads counts as hung.",
        "SECONDS",
    ),
    Setting(
        "Devices",
        "parallel.standby_workers",
        ("--standby-workers",),
        "Keep a started worker without a model for each rank, to replace one that dies.",
    ),
    *LORA_SETTINGS,
    *SERVER_SETTINGS,
    *WEB_SETTINGS,
)
BY_NAME = {flag.lstrip("-"): setting for setting in SETTINGS for flag in setting.flags}
BY_KEY = {setting.key: setting for setting in SETTINGS}
