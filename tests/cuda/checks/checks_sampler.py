"""Quick checks of all functions of the sampler's kernels against the host's sampler; each planted bug runs them."""

import numpy as np
import torch

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.samplers import Dry, Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import NewRow
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.backends.cuda.sampling_records import raw_records
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.kernels.cuda.sampling import MAY_BE_MASKED, ROW, STATE, Blocks, SamplerKernels
from paged_serve.workers.sampling.numpy_passes import NumpyPasses
from paged_serve.workers.sampling.sampler import Sampler

from ...workers.sampling import sampling_oracle as oracle

BLOCKS = Blocks(threads=64, slice_tokens=1024)  # small, so that small vocabularies are divided, too
VOCAB_SIZE = 1300
EOS = (2, 3)
PROMPT, OUTPUT = [5, 6, 7, 5], [8, 5, 9, 9]
REQUESTS = [
    SamplingParams(temperature=0.0, logprobs=0),
    SamplingParams(logprobs=4),
    SamplingParams(temperature=0.4),
    SamplingParams(top_k=9, temperature=1.5),
    SamplingParams(top_k=1),
    SamplingParams(top_p=0.7, logprobs=-1),
    SamplingParams(top_p=1e-7),
    SamplingParams(min_p=0.3),
    SamplingParams(top_k=300, top_p=0.93, min_p=0.001, temperature=1.7),
    SamplingParams(repetition_penalty=3.0, frequency_penalty=-1.9, logprobs=3),
    SamplingParams(presence_penalty=-2.0, temperature=0.2),
    SamplingParams(logit_bias={4: 12.5, 31: 12.0, 130: -300.0, 599: 12.25}),
    SamplingParams(allowed_token_ids=(3, 12, 31, 32, 599), repetition_penalty=1.4),
    SamplingParams(allowed_token_ids=tuple(range(0, 600, 7)), top_k=100, logprobs=1),
    SamplingParams(bad_words_token_ids=((9, 9, 1), (4,), (9, 8, 2)), logit_bias={1: 40.0, 2: 39.0, 4: 41.0}),
    SamplingParams(min_tokens=5, stop_token_ids=(10,), logit_bias={10: 70.0, 2: 75.0, 11: 60.0}),
    SamplingParams(min_tokens=5, allowed_token_ids=(2, 3), temperature=0.0),
    SamplingParams(temperature=0.0, presence_penalty=1.5),
    SamplingParams(temperature=0.0, frequency_penalty=0.5),
    SamplingParams(temperature=0.0, repetition_penalty=1.2),
    SamplingParams(xtc=Xtc(probability=1.0, threshold=0.004), temperature=1.4, logprobs=2),
    SamplingParams(xtc=Xtc(probability=0.5, threshold=0.1), top_p=0.9),
    SamplingParams(xtc=Xtc(probability=1.0, threshold=0.0), top_k=23),
]
OF_TWO_LOGITS = [
    SamplingParams(logprobs=40),
    SamplingParams(logprobs=300, top_p=0.6),
    *[SamplingParams(top_k=100)] * 6,
    *[SamplingParams(top_k=300)] * 2,
    SamplingParams(top_k=1100, top_p=0.5),
    SamplingParams(top_k=100, xtc=Xtc(probability=1.0, threshold=0.002)),
    SamplingParams(top_k=30, xtc=Xtc(probability=1.0, threshold=0.002)),
    SamplingParams(xtc=Xtc(probability=1.0, threshold=0.005)),
]


def new_row(row: int, params: SamplingParams, seed: int, prompt=PROMPT, output=OUTPUT) -> NewRow:
    return NewRow(row, pack_ids([*prompt, *output]), len(prompt), 0, (pack_ids([1]),), seed, EOS, params)


def tied_logits(random: np.random.Generator, rows: int, vocab_size: int) -> np.ndarray:
    """Logits with many ties and zeros of both signs."""
    logits = (random.normal(0, 3, (rows, vocab_size)) * 4).round() / 4
    logits[logits == 0] = random.choice([0.0, -0.0], np.count_nonzero(logits == 0))
    return logits.astype(np.float32)


def check_sampler(launcher, device="cpu"):
    check_steps(launcher, device)
    check_cuts(launcher, device)
    check_border_of_min_p(launcher, device)
    check_random_numbers(launcher, device)
    check_lists_keep_to_their_place(launcher, device)
    check_repetitions(launcher, device)
    check_penalties(launcher, device)
    check_exclusions(launcher, device)


