#include "services/cli/bench/transfer/transfer_bench.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/announcement.h"
#include "common/base/child_process.h"
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_arena.h"
#include "kernels/core/cpu_limit.h"
#include "services/cli/bench/kv_noise.h"
#include "services/cli/bench/quantile.h"
#include "services/cli/bench/router_traces.h"
#include "services/cli/bench/run_mode.h"
#include "services/cli/bench/transfer/overlap.h"
#include "services/cli/bench/transfer/prefill_side.h"
#include "services/cli/bench/transfer/transfer_report.h"
#include "services/cli/bench/transfer/transfer_setup.h"
#include "services/cli/bench/transfer/ucx_perftest.h"
#include "services/cli/scratch_directory.h"

namespace lynx::cli {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kStopTimeout = absl::Seconds(10);
constexpr int32_t kTransferThreads = 4;  // A loop and UCX's thread at each end.

struct TransferBenchConfig {
  std::string mode;
  TransferSetup setup;
  std::vector<std::string> transports = {"tcp", "shm"};
  int64_t payload = int64_t{1} << 30;
  int64_t message = 0;
  int32_t rounds = 5;
  bool overlap = false;
  std::string traces = "models/router-traces/mixed.bin";
  std::string compute_dtype = "bf16";
  int32_t chunk = 512;
  int32_t threads = 0;
  int32_t seed = 1;
  bool json = false;
};

// One transport: the decode side in a process of its own, and this process's end.
struct Pair {
  ChildProcess peer;
  std::unique_ptr<PrefillSide> side;

