#include "services/cli/bench/transfer/transfer_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace lynx::cli {

void PrintTransferTable(const TransferReport& report, std::ostream& out) {
  out << absl::StrFormat(
      "transfer, %s, %d layers, KV in %s\nprompts of %d tokens: %.1f MB of KV in blocks of %d "
      "bytes a layer, messages of up to %d bytes\n",
      report.shape, report.layers, report.kv_dtype, report.tokens,
      static_cast<double>(report.prompt_bytes) / 1e6, report.block_bytes, report.message_bytes);
  for (const std::string& note : report.notes) out << "note: " << note << "\n";
  if (!report.results.empty()) {
    out << absl::StrFormat("%-9s %14s %18s %8s %16s\n", "transport", "hand-off GB/s",
                           "ucx_perftest GB/s", "share", "of the rounds");
  }
  for (const TransferResult& r : report.results) {
    out << absl::StrFormat("%-9s %14.2f", r.transport, r.bytes_per_s / 1e9);
    if (r.share.has_value()) {
      out << absl::StrFormat(" %18.2f %7.0f%% %8.0f to %.0f%%", *r.perftest_bytes_per_s / 1e9,
                             *r.share * 100, r.share_low * 100, r.share_high * 100);
    }
    out << "\n";
  }
  if (report.overlap.empty()) return;
  out << absl::StrFormat("compute in chunks of %d tokens by %d threads, KV going out meanwhile\n",
                         report.chunk, report.threads);
  out << absl::StrFormat("%-9s %12s %14s %9s %12s %11s %8s\n", "transport", "compute ms",
                         "with hand-off", "slowdown", "transfer ms", "exposed ms", "share");
  for (const OverlapResult& r : report.overlap) {
    out << absl::StrFormat("%-9s %12.1f %14.1f %8.1f%% %12.1f %11.2f %7.1f%%\n", r.transport,
                           r.alone_ms, r.compute_ms, r.slowdown * 100, r.transfer_ms, r.exposed_ms,
                           r.exposed_share * 100);
  }
  out << "transfer: of the whole KV once all is computed; exposed: last layer computed to commit "
         "verified\n";
}

void PrintTransferJson(const TransferReport& report, std::ostream& out) {
  nlohmann::json json{{"mode", "transfer"},
                      {"shape", report.shape},
                      {"layers", report.layers},
                      {"kv_dtype", report.kv_dtype},
                      {"tokens", report.tokens},
                      {"prompt_bytes", report.prompt_bytes},
                      {"block_bytes", report.block_bytes},
                      {"message_bytes", report.message_bytes},
                      {"notes", report.notes},
                      {"results", nlohmann::json::array()}};
  for (const TransferResult& r : report.results) {
    nlohmann::json row{{"transport", r.transport}, {"handoff_gb_s", r.bytes_per_s / 1e9}};
    if (r.share.has_value()) {
      row["ucx_perftest_gb_s"] = *r.perftest_bytes_per_s / 1e9;
      row["share"] = *r.share;
      row["share_low"] = r.share_low;
      row["share_high"] = r.share_high;
    }
    json["results"].push_back(std::move(row));
  }
  if (!report.overlap.empty()) {
    json["chunk"] = report.chunk;
    json["threads"] = report.threads;
    for (const OverlapResult& r : report.overlap) {
      json["overlap"].push_back({{"transport", r.transport},
                                 {"alone_ms", r.alone_ms},
                                 {"compute_ms", r.compute_ms},
                                 {"slowdown", r.slowdown},
                                 {"transfer_ms", r.transfer_ms},
                                 {"exposed_ms", r.exposed_ms},
                                 {"exposed_share", r.exposed_share}});
    }
  }
  // Paths need not be UTF-8.
  out << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

}  // namespace lynx::cli
