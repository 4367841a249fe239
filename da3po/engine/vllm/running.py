"""A vLLM engine in this process, stepped by one thread.

vLLM's own front end makes objects for every token of every sample at every step: for a small model a tenth of the time.
This one talks to the engine core, which gives plain lists, and makes a result when a group is whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from vllm.inputs import tokens_input
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine import FinishReason as VllmFinishReason
from vllm.v1.engine.llm_engine import LLMEngine

from da3po.engine.protocol import EngineError, RequestError, WorkAbandoned
from da3po.engine.spec import EngineSpec
from da3po.engine.vllm.arguments import engine_arguments, sampling_parameters, stop_token_ids
from da3po.engine.vllm.batch import Batch, GroupInFlight, Pulse, Sample
from da3po.types import FinishReason, WeightManifest

FINISH: Mapping[VllmFinishReason, FinishReason] = {
    VllmFinishReason.STOP: "stop",
    VllmFinishReason.LENGTH: "length",
    VllmFinishReason.ABORT: "abort",
    VllmFinishReason.ERROR: "abort",
}
FIRST_VERSION = 0


class RunningEngine:
    """Not safe for threads: one thread makes it and calls it."""

    def __init__(self, spec: EngineSpec, pulse: Pulse) -> None:
        """pulse: beats with every token."""
        torch.set_num_threads(spec.num_threads)
        self._spec = spec
        self._pulse = pulse
        self._name = f"engine {spec.engine_index}"
        self._llm = LLMEngine.from_engine_args(engine_arguments(spec))
        self._core = self._llm.engine_core
        self._tokenizer = self._llm.get_tokenizer()
        self._stop_ids = stop_token_ids(spec.model_path)
        self._samples: dict[str, Sample] = {}
        self._batches: set[Batch] = set()
        self._numbers = itertools.count()
        self._has_channel = False
        self._version: int | None = FIRST_VERSION  # None: not whole, and not to be used

    @property
    def busy(self) -> bool:
        return bool(self._samples)

    def add(self, batch: Batch) -> None:
        """Let all samples of `batch` in.

        Raises RequestError if one cannot be served, and WorkAbandoned without whole weights; then none of them enters.
        """
        version = self._usable_version()
        prepared = [
            (sample, self._prepare(group, seed))
            for group in batch.groups
            for sample, seed in zip(group.samples, group.request.seeds, strict=True)
        ]
        for group in batch.groups:
            group.weight_version = version
        self._batches.add(batch)
        for sample, request in prepared:
            self._samples[request.request_id] = sample
            batch.request_ids.append(request.request_id)
            self._core.add_request(request)

    def abort(self, batch: Batch) -> int:
        """Stop what is left of `batch`; nothing more of it is delivered. Returns the tokens that were drawn in vain."""
        running = [request_id for request_id in batch.request_ids if self._samples.pop(request_id, None) is not None]
        self._batches.discard(batch)
        self._core.abort_requests(running)
        return sum(len(sample.token_ids) for group in batch.groups if not group.whole for sample in group.samples)

    def step(self) -> None:
        """One step of the engine; groups that it completes are delivered."""
        for output in self._core.get_output().outputs:
            sample = self._samples.get(output.request_id)
            if sample is not None:  # otherwise it was aborted while this step ran
                self._take(sample, output)

    def fail(self, error: EngineError) -> None:
        for batch in self._batches:
            batch.deliver(error)
        self._batches.clear()
        self._samples.clear()

    def open_channel(self, address: str, rank: int) -> None:
        info = {
            "address": address,
            "first_receiver": rank * self._spec.config.tp,
            "timeout": self._spec.sync.timeout,
        }
        self._control("init_weight_transfer_engine", init_info=info)
        self._has_channel = True

    def receive(self, version: int) -> WeightManifest:
        """Load one publication; after any error no weights are whole, what was in flight is abandoned, and the engine
        generates nothing before another one.

        Raises EngineError while samples are in flight, unless the spec lets them go on: then what their tokens have
        left in the cache is computed again under the new weights, which so give the log-probs of all later tokens.
        Those that were drawn before keep their log-probs and their version.
        """
        if self.busy and not self._spec.in_flight_updates:
            raise EngineError(f"{self._name} cannot take weights while {len(self._samples)} samples are in flight")
        if not self._has_channel:
            raise EngineError(f"{self._name} has joined no weight channel")
        if not self.busy:
            self._drain()
        self._version = None
        try:
            manifest = self._load(version)
        except BaseException as error:
            self._abandon(WorkAbandoned(f"{self._name} could not take weights {version}: {error}"))
            raise
        self._version = version
        for batch in self._batches:
            for group in batch.groups:
                group.swap(version)
        return manifest

    def close(self) -> None:
        self._core.shutdown()

    def decode(self, token_ids: list[int]) -> str:
        """Text without special tokens."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def _load(self, version: int) -> WeightManifest:
        self._control("start_weight_update")
        self._control("update_weights", update_info={"version": version})
        self._control("finish_weight_update")
        manifests = self._llm.collective_rpc("take_manifest")
        if any(manifest != manifests[0] for manifest in manifests):
            raise EngineError(f"{self._name}: its workers received different weights for version {version}")
        if self._llm.reset_prefix_cache(reset_running_requests=self.busy) is not True:
            raise EngineError(f"{self._name} did not drop its cached prefixes after version {version}")
        return manifests[0]

    def _abandon(self, error: WorkAbandoned) -> None:
        """Give up what is in flight: not one more token may come from weights that are not whole."""
        if running := list(self._samples):
            self.fail(error)
            self._core.abort_requests(running)

    def _take(self, sample: Sample, output: EngineCoreOutput) -> None:
        sample.token_ids += output.new_token_ids
        self._pulse.num_tokens += len(output.new_token_ids)
        if output.new_logprobs is not None:
            sample.logprobs += output.new_logprobs.logprobs[:, 0].tolist()  # the sampled token's comes first
        if output.finish_reason is not None:
            del self._samples[output.request_id]
            sample.group.end_sample(sample, FINISH[output.finish_reason])
            if sample.group.batch.num_running == 0:
                self._batches.discard(sample.group.batch)

    def _prepare(self, group: GroupInFlight, seed: int) -> EngineCoreRequest:
        request = group.request
        length = len(request.prompt_ids) + request.sampling.max_tokens
        if length > self._spec.max_model_len:
            raise RequestError(
                f"{self._name}: request {request.key} may grow to {length} tokens "
                f"({len(request.prompt_ids)} of prompt), engine.max_model_len is {self._spec.max_model_len}"
            )
        try:
            return self._llm.input_processor.process_inputs(
                f"{request.key}-{next(self._numbers)}",
                tokens_input(list(request.prompt_ids)),
                sampling_parameters(request.sampling, seed, self._stop_ids),
                supported_tasks=self._llm.get_supported_tasks(),
            )
        except Exception as error:  # another engine would refuse it as well
            raise RequestError(f"{self._name}: request {request.key} cannot be served: {error}") from error

    def _usable_version(self) -> int:
        if self._version is None:
            raise WorkAbandoned(f"{self._name} holds weights that are not whole: a publication failed half-way")
        return self._version

    def _control(self, method: str, **arguments: Any) -> None:
        """A call on all workers that must do its work or raise; an answer would be a refusal dressed as success."""
        answers = self._llm.collective_rpc(method, kwargs=arguments)
        if any(answer is not None for answer in answers):
            raise EngineError(f"{self._name}: {method} answered {answers} instead of doing its work")

    def _drain(self) -> None:
        """Take back steps that asynchronous scheduling has sent ahead for samples that have ended since."""
        core = self._core.engine_core
        while core.batch_queue or core.scheduler.has_requests():
            self.step()