def check_steps(launcher, device="cpu", num_steps=4):
    """Launch steps before the tokens of earlier ones are known, and compare with the host's sampler."""
    requests = [*REQUESTS, *OF_TWO_LOGITS]
    random = np.random.default_rng(1)
    sampler, host = DeviceSampler(launcher, VOCAB_SIZE, device, BLOCKS), Sampler(NumpyPasses(VOCAB_SIZE))
    state, truth = (RequestRows(len(requests), 64, 16, VOCAB_SIZE) for _ in range(2))
    for row, params in enumerate(requests):
        for rows in (state, truth):
            rows.reset(new_row(row, params, seed=row))
    rows = random.permutation(len(requests))
    logits = tied_logits(random, len(rows), VOCAB_SIZE)  # the same in all steps, so that tokens repeat
    for index in np.flatnonzero(rows >= len(REQUESTS)):  # ties before and after better tokens
        logits[index], logits[index, ::17] = 1.25, 2.0
    steps = []
    for _ in range(num_steps):
        steps.append(sampler.launch(torch.from_numpy(logits.copy()).to(device), rows, state))
        state.append_tokens(rows, np.full(len(rows), 5))  # placeholders: all rows have seen this token already
    for pending in steps:
        found, expected = pending.result(), host.sample(torch.from_numpy(logits.copy()), rows, truth)
        truth.append_tokens(rows, expected.token_ids)
        assert torch.equal(pending.token_ids.cpu(), torch.from_numpy(found.token_ids))
        wrong = np.flatnonzero(found.token_ids != expected.token_ids)
        assert not len(wrong), [(requests[row], found.token_ids[wrong]) for row in rows[wrong]]
        assert (found.bad.tolist(), found.failures) == (expected.bad.tolist(), expected.failures)
        assert found.logprobs.keys() == expected.logprobs.keys()
        for index, logprobs in found.logprobs.items():
            check_logprobs(logprobs, logits[index], int(found.token_ids[index]), requests[rows[index]].logprobs)


def check_logprobs(found, logits: np.ndarray, token: int, count: int) -> None:
    ranked = np.lexsort((np.arange(len(logits)), -logits)).tolist()
    assert found.token_ids[0].tolist() == [token, *ranked[: len(logits) if count < 0 else count]]
    assert found.ranks.tolist() == [ranked.index(token) + 1]
    exact = torch.log_softmax(torch.from_numpy(logits).double(), 0)[found.token_ids[0].astype(np.int64)]
    assert np.abs(found.logprobs[0] - exact.numpy()).max() < 2e-6


def cut_states(
    launcher, logits: np.ndarray | torch.Tensor, records: np.ndarray, device="cpu", blocks=BLOCKS, exclude=False
) -> np.ndarray:
    """STATEs after the scan, both cuts and XTC's exclusion, which changes `logits` on the device."""
    kernels = SamplerKernels(launcher, logits.shape[1], torch.device(device), blocks)
    rows = torch.from_numpy(records.view(np.uint8).reshape(len(records), -1)).to(device)
    token_ids = torch.empty(len(records), dtype=torch.int64, device=device)
    bad = torch.empty(len(records), dtype=torch.uint8, device=device)
    passes = kernels.over(torch.as_tensor(logits).to(device), rows, token_ids, bad)
    passes.scan()
    passes.cut(by_mass=False)
    passes.cut(by_mass=True)
    if exclude:
        passes.exclude()
    return passes.states.cpu().numpy().view(STATE)[:, 0]


def plain_records(count: int) -> np.ndarray:
    records = np.zeros(count, ROW)
    records["temperature"] = records["top_p"] = 1
    records["log_min_p"] = -np.inf
    records["source"] = records["index"] = np.arange(count)
    return records


def logit_of(key: int) -> np.float32:
    bits = key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF
    return np.array(bits, np.uint32).view(np.float32)[()]


def kept_tokens(logits: np.ndarray, state: np.void, log_min_p: float, temperature: float) -> list[int]:
    """The tokens that a state leaves in the draw."""
    border = logit_of(int(state["cut_key"])) if state["cut_key"] else -np.inf
    kept = np.flatnonzero(logits > border).tolist() + np.flatnonzero(logits == border)[: state["cut_ties"]].tolist()
    scaled = (logits - logits.max()) / np.float32(temperature)
    return sorted(token for token in kept if scaled[token] >= np.float32(log_min_p))


