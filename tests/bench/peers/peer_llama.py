"""llama.cpp by llama-cpp-python. usage: peer_llama.py MODEL.gguf THREADS MAX_BATCH MAX_CONTEXT"""
import ctypes
import sys
import time

import worker  # First: it takes standard output aside.

import llama_cpp
import numpy as np

CHUNK = 512


class Peer:
    def __init__(self, path, threads, batch, context):
        self.path, self.threads = path, threads
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self.tokens = worker.Tokens(self.vocab_size)
        self.open(batch, context)
        system = llama_cpp.llama_print_system_info().decode()
        self.about = f"llama-cpp-python {llama_cpp.__version__}, KV cache f16, {system}"

    def open(self, batch, context):
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = batch
        params.n_ctx = batch * ((context + 255) // 256 * 256)
        params.n_batch = CHUNK
        params.n_ubatch = CHUNK
        params.n_threads = self.threads
        params.n_threads_batch = self.threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(CHUNK, 0, batch)

    def run(self, rows):
        """rows: (token, position, sequence, whether logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        if llama_cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        for i, row in enumerate(rows):
            if row[3]:
                logits = llama_cpp.llama_get_logits_ith(self.context, i)
                address = ctypes.cast(logits, ctypes.c_void_p).value
                array = (ctypes.c_float * self.vocab_size).from_address(address)
                np.frombuffer(array, np.float32).argmax()

    def prompts(self, sequences, tokens):
        rows = [(token, position, sequence, position == tokens - 1) for sequence in sequences
                for position, token in enumerate(self.tokens.draw(tokens))]
        start = time.perf_counter()
        for first in range(0, len(rows), CHUNK):
            self.run(rows[first:first + CHUNK])
        return time.perf_counter() - start

    def prefill(self, tokens, times):
        seconds = []
        for _ in range(times + 1):  # The first is not counted.
            llama_cpp.llama_memory_clear(self.memory, True)
            seconds.append(self.prompts([0], tokens))
        return seconds[1:]

    def decode(self, batch, context, steps):
        llama_cpp.llama_memory_clear(self.memory, True)
        self.prompts(range(batch), context)
        seconds = []
        for step in range(steps + 1):  # The first is not counted.
            rows = [(token, context + step, sequence, True)
                    for sequence, token in enumerate(self.tokens.draw(batch))]
            start = time.perf_counter()
            self.run(rows)
            seconds.append(time.perf_counter() - start)
        return seconds[1:]


worker.serve(Peer(sys.argv[1], *map(int, sys.argv[2:5])))
