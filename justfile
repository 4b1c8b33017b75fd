# A developer's commands, one word each. `just` lists them.

python := ".venv/bin/python"

_list:
    @just --list --unsorted

# make .venv with everything a developer needs
setup:
    python3 -m venv .venv
    .venv/bin/pip install --editable '.[dev]'

# serve the demo model on 127.0.0.1:8000
serve *options:
    .venv/bin/paged-serve {{options}}

# lint, types, generated docs, fast tests: all must be green before a commit
check *options:
    {{python}} scripts/check.py {{options}}

# write the golden logprobs again, from the portable kernels: after an intended change of arithmetic
golden:
    {{python}} -m tests.workers.order_of_sums.golden

# an sdist and a wheel for any Linux on x86-64, into dist/
wheel *options:
    {{python}} scripts/build_wheel.py {{options}}

# the fast tests alone
test *options:
    {{python}} -m pytest -q {{options}}

# every program of examples/, with the demo model
examples *options:
    {{python}} -m pytest -q tests/examples {{options}}

# the long runs: fuzz, chaos, big simulations, whole models on every instruction set
nightly *options:
    {{python}} -m pytest -q -m nightly --timeout 7200 {{options}}
    {{python}} scripts/check.py --isas

# kill, halt and crash processes under load and compare every stream: --minutes 30 --every 15 --seed 1
chaos *options:
    {{python}} scripts/faults/chaos.py {{options}}

# damaged frames through the real decoders: --count 100_000_000 --seed 0
fuzz-frames *options:
    {{python}} scripts/faults/fuzz_frames.py {{options}}

# an hour of mixed load: does anything grow that should not? --minutes 60 --seed 1
soak *options:
    {{python}} scripts/faults/soak.py {{options}}

# simulated engines under faults, every step checked: --steps 10_000_000 --seed 0
simulate *options:
    {{python}} scripts/faults/simulate.py {{options}}

# random workloads on the CPU kernels, each request compared with the same request alone: --isa avx2 --dtype int8 --count 1000
random-workloads *options:
    {{python}} scripts/faults/random_workloads.py {{options}}

# damaged HTTP requests to a real server: --count 1_000_000 --seed 1
fuzz-http *options:
    {{python}} scripts/faults/fuzz_http.py {{options}}

# JSON schemas of a checkout of guidance-ai/jsonschemabench: how many are served, and is any violated? FOLDER --every 5
maskbench *options:
    {{python}} scripts/faults/maskbench.py {{options}}

# plants small bugs in the engine core, and counts how many of them its fast tests detect
mutate *options:
    {{python}} scripts/faults/mutate.py {{options}}

# fix formatting and lint errors automatically
format:
    {{python}} -m ruff check --fix .
    {{python}} -m ruff format .

# resolve the run-time dependencies again and pin their versions in constraints.txt
pin:
    {{python}} scripts/pin.py

# write the generated pages of docs/ again
docs:
    {{python}} scripts/make_docs.py

# the benchmarks that need no peer
bench:
    {{python}} scripts/engine/bench_scheduler.py
    {{python}} scripts/kernel_speed/bench_kernels.py
    {{python}} scripts/serving/bench_client.py
    {{python}} scripts/engine/bench_step.py
    {{python}} scripts/serving/bench_load_client.py
    {{python}} -m paged_serve bench startup

# train the built-in demo model from zero (an hour and a half of one core)
demo-model output="build/demo_model":
    {{python}} scripts/demo_model/train_demo_model.py --output {{output}}

# compile the CPU kernels again, and look for accumulators that the compiler put on the stack
kernels:
    {{python}} setup.py build_ext --inplace
    {{python}} scripts/kernel_speed/check_spills.py

# the kernel tests under the address, undefined-behaviour and thread sanitizers
sanitize-kernels:
    {{python}} scripts/faults/sanitize_kernels.py

# everything that needs a GPU: the kernels' tests, compute-sanitizer, the demo model, benchmarks (at most twenty minutes)
gpu-check *options:
    {{python}} scripts/gpu_check.py {{options}}