  // The peer removes its shared memory when it may end by itself.
  ~Pair() {
    side.reset();
    peer.Terminate();
    peer.Stop(kStopTimeout);
  }
};

absl::StatusOr<std::unique_ptr<Pair>> StartPair(const TransferBenchConfig& config,
                                                const std::string& transport, kv::KvArena& arena,
                                                const std::string& scratch) {
  const std::string announce = absl::StrCat(scratch, "/", transport, "-peer");
  std::error_code ignored;
  std::filesystem::remove(announce, ignored);
  std::vector<std::string> argv = {ProgramDirectory() + "/lynx", "bench", "transfer-peer"};
  for (std::string& flag : FlagsOf(config.setup)) argv.push_back(std::move(flag));
  argv.insert(argv.end(), {"--transport", transport, "--announce", announce});
  LYNX_ASSIGN_OR_RETURN(ChildProcess peer, ChildProcess::Start("transfer peer", argv));
  auto pair = std::make_unique<Pair>(std::move(peer));
  const absl::Time deadline = SteadyClock::Instance().Now() + kStartTimeout;
  absl::StatusOr<Announcement> announced;
  for (;;) {
    announced = ReadAnnouncement(announce);
    if (announced.ok() || !absl::IsNotFound(announced.status())) break;
    if (const auto ended = pair->peer.Ended()) {
      return absl::UnavailableError(absl::StrCat("the other process ended: ", *ended));
    }
    if (SteadyClock::Instance().Now() >= deadline) {
      return absl::DeadlineExceededError("the other process did not start in time");
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  LYNX_RETURN_IF_ERROR(announced.status());
  PrefillSide::Options options{
      .engine = EngineOptions(transport), .sender = {}, .peer = announced->control};
  if (config.message > 0) options.sender.max_message_bytes = config.message;
  LYNX_ASSIGN_OR_RETURN(pair->side, PrefillSide::Start(options, arena));
  return pair;
}

// Bytes of the largest message that the hand-off sends of a layer.
int64_t MessageBytes(const TransferBenchConfig& config, const kv::KvLayout& layout) {
  const int64_t most =
      config.message > 0 ? config.message : handoff::KvSender::Options().max_message_bytes;
  const int64_t block = layout.BlockLayerBytes();
  return block * std::clamp<int64_t>(most / block, 1, kv::BlocksFor(config.setup.tokens));
}

int64_t PromptBytes(const TransferBenchConfig& config, const kv::KvLayout& layout) {
  int64_t blocks = 0;
  for (int32_t layer = 0; layer < layout.layers; ++layer) {
    const int32_t first =
        layout.groups.FirstBlock(layout.groups.group_of(layer), config.setup.tokens);
    blocks += kv::BlocksFor(config.setup.tokens) - first;
  }
  return blocks * layout.BlockLayerBytes();
}

// Bytes a second of `prompts` hand-offs, one after the other.
absl::StatusOr<double> MeasureHandoffs(PrefillSide& side, const TransferBenchConfig& config,
                                       const kv::KvLayout& layout, const kv::BlockTable& blocks,
                                       int64_t prompts) {
  const absl::Time began = SteadyClock::Instance().Now();
  absl::Time ended = began;
  for (int64_t i = 0; i < prompts; ++i) {
    LYNX_RETURN_IF_ERROR(side.Open(config.setup.tokens, blocks));
    for (int32_t layer = 0; layer < layout.layers; ++layer) {
      side.Push(layer, 0, blocks.end_block());
    }
    LYNX_ASSIGN_OR_RETURN(ended, side.Commit());
  }
  return static_cast<double>(prompts * PromptBytes(config, layout)) /
         absl::ToDoubleSeconds(ended - began);
}

absl::StatusOr<std::vector<TransferResult>> MeasureTransfers(const TransferBenchConfig& config,
                                                             const kv::KvLayout& layout,
                                                             const std::string& scratch,
                                                             std::vector<std::string>& notes) {
  const auto blocks =
      static_cast<int32_t>(layout.groups.count() * kv::BlocksFor(config.setup.tokens));
  kv::BlockPool pool(blocks, layout.groups);
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<kv::KvArena> arena,
                        kv::KvArena::Create(layout, blocks));
  LYNX_ASSIGN_OR_RETURN(const kv::BlockTable table,
                        kv::BlockTable::Acquire(pool, 0, config.setup.tokens));
  std::vector<kv::BlockId> all(static_cast<size_t>(blocks));
  for (int32_t block = 0; block < blocks; ++block) all[static_cast<size_t>(block)] = block;
  FillWithNoise(all, static_cast<uint32_t>(config.seed), *arena);

  std::vector<std::unique_ptr<Pair>> pairs;
  for (const std::string& transport : config.transports) {
    LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Pair> pair,
                          StartPair(config, transport, *arena, scratch));
    pairs.push_back(std::move(pair));
  }
  const int64_t prompts = std::max<int64_t>(1, config.payload / PromptBytes(config, layout));
  const int64_t message = MessageBytes(config, layout);
  const int64_t messages = std::max<int64_t>(1, config.payload / message);
  bool has_perftest = true;
  std::vector<std::vector<double>> rates(pairs.size());
  std::vector<std::vector<double>> limits(pairs.size());
  std::vector<std::vector<double>> shares(pairs.size());
  for (int32_t round = 0; round <= config.rounds; ++round) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      LYNX_ASSIGN_OR_RETURN(const double rate, MeasureHandoffs(*pairs[i]->side, config, layout,
                                                               table, round == 0 ? 1 : prompts));
      if (round == 0) continue;  // Connects, and touches memory for the first time.
      rates[i].push_back(rate);
      if (!has_perftest) continue;
      const absl::StatusOr<double> limit =
          MeasureUcxPerftest(UcxTransports(config.transports[i]), message, messages, scratch);
      if (absl::IsNotFound(limit.status())) {
        has_perftest = false;
        notes.push_back("ucx_perftest is not installed: no limit to compare with");
        continue;
      }
      LYNX_RETURN_IF_ERROR(limit.status());
      limits[i].push_back(*limit);
      shares[i].push_back(rate / *limit);
    }
  }
  std::vector<TransferResult> results;
  for (size_t i = 0; i < pairs.size(); ++i) {
    TransferResult result{.transport = config.transports[i],
                          .bytes_per_s = Median(rates[i]),
                          .perftest_bytes_per_s = {},
                          .share = {}};
    if (has_perftest) {
      result.perftest_bytes_per_s = Median(limits[i]);
      result.share = Median(shares[i]);
      result.share_low = Quantile(shares[i], 0);
      result.share_high = Quantile(shares[i], 1);
    }
    results.push_back(std::move(result));
  }
  return results;
}

absl::StatusOr<std::vector<OverlapResult>> MeasureOverlap(const TransferBenchConfig& config,
                                                          const model::ModelSpec& spec,
                                                          int32_t threads,
                                                          const std::string& scratch) {
  LYNX_ASSIGN_OR_RETURN(RouterTraces traces, ReadRouterTraces(config.traces));
  Overlap::Options options{.runner = {},
                           .tokens = config.setup.tokens,
                           .chunk = config.chunk,
                           .seed = static_cast<uint64_t>(config.seed)};
  options.runner.compute_dtype = DTypeNamed(config.compute_dtype).value();
  options.runner.kv_dtype = DTypeNamed(config.setup.kv_dtype).value();
  options.runner.threads = threads;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Overlap> overlap,
                        Overlap::Create(options, spec, std::move(traces)));
  std::vector<OverlapResult> medians;
  for (const std::string& transport : config.transports) {
    LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Pair> pair,
                          StartPair(config, transport, overlap->arena(), scratch));
    std::vector<OverlapResult> rounds;
    for (int32_t round = 0; round <= config.rounds; ++round) {
      LYNX_ASSIGN_OR_RETURN(OverlapResult result, overlap->Measure(*pair->side));
      if (round > 0) rounds.push_back(std::move(result));  // As above.
    }
    const auto median = [&](double OverlapResult::*field) {
      std::vector<double> values;
      for (const OverlapResult& result : rounds) values.push_back(result.*field);
      return Median(values);
    };
    medians.push_back({.transport = transport,
                       .alone_ms = median(&OverlapResult::alone_ms),
                       .compute_ms = median(&OverlapResult::compute_ms),
                       .slowdown = median(&OverlapResult::slowdown),
                       .transfer_ms = median(&OverlapResult::transfer_ms),
                       .exposed_ms = median(&OverlapResult::exposed_ms),
                       .exposed_share = median(&OverlapResult::exposed_share)});
  }
  return medians;
}

