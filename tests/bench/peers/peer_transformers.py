"""transformers on PyTorch. usage: peer_transformers.py CHECKPOINT THREADS EXPERTS_IMPLEMENTATION"""
import sys
import time

import worker  # First: it takes standard output aside.

import torch
import transformers


class Peer:
    def __init__(self, folder, threads, experts):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, experts_implementation=experts)
        self.model.eval()
        self.tokens = worker.Tokens(self.model.config.vocab_size)
        self.about = (f"transformers {transformers.__version__}, torch {torch.__version__}, "
                      f"experts {experts}")

    def draw(self, batch, count):
        return torch.tensor([self.tokens.draw(count) for _ in range(batch)])

    def prefill(self, tokens, times):
        seconds = []
        for _ in range(times + 1):  # The first is not counted.
            ids = self.draw(1, tokens)
            start = time.perf_counter()
            self.model(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)
            seconds.append(time.perf_counter() - start)
        return seconds[1:]

    def decode(self, batch, context, steps):
        cache = self.model(self.draw(batch, context), use_cache=True,
                           logits_to_keep=1).past_key_values
        seconds = []
        for _ in range(steps + 1):  # The first is not counted.
            ids = self.draw(batch, 1)
            start = time.perf_counter()
            self.model(ids, past_key_values=cache, use_cache=True).logits.argmax(-1)
            seconds.append(time.perf_counter() - start)
        return seconds[1:]


worker.serve(Peer(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
