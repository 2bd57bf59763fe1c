#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace lynx::cli {

// Whole prompts handed over, one after the other, without any compute.
struct TransferResult {
  std::string transport;
  double bytes_per_s = 0;  // Median of the rounds, as the next.
  std::optional<double> perftest_bytes_per_s;
  // The first over the second within a round: median, least and most.
  std::optional<double> share;
  double share_low = 0;
  double share_high = 0;
};

// A prompt computed while its KV goes out. Medians of the rounds.
struct OverlapResult {
  std::string transport;
  double alone_ms = 0;     // Compute of a prompt without a hand-off,
  double compute_ms = 0;   // and with one.
  double slowdown = 0;     // The second over the first within a round, less 1.
  double transfer_ms = 0;  // The whole KV, once all is computed.
  double exposed_ms = 0;   // Last layer computed to commit verified.
  double exposed_share = 0;
};

struct TransferReport {
  std::string shape;
  int32_t layers = 0;
  std::string kv_dtype;
  int32_t tokens = 0;
  int64_t prompt_bytes = 0;   // Of KV.
  int64_t block_bytes = 0;    // Of one block in one layer.
  int64_t message_bytes = 0;  // Of the largest message.
  int32_t chunk = 0;          // Of compute; 0: none.
  int32_t threads = 0;        // The same.
  std::vector<std::string> notes;
  std::vector<TransferResult> results;
  std::vector<OverlapResult> overlap;
};

void PrintTransferTable(const TransferReport& report, std::ostream& out);
void PrintTransferJson(const TransferReport& report, std::ostream& out);

}  // namespace lynx::cli
