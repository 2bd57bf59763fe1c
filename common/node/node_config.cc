#include "common/node/node_config.h"

#include "common/config/flag_set.h"
#include "common/model/shard_plan.h"
#include "kernels/core/exec_context.h"

namespace lynx::node {

void AddNodeFlags(config::FlagSet& flags, NodeConfig& config) {
  flags.AddString("model", &config.model, "Hugging Face model folder (required)");
  flags.AddString("served-model-name", &config.served_model_name,
                  "name of the model towards routers; empty takes the folder's name");
  flags.AddString("control", &config.control,
                  "host:port of the control plane; port 0 picks a free one");
  flags.AddString("http", &config.http,
                  "host:port of health pages and metrics; port 0 picks a free one");
  flags.AddString("control-key", &config.control_key,
                  "file of this node's CURVE key pair, NAME.key_secret of lynx keygen, for an "
                  "encrypted control plane; empty: plain");
  flags.AddString("control-peers", &config.control_peers,
                  "folder of the routers' public keys, NAME.key");
  flags.AddString("announce", &config.announce,
                  "file to write the bound addresses to once they are known");
  flags.AddChoice("log-level", &config.log_level, {"debug", "info", "warning", "error"},
                  "least severe lines to log");
  flags.AddChoice("metrics-compat", &config.metrics_compat, {"none", "vllm"},
                  "vllm: serve /metrics/vllm, too, with vLLM's names");
  flags.AddConfigActions();
  flags.AddString("device", &config.device,
                  "what computes: cpu, cuda, or cuda:1 for the second GPU; auto takes a GPU where "
                  "one is there that serves the model");
  flags.AddString("cuda-plugin", &config.cuda_plugin,
                  "path of liblynx_cuda.so; empty looks where it was installed beside the program");
  flags.AddChoice("compute-dtype", &config.compute_dtype, {"f32", "bf16"},
                  "precision that activations are rounded to; equal on all nodes of a cluster");
  flags.AddChoice("kv-dtype", &config.kv_dtype, {"auto", "f32", "bf16"},
                  "precision of the KV cache; auto takes the compute precision");
  flags.AddInt("tp", &config.tp, {1, model::kMaxRanks},
               "ranks of the node: processes that share the model, each with its part of the "
               "attention heads, the vocabulary and every layer's columns");
  flags.AddInt("dp", &config.dp, {1, model::kMaxRanks},
               "attention replicas: so many times --tp ranks, each group with sequences and KV of "
               "its own, and the routed experts spread over all of them");
  flags.AddInt("ep", &config.ep, {0, model::kMaxRanks},
               "parts that the routed experts are dealt out to the ranks in, whole; has to divide "
               "their number. 1 splits each expert over all ranks, 0 takes 1, or with --dp as many "
               "as there are ranks");
  flags.AddInt(
      "ep-spare", &config.ep_spare, {0, 65536},
      "further experts of each layer that a rank has memory for, as copies of others; each "
      "step chooses among copies so that its ranks have as few experts to read as can be. "
      "Equal on all ranks");
  flags.AddDuration("ep-rebalance-interval", &config.ep_rebalance_interval, {absl::ZeroDuration()},
                    "with --ep-spare: between looks at what steps needed, by which experts move to "
                    "other ranks while the node serves; 0 leaves them where they are");
  flags.AddDouble(
      "ep-rebalance-gain", &config.ep_rebalance_gain, {0, 1},
      "of the experts that the fullest rank of a layer reads, the share that a change of "
      "the layer has to save, by what the last steps needed");
  flags.AddInt("rank", &config.rank, {-1, model::kMaxRanks - 1},
               "which rank this process is, where something else starts the others; -1 starts them "
               "itself, on this host");
  flags.AddInt("world", &config.world, {0, model::kMaxRanks},
               "ranks of the node, for a check; 0 takes what --tp and --dp say");
  flags.AddString("leader", &config.leader,
                  "host:port where rank 0 listens for the others; with --rank");
  flags.AddDuration("rank-start-timeout", &config.rank_start_timeout, {absl::Milliseconds(100)},
                    "end when not all ranks are there and have loaded by then");
  flags.AddDuration("rank-timeout", &config.rank_timeout, {absl::Milliseconds(200)},
                    "end when another rank was silent for so long; equal on all ranks");
  flags.AddDuration("rank-call-timeout", &config.rank_call_timeout, {absl::Milliseconds(200)},
                    "end when another rank, though not silent, is awaited for so long in a step");
  flags.AddInt("threads", &config.threads, {0, 1024},
               "compute threads of each rank; 0 takes every CPU this process may use, or its share "
               "of them for each rank");
  flags.AddString("cpus", &config.cpus,
                  "CPUs of this process and the ranks it starts, as in 0-7,16; compute threads are "
                  "pinned to them, one each, and ranks share none. allowed: those it may use "
                  "anyway; empty does not pin a single rank");
  flags.AddChoice("isa", &config.isa, kernels::IsaChoices(),
                  "instruction set of the kernels; auto takes the widest this machine has. It "
                  "decides bits: pin the narrowest of a mixed fleet to keep one numeric class");
  flags.AddBytes("kv-memory", &config.kv_memory_bytes, {0},
                 "memory for the KV cache of each rank, at least what one context needs; 0 takes "
                 "1GiB, or that if it is more, and on a GPU what is left of its memory");
  flags.AddInt("kv-blocks", &config.kv_blocks, {0, 1 << 24},
               "blocks of the KV cache, each 16 tokens of a group of layers; 0 derives them from "
               "kv-memory");
  flags.AddInt("max-context-tokens", &config.max_context_tokens, {0, 1 << 30},
               "most tokens of prompt and answer together; 0 takes the model's limit");
  flags.AddInt("step-rows", &config.step_rows, {1, 65536},
               "most tokens a step computes, for each replica: the size of a prompt's chunks");
  flags.AddBool("prefix-cache", &config.prefix_cache,
                "keep KV for later prompts that begin alike, in blocks otherwise free");
  flags.AddString(
      "ucx-tls", &config.ucx_tls,
      "UCX transports for KV; those without peer error handling need an operator's eye");
  flags.AddString("ucx-net-devices", &config.ucx_net_devices,
                  "UCX network devices for KV, e.g. eth0 or mlx5_0:1; empty lets UCX choose");
  flags.AddDuration("router-timeout", &config.router_timeout, {absl::Milliseconds(200)},
                    "cancel the sequences of a router that was silent for so long");
  flags.AddDuration("drain-timeout", &config.drain_timeout, {},
                    "after SIGTERM, how long running sequences may take to finish");
}

}  // namespace lynx::node
