"""What every peer does, told over standard input, one JSON object a line, answered likewise.

  {"do": "prefill", "tokens": n, "times": t}             -> {"seconds": [...]}, of one prompt each
  {"do": "decode", "batch": b, "context": c, "steps": s} -> {"seconds": [...]}, of one step each

Every prompt and every sequence has its own random tokens: rows that share a token would share their
experts too, and decode would look far faster than it is.
"""
import json
import os
import random
import sys


class Tokens:
    def __init__(self, vocab_size):
        self.vocab_size = vocab_size
        self.random = random.Random(1)

    def draw(self, count):
        return [self.random.randrange(self.vocab_size) for _ in range(count)]


def serve(peer):
    """`peer` has prefill(tokens, times) and decode(batch, context, steps), and `about`."""
    answers.write(json.dumps({"ready": peer.about}) + "\n")
    answers.flush()
    for line in sys.stdin:
        task = json.loads(line)
        if task["do"] == "prefill":
            seconds = peer.prefill(task["tokens"], task["times"])
        else:
            seconds = peer.decode(task["batch"], task["context"], task["steps"])
        answers.write(json.dumps({"seconds": seconds}) + "\n")
        answers.flush()


# What libraries print to standard output must not mix with the answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
