"""vLLM on CPU. usage: peer_vllm.py CHECKPOINT THREADS MAX_BATCH MAX_CONTEXT"""
import os
import sys
import time

import worker  # First: it takes standard output aside.

# Steps are driven from here, one by one.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

import vllm


class Peer:
    def __init__(self, folder, batch, context):
        self.engine = vllm.LLM(model=folder, dtype="bfloat16", skip_tokenizer_init=True,
                               max_model_len=context, max_num_seqs=batch,
                               enable_prefix_caching=False).llm_engine
        self.tokens = worker.Tokens(self.engine.model_config.get_vocab_size())
        self.requests = 0
        self.about = f"vllm {vllm.__version__}"

    def add(self, prompt, output):
        """The request's name."""
        self.requests += 1
        params = vllm.SamplingParams(temperature=0, max_tokens=output, ignore_eos=True,
                                     detokenize=False)
        self.engine.add_request(str(self.requests), {"prompt_token_ids": self.tokens.draw(prompt)},
                                params)
        return str(self.requests)

    def prefill(self, tokens, times):
        seconds = []
        for _ in range(times + 1):  # The first is not counted.
            self.add(tokens, 1)
            start = time.perf_counter()
            while self.engine.has_unfinished_requests():
                self.engine.step()
            seconds.append(time.perf_counter() - start)
        return seconds[1:]

    def decode(self, batch, context, steps):
        # Sequences go on from their own last token: those of a random model, each its own.
        requests = [self.add(context, steps + 64) for _ in range(batch)]
        decoding = 0
        while decoding < batch:
            decoding = sum(len(o.outputs[0].token_ids) > 0 for o in self.engine.step())
        seconds = []
        for _ in range(steps + 1):  # The first is not counted.
            start = time.perf_counter()
            outputs = self.engine.step()
            seconds.append(time.perf_counter() - start)
        distinct = len({output.outputs[0].token_ids[-1] for output in outputs})
        if distinct < 0.9 * batch:
            raise SystemExit(f"{batch} sequences have {distinct} tokens: they share experts")
        self.engine.abort_request(requests)
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return seconds[1:]


worker.serve(Peer(sys.argv[1], *map(int, sys.argv[3:5])))
