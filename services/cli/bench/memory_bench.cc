#include "services/cli/bench/memory_bench.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "common/base/available_memory.h"
#include "common/base/status_macros.h"
#include "common/config/flag_set.h"
#include "kernels/core/cpu_limit.h"
#include "kernels/core/thread_team.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/bench/memory_need.h"
#include "services/cli/bench/quantile.h"
#include "services/cli/bench/read_bandwidth.h"
#include "services/cli/bench/run_mode.h"

namespace lynx::cli {
namespace {

struct MemoryBenchConfig {
  std::string mode = "memory";
  int64_t read_buffer = 0;
  int32_t passes = 15;
  int32_t threads = 0;
  bool json = false;
};

absl::Status Run(const MemoryBenchConfig& config, std::ostream& out) {
  LYNX_RETURN_IF_ERROR(CheckReadBuffer(config.read_buffer));
  const int32_t threads = config.threads > 0 ? config.threads : kernels::UsableCpus();
  const int64_t available = AvailableMemory();
  const int64_t bytes = config.read_buffer > 0 ? config.read_buffer : DefaultReadBuffer(available);
  if (bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a read buffer of %.1f GB is needed, %.1f are available",
                        static_cast<double>(bytes) / 1e9, static_cast<double>(available) / 1e9));
  }
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::ThreadTeam> team,
                        kernels::ThreadTeam::Create(threads));
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<ReadBandwidth> bandwidth,
                        ReadBandwidth::Create(bytes, *team));
  std::vector<double> passes;
  for (int32_t i = 0; i < config.passes; ++i) passes.push_back(bandwidth->Measure());
  BenchReport report{.mode = "memory",
                     .threads = threads,
                     .read_buffer_bytes = bytes,
                     .bandwidth_gb_s = Median(passes) / 1e9};
  report.notes.push_back(
      absl::StrFormat("of %d passes the slowest read %.2f, the fastest %.2f GB/s", config.passes,
                      Quantile(passes, 0) / 1e9, Quantile(passes, 1) / 1e9));
  if (auto note = CacheNote(bytes, LastLevelCacheBytes())) report.notes.push_back(*std::move(note));
  config.json ? PrintJson(report, out) : PrintTable(report, out);
  return absl::OkStatus();
}

}  // namespace

int RunMemoryBench(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  MemoryBenchConfig config;
  config::FlagSet flags("lynx bench memory",
                        "Measures how fast this machine's threads read memory that no cache "
                        "holds.");
  flags.SetOutput(&out);
  flags.AddPositional("mode", &config.mode, "memory");
  flags.AddBytes("read-buffer", &config.read_buffer, {0},
                 "What is read; 0: 2 GiB, or half of the free memory if that is less");
  flags.AddInt("passes", &config.passes, {1, 10000}, "Times that the buffer is read");
  flags.AddInt("threads", &config.threads, {0, 1024}, "Threads; 0: as many as the process may use");
  flags.AddBool("json", &config.json, "Print JSON");
  return RunMode(flags, argc, argv, err, [&] { return Run(config, out); });
}

}  // namespace lynx::cli