absl::Status Run(const TransferBenchConfig& config, std::ostream& out) {
  for (const std::string& transport : config.transports) {
    if (std::find(TransportNames().begin(), TransportNames().end(), transport) ==
        TransportNames().end()) {
      return absl::InvalidArgumentError(absl::StrCat("--transports: '", transport, "' is none of ",
                                                     absl::StrJoin(TransportNames(), ", ")));
    }
  }
  if (config.transports.empty()) return absl::InvalidArgumentError("--transports: none is named");
  LYNX_ASSIGN_OR_RETURN(const model::ModelSpec spec, SpecOf(config.setup));
  const kv::KvLayout layout = LayoutOf(config.setup, spec);
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("no folder for temporary files: ", error.message(), " (TMPDIR)"));
  }
  LYNX_ASSIGN_OR_RETURN(const ScratchDirectory scratch,
                        ScratchDirectory::Create(temporary, "lynx-bench"));
  const int32_t threads = config.threads > 0 ? config.threads : kernels::UsableCpus();
  TransferReport report{.shape = config.setup.shape,
                        .layers = spec.layers,
                        .kv_dtype = config.setup.kv_dtype,
                        .tokens = config.setup.tokens,
                        .prompt_bytes = PromptBytes(config, layout),
                        .block_bytes = layout.BlockLayerBytes(),
                        .message_bytes = MessageBytes(config, layout),
                        .chunk = config.overlap ? config.chunk : 0,
                        .threads = config.overlap ? threads : 0,
                        .notes = {},
                        .results = {},
                        .overlap = {}};
  if (config.overlap) {
    LYNX_ASSIGN_OR_RETURN(report.overlap,
                          MeasureOverlap(config, spec, threads, scratch.path().string()));
    const int32_t cpus = kernels::UsableCpus();
    if (threads + kTransferThreads > cpus) {
      report.notes.push_back(
          absl::StrFormat("compute (%d threads) and both ends' transfer (%d) share %d CPUs",
                          threads, kTransferThreads, cpus));
    }
  } else {
    LYNX_ASSIGN_OR_RETURN(report.results,
                          MeasureTransfers(config, layout, scratch.path().string(), report.notes));
  }
  config.json ? PrintTransferJson(report, out) : PrintTransferTable(report, out);
  return absl::OkStatus();
}

}  // namespace

int RunTransferBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  TransferBenchConfig config;
  config::FlagSet flags("lynx bench transfer",
                        "Hands KV from this process to another one of this machine, beside "
                        "ucx_perftest in the same round; with --overlap, while it is computed.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode, "transfer");
  AddSetupFlags(flags, config.setup);
  flags.AddStrings("transports", &config.transports,
                   "What KV goes over, in turn: " + absl::StrJoin(TransportNames(), ", "));
  flags.AddBytes("payload", &config.payload, {1}, "KV bytes of one measurement, at least a prompt");
  flags.AddBytes("message", &config.message, {0, int64_t{64} << 20},
                 "Bytes of a message, at least a block; 0: as prefill nodes do");
  flags.AddInt("rounds", &config.rounds, {1, 1000}, "Rounds; one more comes first, uncounted");
  flags.AddBool("overlap", &config.overlap,
                "Measure prompts whose KV goes out while they are computed, with random weights, "
                "instead of KV alone");
  flags.AddString("traces", &config.traces, "Of --overlap: router logits, as in lynx bench decode");
  flags.AddChoice("compute-dtype", &config.compute_dtype, {"f32", "bf16"},
                  "Of --overlap: arithmetic");
  flags.AddInt("chunk", &config.chunk, {1, 1 << 16}, "Of --overlap: prompt tokens in one step");
  flags.AddInt("threads", &config.threads, {0, 1024},
               "Of --overlap: compute threads; 0: as many as the process may use");
  flags.AddInt("seed", &config.seed, {0}, "Of random tokens, weights and KV");
  flags.AddBool("json", &config.json, "Print JSON");

  return RunMode(flags, argc, argv, err, [&] {
    LogWarningsOnly();
    return Run(config, out);
  });
}

}  // namespace lynx::cli