def check_cuts(launcher, device="cpu", vocab_size=VOCAB_SIZE, blocks=BLOCKS):
    """Check the sets that top-k, top-p and min-p keep, including ties; some rows consist only of ties."""
    random = np.random.default_rng(1)
    requests = [
        SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
        for top_k in (0, 1, 123, vocab_size - 1)
        for top_p, min_p, temperature in ((1.0, 0.0, 1.0), (0.5, 0.0, 1.3), (0.9, 0.02, 0.8), (0.999, 0.3, 2.0))
    ]
    logits = tied_logits(random, len(requests), vocab_size)
    logits[::5] = 1.25  # all tokens have the same mass
    records = plain_records(len(requests))
    for name in ("top_k", "top_p", "temperature"):
        records[name] = [getattr(params, name) for params in requests]
    records["log_min_p"] = [np.log(params.min_p) if params.min_p else -np.inf for params in requests]
    for row, state in enumerate(cut_states(launcher, logits, records, device, blocks)):
        expected = sorted(oracle.kept_weights(list(logits[row]), requests[row]))
        found = kept_tokens(logits[row], state, records["log_min_p"][row], requests[row].temperature)
        assert found == expected, requests[row]


def check_border_of_min_p(launcher, device="cpu"):
    """A token exactly min-p times as likely as the best one is kept; without it top-p would keep only the best one."""
    logits = np.array([[1.0, 0.5, 0.25], [1.0, 0.5, 0.25]], np.float32)
    records = plain_records(2)
    records["log_min_p"], records["top_p"] = (-0.5, np.nextafter(np.float32(-0.5), np.float32(0))), 0.9
    states = cut_states(launcher, logits, records, device)
    assert [logit_of(int(key)) for key in states["cut_key"]] == [0.5, 1.0]


def check_random_numbers(launcher, device="cpu"):
    """Uniform numbers are those of the host; non-finite logits are detected, but masked rows may have -infinity."""
    seeds, positions = [0, 1, 2**40 + 17, 2**63 - 1], [0, 5, 2**33 + 1, 77]
    logits = np.zeros((8, VOCAB_SIZE), np.float32)
    logits[4:, 1250] = np.nan, np.inf, -np.inf, -np.inf
    records = plain_records(8)
    records["seed"], records["position"] = seeds * 2, positions * 2
    records["flags"][6:] = 0, MAY_BE_MASKED
    states = cut_states(launcher, logits, records, device)
    expected = [oracle.uniform(seed, position) * 2**53 for seed, position in zip(seeds, positions, strict=True)]
    assert (states["uniform"] >> np.uint64(11)).tolist() == expected * 2
    assert states["bad"].tolist() == [0, 0, 0, 0, 1, 1, 1, 0]
    check_forbidden_faults(launcher, device)


def check_forbidden_faults(launcher, device="cpu"):
    """A logit that is not finite makes its row bad even if the request does not allow its token, or allows none."""
    three, not_nine = SamplingParams(allowed_token_ids=(3,)), SamplingParams(bad_words_token_ids=((9,),))
    none = SamplingParams(allowed_token_ids=(3,), bad_words_token_ids=((3,),))
    for fault in (np.nan, np.inf, -np.inf):
        state = RequestRows(3, 64, 16, VOCAB_SIZE)
        for row, params in enumerate((none, not_nine, three)):
            state.reset(new_row(row, params, seed=row))
        logits = np.zeros((3, VOCAB_SIZE), np.float32)
        logits[:2, 9] = fault
        sampler = DeviceSampler(launcher, VOCAB_SIZE, device, BLOCKS)
        sampled = sampler.sample(torch.from_numpy(logits).to(device), np.arange(3), state)
        assert (sampled.bad.tolist(), sampled.failures) == ([0, 1], {})
        assert sampled.token_ids.tolist() == [0, 0, 3]


def check_repetitions(launcher, device="cpu"):
    """A token that would continue repetitions is penalised by the longest one, in addition to its bias."""
    dry = Dry(multiplier=1.0, base=2.0, allowed_length=1)
    params = SamplingParams(temperature=0.0, dry=dry, logit_bias={11: 2.5, 12: 2.0, 13: 0.75})
    state = RequestRows(1, 64, 16, VOCAB_SIZE)
    state.reset(new_row(0, params, seed=0, prompt=[7, 8, 11, 9, 8, 12], output=[7, 8]))  # 11 loses 2, 12 loses 1
    sampler = DeviceSampler(launcher, VOCAB_SIZE, device, BLOCKS)
    logits = torch.zeros((1, VOCAB_SIZE), device=device)
    assert sampler.needs_tokens(np.arange(1), state)
    assert sampler.sample(logits, np.arange(1), state).token_ids.tolist() == [12]


PENALTIES = ({"presence_penalty": 1.5}, {"frequency_penalty": 0.5})


def check_penalties(launcher, device="cpu"):
    """A token seen once gets the presence penalty; one seen a third time is counted in its old entry."""
    requests = [
        SamplingParams(temperature=0.0, presence_penalty=1.5),
        SamplingParams(temperature=0.0, frequency_penalty=0.5),
    ]
    state = RequestRows(2, 64, 16, VOCAB_SIZE)
    for row, params in enumerate(requests):
        state.reset(new_row(row, params, seed=0))  # its output has one 8 and two 9
    sampler = DeviceSampler(launcher, VOCAB_SIZE, device, BLOCKS)
    logits = torch.zeros((2, VOCAB_SIZE), device=device)
    logits[0, 8], logits[0, 30], logits[1, 9], logits[1, 20] = 1.0, 0.5, 2.0, 0.45
    steps = []
    for _ in range(3):
        steps.append(sampler.launch(logits.clone(), np.arange(2), state))
        state.append_tokens(np.arange(2), np.full(2, 5))
    assert [step.result().token_ids[1] for step in steps] == [9, 9, 20]
    assert steps[0].result().token_ids[0] == 30


def check_exclusions(launcher, device="cpu"):
    """Check the tokens that XTC leaves in the draw, including ties at the cut and above it."""
    requests = [
        SamplingParams(top_k=top_k, top_p=top_p, temperature=2.0, xtc=Xtc(probability=probability, threshold=threshold))
        for top_k in (0, 30, 200)
        for top_p in (1.0, 0.6)
        for probability, threshold in ((1.0, 0.0), (1.0, 0.0045), (1.0, 0.3), (0.5, 0.002))
    ]
    of_two = np.full((len(requests), VOCAB_SIZE), 1.25, np.float32)
    of_two[:, ::17] = 2.0
    for logits in (tied_logits(np.random.default_rng(2), len(requests), VOCAB_SIZE), of_two):
        check_exclusions_from(launcher, logits, requests, device)


def check_exclusions_from(launcher, logits: np.ndarray, requests: list[SamplingParams], device) -> None:
    records = plain_records(len(requests))
    records["seed"], records["temperature"] = np.arange(len(requests)), 2.0
    for name in ("top_k", "top_p"):
        records[name] = [getattr(params, name) for params in requests]
    records["xtc_probability"] = [params.xtc.probability for params in requests]
    records["xtc_threshold"] = [params.xtc.threshold for params in requests]
    left = torch.from_numpy(logits.copy()).to(device)
    states = cut_states(launcher, left, records, device, exclude=True)
    for row, (params, state) in enumerate(zip(requests, states, strict=True)):
        expected = oracle.kept_weights(list(logits[row]), params)
        if oracle.uniform(row, 0, 1) < params.xtc.probability:
            expected = oracle.without_top_choices(expected, params.xtc.threshold)
        found = set(kept_tokens(left[row].cpu().numpy(), state, -np.inf, 1.0))
        found -= set(np.flatnonzero(logits[row] == logit_of(int(state["cut_key"])))[: state["skipped_ties"]].tolist())
        assert found == set(expected), params


def check_lists_keep_to_their_place(launcher, device="cpu", count=5, room=64):
    """In a row of equal logits exactly the first tokens are listed, and nothing is written after them."""
    logits = torch.zeros((1, VOCAB_SIZE), device=device)
    records = raw_records(np.zeros(1, np.int64), np.full(1, count), VOCAB_SIZE)
    sent = torch.from_numpy(records.view(np.uint8).reshape(1, -1)).to(device)
    lists = torch.full((count + room,), -1, dtype=torch.int64, device=device)
    kernels = SamplerKernels(launcher, VOCAB_SIZE, torch.device(device), BLOCKS)
    token_ids = torch.zeros(1, dtype=torch.int64, device=device)
    passes = kernels.over(logits, sent, token_ids, lists=lists)
    passes.scan()
    passes.rank()
    passes.cut(by_mass=False)
    passes.gather()
    listed = lists.cpu().numpy()
    assert sorted((listed[:count].view(np.uint64) & np.uint64(0xFFFFFFFF)).tolist()) == list(range(count))
    assert (listed[count:] == -1).all()
